"""When measuring windows open and close: arithmetic on step numbers, nothing else."""

from __future__ import annotations

import dataclasses
import enum


class Phase(enum.Enum):
    """What a step is to the windows."""

    IDLE = "idle"
    WARMUP = "warmup"
    ACTIVE = "active"


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Windows as a rhythm of steps: `skip` once, then `wait`, `warmup`, `active` again and again.

    Example:
        >>> Schedule(skip=2, wait=1, warmup=1, active=3).first_active
        4

    Attributes:
        active: Steps of a window: they run with instruments. At least 1.
        warmup: Steps directly before: they run without instruments and are timed.
        wait: Steps before those, left alone in each round.
        skip: Steps left alone once, at the start.
        repeat: Number of windows; 0: no end.
    """

    active: int = 5
    warmup: int = 1
    wait: int = 0
    skip: int = 0
    repeat: int = 1

    def __post_init__(self) -> None:
        for field, least in (("active", 1), ("warmup", 0), ("wait", 0), ("skip", 0), ("repeat", 0)):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{field} is {value!r}, want an integer of at least {least}")

    @property
    def first_active(self) -> int:
        """The first step that a window records."""
        return self.skip + self.wait + self.warmup

    @property
    def round_steps(self) -> int:
        """Steps from one window's begin to the next one's."""
        return self.wait + self.warmup + self.active

    def phase(self, step: int) -> Phase:
        """What `step` (from 0) is."""
        since = step - self.skip
        if since < 0 or (self.repeat and since >= self.repeat * self.round_steps):
            return Phase.IDLE
        position = since % self.round_steps
        if position < self.wait:
            return Phase.IDLE
        return Phase.WARMUP if position < self.wait + self.warmup else Phase.ACTIVE

    def begins(self, step: int) -> bool:
        """Whether a round's first warm-up step (without warm-up: first active step) is `step`."""
        in_round = self.phase(step) is not Phase.IDLE
        return in_round and (step - self.skip) % self.round_steps == self.wait

    def completed(self, steps: int) -> int:
        """Windows that `steps` steps complete."""
        done = max(steps - self.skip, 0) // self.round_steps
        return min(done, self.repeat) if self.repeat else done
