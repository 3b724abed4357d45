"""The bound forward of an output projection: defers its logits, and computes loss or logits when
re-entered.

Both computations go through the projection's own __call__, so that hooks which gather a sharded weight
(FSDP, ZeRO) run around them. A request travels beside that call, in a thread-local variable.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from fuseboard._binding import COMPOSITE, Operators
from fuseboard._bound import BoundForward
from fuseboard._deferred import LossRequest, defer
from fuseboard._errors import DeferredLogitsError
from fuseboard._fingerprint import own_class
from fuseboard._first_use import MAX_ROWS, FirstUse

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_PLAIN = (torch.Tensor, nn.Parameter)
_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}
# Hooks that only move weights. Any other would see a loss where it expects logits.
_SHARDING_HOOKS = ("torch.distributed.", "deepspeed.")


def head_refusal(head: nn.Module) -> str:
    """Why the logits of `head` cannot be deferred, or ""."""
    cls = own_class(head)
    if cls is not nn.Linear:
        return f"the head is a {cls.__module__}.{cls.__qualname__}, not a Linear"
    if head.weight.dtype not in _DTYPES:
        return f"the head's weight is {head.weight.dtype}"
    return ""


@dataclasses.dataclass(frozen=True)
class HeadOperation:
    """What the head runs instead of its own code."""

    operators: Operators
    handle: int
    dweight_dtype: int
    chunk_bytes: int
    first_use: FirstUse

    def __call__(
        self, bound: BoundForward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        hidden = bound.only_argument(args, kwargs)
        if torch.compiler.is_compiling():
            return bound.native(hidden)
        request = getattr(_entered, "request", None)
        if request is not None and request.module is module:
            _entered.request = None
            request.handled = True
            return request.compute(bound, hidden)
        if not isinstance(module, nn.Linear) or not _may_defer(module, hidden):
            return bound.native(hidden)
        autocast = _Autocast.current(hidden.device.type)
        dtype = autocast.dtype if autocast.enabled else hidden.dtype
        bias = module.bias
        inputs = (hidden, module.weight) if bias is None else (hidden, module.weight, bias)
        source = _HeadSource(self, module, inputs, autocast)
        return defer(source, hidden, inputs, module.weight.shape[0], dtype)


@dataclasses.dataclass
class _Request:
    """What a call of `module` is to compute instead of deferring."""

    module: nn.Module
    compute: Callable[[BoundForward, torch.Tensor], torch.Tensor]
    handled: bool = False


_entered = threading.local()


@dataclasses.dataclass(frozen=True)
class _Autocast:
    """State of autocast for one kind of device."""

    device_type: str
    enabled: bool
    dtype: torch.dtype

    @classmethod
    def current(cls, device_type: str) -> _Autocast:
        return cls(
            device_type,
            torch.is_autocast_enabled(device_type),
            torch.get_autocast_dtype(device_type),
        )

    def enter(self) -> torch.autocast:
        return torch.autocast(self.device_type, self.dtype, self.enabled, cache_enabled=False)

    def cast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.dtype) if self.enabled else tensor


class _HeadSource:
    """The LogitsSource of one call of the head."""

    def __init__(
        self,
        operation: HeadOperation,
        module: nn.Linear,
        inputs: tuple[torch.Tensor, ...],
        autocast: _Autocast,
    ) -> None:
        self._operation = operation
        self._module = module
        self._hidden = inputs[0]
        self._autocast = autocast
        self._grad_enabled = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._versions = [(weakref.ref(t), _version(t)) for t in inputs]

    def logits(self) -> torch.Tensor:
        with self._modes():
            return self._enter(self._hidden, lambda bound, hidden: bound.native(hidden))[0]

    def loss(self, request: LossRequest) -> torch.Tensor | None:
        result, handled = self._enter(
            request.rows, lambda _, rows: self._fused(dataclasses.replace(request, rows=rows))
        )
        # Not handled: the head was given back its own forward meanwhile.
        return result if handled else None

    def gradients(
        self, grad: torch.Tensor, needed: tuple[bool, ...]
    ) -> tuple[torch.Tensor | None, ...]:
        self._check_unchanged()
        given = [reference() for reference, _ in self._versions]
        inputs = [
            t.detach().requires_grad_(n)
            for t, n in zip(given, needed, strict=True)
            if t is not None
        ]
        with torch.enable_grad(), self._autocast.enter():
            logits = nn.functional.linear(*inputs)
        wanted = [t for t in inputs if t.requires_grad]
        found = iter(torch.autograd.grad(logits, wanted, grad))
        return tuple(next(found) if n else None for n in needed)

    def _fused(self, request: LossRequest) -> torch.Tensor:
        operation, module, cast = self._operation, self._module, self._autocast.cast
        rows, weight = cast(request.rows), cast(module.weight)
        bias = None if module.bias is None else cast(module.bias)

        def run(handle: int) -> torch.Tensor:
            few = dataclasses.replace(
                request, target=request.target[:MAX_ROWS].detach(), reduction="sum"
            )
            bare = None if bias is None else bias.detach()
            return _call(operation, few, rows[:MAX_ROWS].detach(), weight.detach(), bare, handle)

        allowed = operation.first_use.allows(rows, operation.handle, run)
        # The composite has the same peak of memory: a job that only fits fused must go on.
        handle = operation.handle if allowed else COMPOSITE
        return _call(operation, request, rows, weight, bias, handle)

    def _enter(
        self, hidden: torch.Tensor, compute: Callable[[BoundForward, torch.Tensor], torch.Tensor]
    ) -> tuple[torch.Tensor, bool]:
        """Calls the head and has its bound forward run `compute`."""

        def checked(bound: BoundForward, rows: torch.Tensor) -> torch.Tensor:
            self._check_unchanged()
            return compute(bound, rows)

        self._check_unchanged()
        request = _Request(self._module, checked)
        _entered.request = request
        try:
            result: torch.Tensor = self._module(hidden)
        finally:
            _entered.request = None
        return result, request.handled

    def _check_unchanged(self) -> None:
        for reference, version in self._versions:
            tensor = reference()
            if tensor is None or version is None or tensor._version == version:
                continue
            what = "hidden states" if tensor is self._hidden else "weights of the head"
            raise DeferredLogitsError(
                "DEFERRED_LOGITS_LATE",
                f"logits of shape {(*self._hidden.shape[:-1], self._module.out_features)} are read "
                f"after the {what} changed (version {version}, now {tensor._version}): read them "
                "before optimizer.step(), or use fuseboard.patch(model, deferred_logits=False)",
            )

    @contextlib.contextmanager
    def _modes(self) -> Iterator[None]:
        """Grad, inference and autocast mode of the moment the logits were asked for."""
        with (
            torch.inference_mode(self._inference),
            torch.set_grad_enabled(self._grad_enabled),
            self._autocast.enter(),
        ):
            yield


def _call(
    operation: HeadOperation,
    request: LossRequest,
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    handle: int,
) -> torch.Tensor:
    loss: torch.Tensor = operation.operators.fused_linear_cross_entropy(
        rows,
        weight,
        bias,
        request.target,
        request.class_weight,
        None,
        request.ignore_index,
        request.label_smoothing,
        request.softcap,
        request.logit_scale,
        0.0,
        False,
        _REDUCTIONS[request.reduction],
        operation.dweight_dtype,
        operation.chunk_bytes,
        handle,
    )[0]
    return loss


def _may_defer(head: nn.Linear, hidden: Any) -> bool:
    weight = head.weight
    if type(hidden) not in _PLAIN or type(weight) not in _PLAIN:
        return False  # DTensor, fake, functional, quantised
    if hidden.dim() == 0 or hidden.numel() == 0 or hidden.device != weight.device:
        return False
    if hidden.shape[-1] != weight.shape[1] or hidden.dtype not in _DTYPES:
        return False
    if hidden.dtype != weight.dtype and not torch.is_autocast_enabled(hidden.device.type):
        return False
    return not _is_traced() and not _is_hooked(head)


def _is_traced() -> bool:
    """jit tracing, functorch transforms, forward-mode gradients."""
    return (
        torch._C._is_tracing()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def _is_hooked(head: nn.Module) -> bool:
    """Whether someone watches the head's inputs, outputs or gradients."""
    if head._backward_hooks or head._backward_pre_hooks:
        return True
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return True
    hooks = (*head._forward_hooks.values(), *head._forward_pre_hooks.values())
    return not all(_hook_module(hook).startswith(_SHARDING_HOOKS) for hook in hooks)


def _hook_module(hook: Any) -> str:
    return getattr(getattr(hook, "func", hook), "__module__", "") or ""


def _version(tensor: torch.Tensor) -> int | None:
    """Tensors made in inference mode have no version and cannot change afterwards."""
    return None if tensor.is_inference() else tensor._version
