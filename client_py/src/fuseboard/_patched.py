"""The handle that `patch` returns."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from fuseboard import _report
from fuseboard._registry import registry
from fuseboard._session import Session

if TYPE_CHECKING:
    from typing_extensions import Self

    from fuseboard._measure import Window


class Patched:
    """A handle on a patched model; a context manager that unpatches at its end.

    Attributes:
        problem: Why everything runs native, or empty.
    """

    def __init__(self, session: Session | None, problem: str = "") -> None:
        self._session = session
        self.problem = problem

    def unpatch(self) -> None:
        """Gives the model its own code back. May be called twice."""
        if self._session is not None:
            registry.remove(self._session)

    def report(self) -> _report.Report:
        """As `fuseboard.report`, of this model."""
        return _report.describe(self._session, self.problem)

    def state(self) -> dict[str, Any]:
        """As `fuseboard.state`, of this model."""
        return _report.state_of(self._session, self.problem)

    def step(self) -> None:
        """As `fuseboard.step`, of this model."""
        if self._session is not None:
            self._session.mark()

    def window(self, steps: int = 5, *, warmup: int = 3) -> None:
        """Measures the steps to come; the window then stands in `report` and at the daemon.

        Args:
            steps: Steps in which launches (GPU) or operators (CPU) are counted; they run slower.
            warmup: Steps before them, without instruments, whose time is taken.

        Raises:
            ValueError: A number of steps that is out of range.
        """
        if self._session is not None:
            self._session.measure(steps, warmup)

    def add_window(self, window: Window, device_name: str) -> None:
        """Takes a window that was measured elsewhere into `report` and to the daemon."""
        if self._session is not None:
            self._session.add_window(window, device_name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.unpatch()


def session_of(handle: Patched) -> Session | None:
    """What follows the daemon for a handle's model, or None."""
    return handle._session
