"""Adapters: how an operation takes the place of a module's code (docs/catalog.md lists them).

Each is a factory from a decision's parameters to an Operation, and a check whether a module can be
bound at all. What can only be known per call (an unusual tensor) runs the module's own code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import nn

from fuseboard._binding import Operators
from fuseboard._bound import BoundForward, Operation
from fuseboard._errors import KernelRejected
from fuseboard._first_use import MAX_ROWS, FirstUse
from fuseboard._head import HeadOperation, head_refusal
from fuseboard._loss_operation import LossOperation

_PLAIN = (torch.Tensor, nn.Parameter)
_CASTINGS = {"llama": 0, "gemma": 1, "none": 2}
_DWEIGHT = {"auto": 0, "weight": 1, "float32": 2}


class Adapter(Protocol):
    """One way of binding."""

    def refusal(self, module: nn.Module, parameters: Mapping[str, str]) -> str:
        """Why `module` cannot be bound, or ""."""
        ...

    def operation(
        self, operators: Operators, handle: int, parameters: Mapping[str, str], first_use: FirstUse
    ) -> Operation:
        """What to bind to the modules of a site.

        Raises:
            KernelRejected: A parameter is missing or unknown.
        """
        ...


def find_adapter(name: str) -> Adapter | None:
    """The adapter of this name, or None: a newer daemon may know more than this client."""
    return _ADAPTERS.get(name)


@dataclasses.dataclass(frozen=True)
class _RmsNorm:
    operators: Operators
    handle: int
    eps_attribute: str
    casting: int
    offset: float
    first_use: FirstUse

    def __call__(
        self, bound: BoundForward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        x = bound.only_argument(args, kwargs)
        weight: Any = module.weight
        if type(x) not in _PLAIN or type(weight) not in _PLAIN:
            return bound.native(x)
        eps = getattr(module, self.eps_attribute)

        def run(handle: int) -> torch.Tensor:
            rows = x.detach().reshape(-1, x.shape[-1])[:MAX_ROWS]
            return self._call(rows, weight.detach(), eps, handle)

        if not self.first_use.allows(x, self.handle, run):
            return bound.native(x)
        return self._call(x, weight, eps, self.handle)

    def _call(self, x: torch.Tensor, weight: Any, eps: Any, handle: int) -> torch.Tensor:
        result: torch.Tensor = self.operators.rms_norm(
            x, weight, eps, self.offset, self.casting, handle
        )
        return result


class _RmsNormAdapter:
    def refusal(self, module: nn.Module, parameters: Mapping[str, str]) -> str:
        weight = getattr(module, "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.dim() != 1:
            return "weight is not a vector"
        return "" if weight.is_floating_point() else f"weight is {weight.dtype}"

    def operation(
        self, operators: Operators, handle: int, parameters: Mapping[str, str], first_use: FirstUse
    ) -> Operation:
        return _RmsNorm(
            operators,
            handle,
            eps_attribute=_text(parameters, "eps_attribute"),
            casting=_choice(parameters, "casting", _CASTINGS),
            offset=_number(parameters, "offset", 0.0),
            first_use=first_use,
        )


@dataclasses.dataclass(frozen=True)
class _Swiglu:
    """down(silu(gate(x)) * up(x)), through the submodules' own calls: hooks and wrappers work."""

    operators: Operators
    handle: int
    gate: str
    up: str
    down: str
    activation: str
    first_use: FirstUse

    def __call__(
        self, bound: BoundForward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        x = bound.only_argument(args, kwargs)
        gate = getattr(module, self.gate)(x)
        up = getattr(module, self.up)(x)
        return getattr(module, self.down)(self._activate(module, gate, up))

    def _activate(self, module: nn.Module, gate: Any, up: Any) -> Any:
        plain = type(gate) in _PLAIN and type(up) in _PLAIN
        if not plain or gate.dtype != up.dtype or gate.shape != up.shape:
            return getattr(module, self.activation)(gate) * up

        def run(handle: int) -> torch.Tensor:
            rows = [t.detach().reshape(-1, t.shape[-1])[:MAX_ROWS] for t in (gate, up)]
            result: torch.Tensor = self.operators.swiglu(rows[0], rows[1], True, handle)
            return result

        if not self.first_use.allows(gate, self.handle, run):
            return getattr(module, self.activation)(gate) * up
        return self.operators.swiglu(gate, up, True, self.handle)


class _SwigluAdapter:
    def refusal(self, module: nn.Module, parameters: Mapping[str, str]) -> str:
        name = parameters.get("activation", "")
        activation = module._modules.get(name)
        if activation is None:
            return f"activation {name} is not a submodule"
        if _has_hooks(activation) or "forward" in activation.__dict__:
            return f"activation {name} is hooked"
        return ""

    def operation(
        self, operators: Operators, handle: int, parameters: Mapping[str, str], first_use: FirstUse
    ) -> Operation:
        return _Swiglu(
            operators,
            handle,
            gate=_text(parameters, "gate"),
            up=_text(parameters, "up"),
            down=_text(parameters, "down"),
            activation=_text(parameters, "activation"),
            first_use=first_use,
        )


class _DeferredLogitsAdapter:
    def refusal(self, module: nn.Module, parameters: Mapping[str, str]) -> str:
        return head_refusal(module)

    def operation(
        self, operators: Operators, handle: int, parameters: Mapping[str, str], first_use: FirstUse
    ) -> Operation:
        loss = LossOperation(
            operators,
            handle,
            dweight_dtype=_choice({"dweight": "auto", **parameters}, "dweight", _DWEIGHT),
            chunk_bytes=int(_number(parameters, "chunk_bytes", 0)),
            first_use=first_use,
        )
        return HeadOperation(loss)


_ADAPTERS: dict[str, Adapter] = {
    "rms_norm": _RmsNormAdapter(),
    "swiglu": _SwigluAdapter(),
    "deferred_logits": _DeferredLogitsAdapter(),
}


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _text(parameters: Mapping[str, str], name: str) -> str:
    value = parameters.get(name, "")
    if not value:
        raise _bad(f"parameter {name} is missing")
    return value


def _number(parameters: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(parameters.get(name, default))
    except ValueError as error:
        raise _bad(f"parameter {name} is {parameters[name]!r}, want a number") from error


def _choice(parameters: Mapping[str, str], name: str, choices: Mapping[str, int]) -> int:
    value = parameters.get(name, "")
    if value not in choices:
        raise _bad(f"parameter {name} is {value!r}, want one of {', '.join(choices)}")
    return choices[value]


def _bad(message: str) -> KernelRejected:
    return KernelRejected("BAD_PARAMETER", message, (message,))
