"""The plan that a model runs, and the one that waits to take its place."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from fuseboard._plan import Plan, SiteRefusal


@dataclasses.dataclass(frozen=True)
class InForce:
    """The plan that the model runs, and since when.

    Attributes:
        plan: What is bound. Its revision is the daemon's newest that was dealt with.
        step: The step before which it was applied.
        at_us: Wall-clock time of that, microseconds since the Unix epoch.
        refusals: Sites that could not be bound as decided and run native, with why.
        kept: Sites that keep what they ran before although the daemon decided otherwise, with why.
        error: Why the daemon's plan could not be applied at all, or empty.
    """

    plan: Plan
    step: int = 0
    at_us: int = 0
    refusals: tuple[SiteRefusal, ...] = ()
    kept: tuple[SiteRefusal, ...] = ()
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Offer:
    """A plan that is prepared and waits for the next step boundary."""

    plan: Plan
    prepared: Any
    kept: tuple[SiteRefusal, ...] = ()


def have_same_effect(one: Plan, other: Plan) -> bool:
    """Whether two plans bind the same."""
    return one.decisions == other.decisions and one.artifacts == other.artifacts


def now_us() -> int:
    """Wall-clock time, microseconds since the Unix epoch."""
    return time.time_ns() // 1000
