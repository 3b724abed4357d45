"""The thread that tells the daemon how one session is doing.

It acknowledges plans and reports progress as a sign of life. The training thread only leaves notes
(`acknowledge`); every call to the daemon is made here, has a deadline, and may fail without effect.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from fuseboard import _messages
from fuseboard._backoff import Backoff
from fuseboard._channel import Connection
from fuseboard._errors import DaemonUnreachable, FuseboardError
from fuseboard._plan import OperationCounter, SiteRefusal

_log = logging.getLogger("fuseboard")
_CALL_DEADLINE_S = 5.0
_LEAVING_DEADLINE_S = 0.5
# So many silent deadlines in a row, and the process behind the socket is given up: it may be a stopped
# predecessor of the one that listens there now.
_SILENT_CALLS = 3
# Notes kept while the daemon is away; the oldest go first.
_MOST_PENDING = 16


@dataclasses.dataclass(frozen=True)
class Acknowledgement:
    """What became of a plan; fields as in `resolver.proto`."""

    revision: int
    store_id: str
    applied_step: int
    applied_at_us: int
    error: str = ""
    refusals: tuple[SiteRefusal, ...] = ()


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where training is; fields as in `resolver.proto`."""

    step: int
    counters: tuple[OperationCounter, ...]


class Reporter:
    """Reports from `start` to `stop`.

    Args:
        connection: The channel.
        instance_id: Who reports.
        progress: Says where training is. Called on this thread.
        unknown: Called when the daemon does not know this process: it must be registered again.
        ended: Called when the thread is about to end.
        liveness_s: Silence after which the daemon counts this process as gone.
    """

    def __init__(
        self,
        connection: Connection,
        instance_id: str,
        progress: Callable[[], Progress],
        unknown: Callable[[], None],
        ended: Callable[[], None],
        liveness_s: float,
    ) -> None:
        self._connection = connection
        self._instance_id = instance_id
        self._progress = progress
        self._unknown = unknown
        self._ended = ended
        self._changed = threading.Condition()
        # A third of the window: two reports may be lost before the daemon gives this process up.
        self._period_s = min(max(liveness_s, 1.0), 3600.0) / 3
        self._pending: list[Acknowledgement] = []
        self._retry_at = 0.0
        self._actions: list[Callable[[], None]] = []
        self._stopping = False
        self._silent_calls = 0
        self._backoff = Backoff()
        self._thread = threading.Thread(target=self._run, name="fuseboard-report", daemon=True)
        self.connected = False

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Leaves a note about a plan. Returns at once; callable from the training thread."""
        with self._changed:
            if acknowledgement not in self._pending:
                self._pending = [*self._pending[1 - _MOST_PENDING :], acknowledgement]
            self._retry_at = 0.0
            self._changed.notify()

    def post(self, action: Callable[[], None]) -> None:
        """Has `action` run on this thread soon. Returns at once; callable from the training thread."""
        with self._changed:
            self._actions.append(action)
            self._changed.notify()

    def stop(self) -> None:
        """Asks the thread to say good-bye and end; does not wait."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def join(self, timeout_s: float) -> bool:
        """Waits for the thread to end; returns whether it did."""
        if self._thread is not threading.current_thread():
            self._thread.join(max(timeout_s, 0.0))
        return not self._thread.is_alive()

    def _run(self) -> None:
        report_at = time.monotonic() + self._period_s
        while self._wait_until(report_at):
            self._run_actions()
            self._send_acknowledgements()
            if time.monotonic() >= report_at:
                self._report(leaving=False, deadline_s=_CALL_DEADLINE_S)
                report_at = time.monotonic() + self._period_s
        self._run_actions()  # A window that ended just before the process does must not be lost.
        self._send_acknowledgements(_LEAVING_DEADLINE_S)
        self._report(leaving=True, deadline_s=_LEAVING_DEADLINE_S)
        self._ended()

    def _wait_until(self, report_at: float) -> bool:
        """Waits for the next thing to do; returns False when it is to end."""
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                due = min(report_at, self._retry_at) if self._pending else report_at
                if due <= now or self._actions:
                    return True
                self._changed.wait(due - now)
            return False

    def _run_actions(self) -> None:
        with self._changed:
            actions, self._actions = self._actions, []
        for action in actions:
            action()

    def _send_acknowledgements(self, deadline_s: float = _CALL_DEADLINE_S) -> None:
        with self._changed:
            pending = list(self._pending)
        for acknowledgement in pending:
            if not self._send(acknowledgement, deadline_s):
                with self._changed:
                    self._retry_at = time.monotonic() + self._backoff.delay_s()
                return
            with self._changed:
                self._pending = [p for p in self._pending if p is not acknowledgement]
        self._backoff.reset()

    def _send(self, acknowledgement: Acknowledgement, deadline_s: float) -> bool:
        """Sends one; returns whether it is done with."""
        request = _messages.acknowledgement_to_wire(self._instance_id, acknowledgement)
        try:
            self._call("Resolver/AckPlan", request, "AckPlanResponse", deadline_s)
        except DaemonUnreachable:
            return False
        except FuseboardError as error:
            if error.code in ("UNKNOWN_INSTANCE", "NOT_FOUND", "BAD_REPLY"):
                return False  # A stream that is being opened again is about to introduce us.
            _log.warning("plan %d: acknowledgement refused: %s", acknowledgement.revision, error)
        return True

    def _report(self, leaving: bool, deadline_s: float) -> None:
        try:
            progress = self._progress()
            reply = self._call(
                "Resolver/ReportProgress",
                _messages.message("ReportProgressRequest")(
                    instance_id=self._instance_id,
                    step=progress.step,
                    counters=_messages.counters_to_wire(progress.counters),
                    leaving=leaving,
                ),
                "ReportProgressResponse",
                deadline_s,
            )
        except FuseboardError:
            return
        except Exception as error:  # noqa: BLE001
            # A fault of ours must not end the signs of life.
            _log.warning("reporting progress failed: %s: %s", type(error).__name__, error)
            return
        if reply.unknown_instance and not leaving:
            self._unknown()

    def _call(self, method: str, request: Any, reply: str, deadline_s: float) -> Any:
        try:
            result = self._connection.call(method, request, reply, deadline_s)
        except FuseboardError as error:
            if isinstance(error, DaemonUnreachable):
                self._count_silence(error)
            if isinstance(error, DaemonUnreachable) or error.code == "BAD_REPLY":
                self.connected = False
            raise
        self.connected = True
        self._silent_calls = 0
        return result

    def _count_silence(self, error: DaemonUnreachable) -> None:
        if error.code != "DEADLINE_EXCEEDED" or self._stopping:
            return
        self._silent_calls += 1
        if self._silent_calls >= _SILENT_CALLS:
            self._silent_calls = 0
            self._connection.renew()
