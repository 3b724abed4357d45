"""Binds what a plan decides to the modules of one model, and undoes it.

The owner calls `sites`, sends them to the daemon, calls `prepare` with each plan that comes back (any
thread) and `apply` with the result (training thread, between two steps: `StepBoundary`). Nothing
outside the given model changes.
"""

from __future__ import annotations

import dataclasses

from torch import nn

from fuseboard._plan import Plan, Site, SiteRefusal


@dataclasses.dataclass(frozen=True)
class PreparedPlan:
    """A plan whose libraries are open, verified and loaded on the model's devices."""

    plan: Plan


class ModelPatcher:
    """Switches the sites of one model between its own code and the daemon's kernels."""

    def __init__(self, model: nn.Module, *, deferred_logits: bool = True) -> None:
        """Changes nothing yet.

        Args:
            model: The root. Held weakly: the patcher does not keep a model alive.
            deferred_logits: False leaves every output projection native.
        """
        raise NotImplementedError

    def sites(self) -> tuple[Site, ...]:
        """What to ask the daemon about: the groups of like modules, in order of appearance."""
        raise NotImplementedError

    def prepare(self, plan: Plan) -> PreparedPlan:
        """Opens, verifies and loads everything that `plan` needs. Callable from any thread.

        Raises:
            ArtifactError: A library is missing, differs from its digest, or does not load. Nothing
                changed.
        """
        raise NotImplementedError

    def apply(self, prepared: PreparedPlan) -> tuple[SiteRefusal, ...]:
        """Puts the plan in force: all of it, or (if this raises) nothing.

        Call it on the training thread, between two steps.

        Returns:
            Sites, or parts of them, that could not be bound as decided and run native, with why.
        """
        raise NotImplementedError

    def refusals(self) -> tuple[SiteRefusal, ...]:
        """What `apply` returned last, and what the comparison at first use turned native since."""
        raise NotImplementedError

    def restore(self) -> None:
        """Gives every module exactly the forward it had. May be called twice."""
        raise NotImplementedError
