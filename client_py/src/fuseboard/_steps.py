"""Finds the moments between two training steps at which a plan may be switched.

A StepBoundary watches one root module. It calls back before the first forward of the root and before
each forward of the root that follows an optimizer step, never while a backward runs: so forward,
backward, checkpoint recompute and all micro-batches of one step see one plan.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


class StepBoundary:
    """Calls `on_boundary` between steps of `model`. All of it runs on the training thread.

    Attributes:
        step: Completed steps: rounds of optimizer steps, or `mark` calls.
    """

    step: int

    def __init__(self, model: nn.Module, on_boundary: Callable[[int], None]) -> None:
        """Hooks `model` and torch's optimizers; both are held weakly.

        Args:
            model: The root, as the training loop calls it.
            on_boundary: Gets `step`. What it raises is logged and goes no further.
        """
        raise NotImplementedError

    def mark(self) -> None:
        """Ends a step explicitly and calls back at once. From then on only `mark` counts steps."""
        raise NotImplementedError

    def close(self) -> None:
        """Removes all hooks. May be called twice."""
        raise NotImplementedError
