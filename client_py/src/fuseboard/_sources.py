"""Where a window's counts come from: the seam between `_profile` and the two sources."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from fuseboard._measure import KernelCount, Method


class SourceError(Exception):
    """A source cannot count now; the text says why. Becomes the error of a window, never more."""


@dataclasses.dataclass(frozen=True)
class Counts:
    """What a source counted in one window.

    Attributes:
        launches: Per step; empty: not measured.
        device_ms: Per step; empty: not measured.
        copies: Per step; empty: not measured.
        kernels: Over the window, most frequent first.
        dropped_records: Records that were lost: the counts are then lower bounds.
        error: Why there is nothing, or why it is incomplete.
    """

    launches: tuple[int, ...] = ()
    device_ms: tuple[float, ...] = ()
    copies: tuple[int, ...] = ()
    kernels: tuple[KernelCount, ...] = ()
    dropped_records: int = 0
    error: str = ""


class Source(Protocol):
    """Counts what runs between `start` and `stop`. The caller has synchronised the device."""

    method: Method

    def start(self) -> None:
        """Begins to count.

        Raises:
            SourceError: It cannot, and why; nothing was begun.
        """

    def mark(self, step: int) -> None:
        """What runs from here on belongs to `step`.

        Raises:
            SourceError: Another profiler came. `abandon` must follow.
        """

    def stop(self) -> Counts:
        """Ends counting. Never raises: what went wrong stands in the result."""

    def abandon(self) -> None:
        """Ends counting and forgets. Never raises."""
