"""The thread that follows the daemon's plan for one session.

It holds the WatchPlan stream and hands each plan to the session, which prepares it on this thread. It
reconnects for ever and never raises: a daemon that is gone, hung, restarted or talks nonsense costs the
training process nothing but this thread's sleep.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from fuseboard._backoff import Backoff
from fuseboard._channel import Connection, Stream
from fuseboard._errors import FuseboardError

_log = logging.getLogger("fuseboard")
_SETTLING_S = 2.0


class PlanFollower:
    """Follows plans from `start` to `stop`.

    Args:
        connection: The channel.
        request: Makes the WatchPlanRequest of the moment, with the plan known by then.
        receive: Gets each WatchPlanResponse. FuseboardError means that the stream talks nonsense.
        reopened: Called when a stream is opened again: the daemon may not know this process any more.
    """

    def __init__(
        self,
        connection: Connection,
        request: Callable[[], Any],
        receive: Callable[[Any], None],
        reopened: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._request = request
        self._receive = receive
        self._reopened = reopened
        self._stopping = threading.Event()
        self._stream: Stream | None = None
        self._opened_at = 0.0
        self._opened_before = False
        self._restarting = False
        self._thread = threading.Thread(target=self._run, name="fuseboard-watch", daemon=True)
        self.problem = ""

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def restart(self) -> None:
        """Opens the stream anew, now."""
        self._restarting = True
        self._cancel()

    def restart_if_settled(self) -> None:
        """Opens the stream anew, unless that has just happened and is still on its way."""
        if time.monotonic() - self._opened_at > _SETTLING_S:
            self.restart()

    def stop(self) -> None:
        """Asks the thread to end; does not wait."""
        self._stopping.set()
        self._cancel()

    def join(self, timeout_s: float) -> None:
        """Waits for the thread to end."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(max(timeout_s, 0.0))

    def _cancel(self) -> None:
        stream = self._stream
        if stream is not None:
            stream.cancel()

    def _run(self) -> None:
        backoff = Backoff()
        while not self._stopping.is_set():
            try:
                self._follow_once(backoff)
                problem = "the daemon ended the stream"
            except FuseboardError as error:
                problem = str(error)
            except Exception as error:  # noqa: BLE001
                # Training must not lose its switch to a fault of ours.
                problem = f"{type(error).__name__}: {error}"
            if self._restarting:
                self._restarting = False
                continue
            self._note(problem)
            if self._stopping.wait(backoff.delay_s()):
                return

    def _follow_once(self, backoff: Backoff) -> None:
        stream = self._connection.watch("Resolver/WatchPlan", self._request(), "WatchPlanResponse")
        self._stream = stream
        self._opened_at = time.monotonic()
        if self._opened_before:
            self._reopened()
        self._opened_before = True
        if self._stopping.is_set():  # `stop` may have looked for a stream a moment too early.
            stream.cancel()
        for reply in stream:
            self._receive(reply)
            backoff.reset()
            self.problem = ""

    def _note(self, problem: str) -> None:
        """Keeps what is wrong; says it once per outage, not at each of its many tries."""
        if not self.problem and not self._stopping.is_set():
            _log.warning("the plan in force stays, trying to reach the daemon: %s", problem)
        self.problem = problem
