"""Computes the loss or the logits of one deferred call of an output projection.

Both computations go through the projection's own __call__, so that hooks which gather a sharded weight
run around them; the request travels beside that call, in a thread-local variable. Under fully_shard,
whose hooks know nothing of a second call, the weight is gathered here instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator

import torch
from torch import nn

from fuseboard import _agreement
from fuseboard._autocast import Autocast
from fuseboard._bound import BoundForward
from fuseboard._errors import DeferredLogitsError
from fuseboard._logits_source import LossRequest
from fuseboard._loss_operation import LossOperation
from fuseboard._sharding import Shards
from fuseboard._staleness import Snapshot, version


@dataclasses.dataclass
class Entry:
    """What a call of `module` is to compute instead of deferring."""

    module: nn.Module
    compute: Callable[[BoundForward, torch.Tensor], torch.Tensor]
    handled: bool = False


_entered = threading.local()


def take_entry(module: nn.Module) -> Entry | None:
    """The request that came with this call of `module`, once."""
    entry: Entry | None = getattr(_entered, "entry", None)
    if entry is None or entry.module is not module:
        return None
    _entered.entry = None
    entry.handled = True
    return entry


class HeadSource:
    """The LogitsSource of one call of a head."""

    def __init__(
        self,
        operation: LossOperation,
        module: nn.Linear,
        inputs: tuple[torch.Tensor, ...],
        autocast: Autocast,
        shards: Shards | None,
    ) -> None:
        """Keeps all of them.

        Args:
            operation: The fused loss.
            module: The head.
            inputs: Hidden states, weight and, if there is one, bias.
            autocast: Of the call.
            shards: How the head is sharded.
        """
        self._operation = operation
        self._module = module
        self._inputs = inputs
        self._autocast = autocast
        self._shards = shards
        self._grad_enabled = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        # FullyShardedDataParallel and functional_call put plain tensors in a parameter's place while
        # the forward runs: those are what the graph leads to, not what the module holds afterwards.
        self._are_views = not isinstance(inputs[1], nn.Parameter)
        self._hidden_version = version(inputs[0])
        self._weights_then = (
            Snapshot(inputs[1:])
            if shards is None
            else Snapshot((*inputs[1:], *shards.parameters), movable=True)
        )
        self._name = _name_call(module) if shards else ""
        self._reads = itertools.count(1)

    def logits(self) -> torch.Tensor:
        """All logits; without a graph if the weight had to be gathered for them."""
        whole = self._shards is None or self._shards.are_whole()
        with (
            self._gathered("logits"),
            self._modes(),
            torch.set_grad_enabled(whole and self._grad_enabled),
        ):
            if self._are_views:
                return nn.functional.linear(*self._inputs)
            return self._enter(self._inputs[0], lambda bound, hidden: bound.native(hidden))[0]

    def loss(self, request: LossRequest) -> torch.Tensor | None:
        """The loss in float32, or None if the head was given back its own forward meanwhile."""
        cut = self._shards if self._shards is not None and not self._shards.are_whole() else None
        with self._gathered("loss"):
            result, handled = self._enter(
                request.rows, lambda _, rows: self._fused(dataclasses.replace(request, rows=rows))
            )
        if cut is not None and result.requires_grad:
            _gather_before_backward(result, cut)
        return result if handled else None

    def gradients(
        self, grad: torch.Tensor, needed: tuple[bool, ...]
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients of hidden states, weight and bias."""
        self._check_unchanged()
        if self._shards is not None and not self._shards.are_whole():
            self._shards.gather()
        inputs = [t.detach().requires_grad_(n) for t, n in zip(self._inputs, needed, strict=True)]
        with torch.enable_grad(), self._autocast.enter():
            logits = nn.functional.linear(*inputs)
        wanted = [t for t in inputs if t.requires_grad]
        found = iter(torch.autograd.grad(logits, wanted, grad))
        return tuple(next(found) if n else None for n in needed)

    def obstacle(self) -> str:
        """Why this process alone cannot compute the logits now, or ""."""
        if self._shards is not None and not self._shards.are_whole():
            return self._change() or "the weights of the head are sharded"
        return self._change()

    def _fused(self, request: LossRequest) -> torch.Tensor:
        cast = self._autocast.cast
        weight, *bias = self._held()
        return self._operation.loss(
            request, cast(request.rows), cast(weight), cast(bias[0]) if bias else None
        )

    def _held(self) -> tuple[torch.Tensor, ...]:
        """Weight and, if there is one, bias."""
        if self._are_views:
            return self._inputs[1:]
        return tuple(p for p in (self._module.weight, self._module.bias) if p is not None)

    def _enter(
        self, hidden: torch.Tensor, compute: Callable[[BoundForward, torch.Tensor], torch.Tensor]
    ) -> tuple[torch.Tensor, bool]:
        """Calls the head and has its bound forward run `compute`."""

        def checked(bound: BoundForward, rows: torch.Tensor) -> torch.Tensor:
            self._check_unchanged()
            return compute(bound, rows)

        call = self._module if self._shards is None else self._module.forward
        entry = Entry(self._module, checked)
        _entered.entry = entry
        try:
            result: torch.Tensor = call(hidden)
        finally:
            _entered.entry = None
        return result, entry.handled

    @contextlib.contextmanager
    def _gathered(self, what: str) -> Iterator[None]:
        """Has the weight whole inside, if all ranks come along."""
        self._check_unchanged()
        shards = self._shards
        if shards is None or shards.are_whole():
            yield
            return
        question = f"{self._name}/{what} {next(self._reads)}"
        if not shards.in_forward():
            for group in shards.groups():
                if not _agreement.all_ask(group, question):
                    raise self._error(
                        "of a sharded head are read here and not on all the other ranks, which "
                        f"would have to help to gather its weight (waited {_agreement.WAIT_S:.0f} s)",
                        "read them on all ranks or before the backward",
                    )
        with shards.gathered():
            yield

    def _check_unchanged(self) -> None:
        change = self._change()
        if change:
            when = "the backward" if self._are_views else "optimizer.step()"
            raise self._error(f"are read after {change}", f"read them before {when}")

    def _change(self) -> str:
        now = version(self._inputs[0])
        if now != self._hidden_version:
            return f"the hidden states changed (version {self._hidden_version}, now {now})"
        how = self._weights_then.change() or self._replaced()
        return f"the weights of the head changed ({how})" if how else ""

    def _replaced(self) -> str:
        if self._shards is not None and not self._shards.are_whole():
            return ""
        held = self._held()
        same = len(held) == len(self._inputs) - 1
        same = same and all(a is b for a, b in zip(held, self._inputs[1:], strict=True))
        return "" if same else "others took their place"

    def _error(self, problem: str, advice: str) -> DeferredLogitsError:
        shape = (*self._inputs[0].shape[:-1], self._inputs[1].shape[0])
        return DeferredLogitsError(
            "DEFERRED_LOGITS_LATE",
            f"logits of shape {shape} {problem}: {advice}, or use "
            "fuseboard.patch(model, deferred_logits=False)",
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


def _gather_before_backward(result: torch.Tensor, shards: Shards) -> None:
    """Before fully_shard's own hook, which stands at the logits and so comes too late."""

    def gather(grad: torch.Tensor) -> None:
        shards.gather()

    result.register_hook(gather)  # type: ignore[no-untyped-call]


_numbers = itertools.count(1)
_calls: weakref.WeakKeyDictionary[nn.Module, tuple[int, Iterator[int]]] = (
    weakref.WeakKeyDictionary()
)


def _name_call(head: nn.Module) -> str:
    """A name for a call of a sharded head. All ranks call it alike, and so get the same names."""
    if head not in _calls:
        _calls[head] = next(_numbers), itertools.count(1)
    number, calls = _calls[head]
    return f"head {number}/call {next(calls)}"
