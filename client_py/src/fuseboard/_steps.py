"""Finds the moments between two training steps at which a plan may be switched.

A StepBoundary watches one root module. It calls back before the first forward of the root and before
each forward of the root that follows an optimizer step, never while a backward runs: so forward,
backward, checkpoint recompute and all micro-batches of one step see one plan.

Where the forward of the root cannot be seen, because it lies inside a compiled function, the callback
comes at the end of the next optimizer step instead, which lies between two steps as well.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

_log = logging.getLogger("fuseboard")


class StepBoundary:
    """Calls `on_boundary` between steps of `model`. All of it runs on the training thread.

    A step ends with the first optimizer step after a forward; further optimizers that step before the
    next forward belong to the same step. A skipped optimizer step (GradScaler) ends nothing.

    Attributes:
        step: Completed steps: rounds of optimizer steps, or `mark` calls.
    """

    def __init__(self, model: nn.Module, on_boundary: Callable[[int], None]) -> None:
        """Hooks `model`, and listens to torch's optimizers; both are held weakly.

        Args:
            model: The root, as the training loop calls it.
            on_boundary: Gets `step`. What it raises is logged and goes no further.
        """
        self.step = 0
        self._model = weakref.ref(model)
        self._on_boundary = on_boundary
        self._pending = True
        self._explicit = False
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._ours: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._undisturbed = torch.compiler.disable(self._before_forward)  # type: ignore[no-untyped-call]
        self._handles: list[Any] = [model.register_forward_pre_hook(_PreHook(self))]
        _boundaries.add(self)
        weakref.finalize(model, _remove, self._handles).atexit = False

    def mark(self) -> None:
        """Ends a step explicitly and calls back at once. From then on only `mark` counts steps."""
        counted = not self._explicit and self._pending and self.step > 0
        self._explicit = True
        if not counted:
            self.step += 1
        self._pending = True
        self._reach()

    def close(self) -> None:
        """Watches nothing any more. May be called twice."""
        _boundaries.discard(self)
        _remove(self._handles)
        self._on_boundary = _nothing

    def _before_forward(self) -> None:
        if self._pending:
            self._reach()
        self._stepped.clear()

    def _after_optimizer(self, optimizer: Optimizer) -> None:
        if self._explicit or not self._steps_model(optimizer):
            return
        unseen = self._pending and optimizer in self._stepped
        if not self._stepped or unseen:
            self.step += 1
            self._stepped.clear()
        self._stepped.add(optimizer)
        self._pending = True
        if unseen:
            self._reach()
            self._pending = True

    def _reach(self) -> None:
        """Calls back unless a backward runs on this thread (an optimizer may step within one)."""
        if torch._C._current_graph_task_id() != -1:
            return
        self._pending = False
        try:
            self._on_boundary(self.step)
        except Exception:  # noqa: BLE001  Training must not stop because of us.
            _log.exception("fuseboard: switching before step %d failed", self.step)

    def _steps_model(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer holds a parameter of the model. A yes is remembered."""
        if optimizer in self._ours:
            return True
        model = self._model()
        if model is None:
            return False
        ours = {id(p) for p in model.parameters()}
        for group in optimizer.param_groups:
            if any(id(p) in ours for p in group["params"]):
                self._ours.add(optimizer)
                return True
        return False


class _PreHook:
    """The root's forward pre-hook.

    NOTE: copied or pickled with the model, it turns into a hook that does nothing.
    """

    def __init__(self, boundary: StepBoundary | None) -> None:
        self._boundary = _reference(boundary)

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling():
            return  # Inlined into a compiled function: _after_optimizer sees to it.
        boundary = self._boundary()
        if boundary is not None:
            boundary._undisturbed()

    def __deepcopy__(self, memo: object) -> _PreHook:
        return _PreHook(None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _PreHook, (None,)


def _reference(boundary: StepBoundary | None) -> Callable[[], StepBoundary | None]:
    return _nobody if boundary is None else weakref.ref(boundary)


def _nobody() -> None:
    return None


def _nothing(step: int) -> None:
    del step


def _remove(handles: list[Any]) -> None:
    while handles:
        handles.pop().remove()


_boundaries: weakref.WeakSet[StepBoundary] = weakref.WeakSet()


def _after_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
    for boundary in list(_boundaries):
        boundary._after_optimizer(optimizer)


# NOTE: for life, and from the import on. torch iterates over its hooks while they run, so one that is
# added or removed meanwhile (a model may be collected at any moment) would end that optimizer's step
# with an exception.
register_optimizer_step_post_hook(_after_step)
