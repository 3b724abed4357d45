"""The measuring windows of one patched model: the one that is open, and those that are finished."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fuseboard._environment import Environment
from fuseboard._measure import Variant, Window
from fuseboard._schedule import Schedule

# Windows that are kept; the oldest go first.
_MOST_KEPT = 64


class SessionWindows:
    """Opens and closes on the training thread; takes finished windows from any thread."""

    def __init__(
        self, revision: Callable[[], int], on_window: Callable[[Window, str], None]
    ) -> None:
        """Measures nothing yet.

        Args:
            revision: The plan in force.
            on_window: Gets each finished window and the name of the device.
        """
        self._revision = revision
        self._on_window = on_window
        # Re-entrant: a garbage collection inside a guarded block may end a session.
        self._lock = threading.RLock()
        self._open: Any = None
        self._finished: tuple[Window, ...] = ()

    @property
    def finished(self) -> tuple[Window, ...]:
        """Finished windows, oldest first."""
        return self._finished

    def measure(self, steps: int, warmup: int, variant: Variant, environment: Environment) -> None:
        """Opens a window over the next steps; one that is open already ends unfinished.

        Raises:
            ValueError: A number of steps that is out of range.
        """
        from fuseboard._profile import StepWindows

        schedule = Schedule(active=steps, warmup=warmup)
        self.close()
        self._open = StepWindows(
            schedule,
            variant,
            device_type=environment.device_type,
            revision=self._revision,
            on_window=lambda w: self.add(w, environment.gpu_name or "cpu"),
        )

    def boundary(self, step: int) -> None:
        """Ends the step that runs, if a window is open, and begins step `step`."""
        if self._open is not None:
            self._open.boundary(step)
            if self._open.finished:
                self._open = None

    def close(self) -> None:
        """Ends the open window unfinished."""
        window, self._open = self._open, None
        if window is not None:
            window.close()

    def add(self, window: Window, device_name: str) -> None:
        """Takes a finished window and hands it on."""
        with self._lock:
            self._finished = (*self._finished, window)[-_MOST_KEPT:]
        self._on_window(window, device_name)

    def after_fork(self) -> None:
        """In a forked child: whoever held the lock is not there."""
        self._lock = threading.RLock()
