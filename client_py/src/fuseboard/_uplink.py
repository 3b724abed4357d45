"""A session's line to the daemon: one shared connection, a thread that listens, a thread that tells.

Also the calls that `patch` makes once, at start, on the caller's thread.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

from fuseboard import _messages
from fuseboard._channel import Connection
from fuseboard._errors import FuseboardError
from fuseboard._follower import PlanFollower
from fuseboard._measure import Window
from fuseboard._messages import Request
from fuseboard._plan import Plan
from fuseboard._reporter import Acknowledgement, Reporter
from fuseboard._session import Session

_log = logging.getLogger("fuseboard")
DEFAULT_LIVENESS_S = 30.0
_REGISTER_DEADLINE_S = 5.0
_REPORT_DEADLINE_S = 5.0
# What threads need to notice that their calls were cancelled, on a busy machine.
_CUT_S = 0.3


def resolve(connection: Connection, request: Request, timeout_s: float) -> tuple[Plan, float]:
    """Asks for a plan; returns it with the daemon's liveness window in seconds.

    Raises:
        DaemonUnreachable, FuseboardError: As `Connection.call`; BAD_PLAN.
    """
    reply = connection.call(
        "Resolver/Resolve", _messages.request_to_wire(request), "ResolveResponse", timeout_s
    )
    plan = _messages.plan_from_wire(reply.plan, request.sites)
    return plan, reply.liveness_seconds or DEFAULT_LIVENESS_S


def operations(connection: Connection, timeout_s: float) -> tuple[str, ...]:
    """Names of all operations that the daemon knows. Raises as `Connection.call`."""
    request = _messages.message("ListKernelsRequest")()
    reply = connection.call("Catalog/ListKernels", request, "ListKernelsResponse", timeout_s)
    return tuple(sorted({kernel.operation for kernel in reply.kernels}))


class SharedConnections:
    """The process's connections by address: sessions with the same daemon share one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open: dict[str, tuple[Connection, int]] = {}

    def acquire(self, address: str) -> Connection:
        """A connection; give it back with `release`. Raises as `Connection`."""
        with self._lock:
            connection, users = self._open.get(address) or (Connection(address), 0)
            self._open[address] = (connection, users + 1)
            return connection

    def release(self, connection: Connection) -> None:
        """Gives one back; the last user's closes it, cancelling what is still under way."""
        with self._lock:
            for address, (candidate, users) in list(self._open.items()):
                if candidate is connection:
                    self._open[address] = (connection, users - 1)
                    if users == 1:
                        del self._open[address]
                        connection.close()

    def forget(self) -> None:
        """In a forked child: lets go of all."""
        self._lock = threading.RLock()
        for connection, _ in self._open.values():
            connection.forget()
        self._open = {}


class Uplink:
    """Follows the daemon for a session and reports on it, from `start` to `stop`.

    Args:
        connections: Where the connection came from.
        connection: Acquired there; given back when the threads end.
        session: The session.
        live: Whether plans are followed, or only progress is reported.
        liveness_s: The daemon's liveness window.
    """

    def __init__(
        self,
        connections: SharedConnections,
        connection: Connection,
        session: Session,
        live: bool,
        liveness_s: float,
    ) -> None:
        self.live = live
        self.address = "unix:" + connection.path
        self._connections = connections
        self._connection = connection
        self._session = session
        self._follower = PlanFollower(
            connection, session.watch_request, session.receive, session.acknowledge_in_force
        )
        self._reporter = Reporter(
            connection,
            session.request.job.instance_id,
            session.progress,
            self._introduce_again,
            self._hang_up,
            liveness_s,
        )

    @property
    def problem(self) -> str:
        """Why the daemon is not in touch now, or empty."""
        return "" if self._reporter.connected else self._follower.problem

    def start(self) -> None:
        """Starts the threads."""
        self._reporter.start()
        if self.live:
            self._follower.start()

    def acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Leaves a note for the daemon; returns at once."""
        self._reporter.acknowledge(acknowledgement)

    def ask_again(self) -> None:
        """Has the plan asked for anew in the background; returns at once."""
        self._reporter.post(self._follower.restart)

    def report_window(self, window: Window, device_name: str) -> None:
        """Has a measuring window reported in the background; returns at once."""
        job = self._session.request.job
        request = _messages.message("ReportWindowRequest")(
            instance_id=job.instance_id,
            job_name=job.name,
            rank=job.rank,
            window=_messages.window_to_wire(window),
            device_name=device_name,
        )
        self._reporter.post(lambda: self._send_window(request))

    def explain(self, timeout_s: float) -> Any:
        """The ExplainResponse for the session's request. Raises as `Connection.call`."""
        request = _messages.message("ExplainRequest")(
            request=_messages.request_to_wire(self._session.request)
        )
        return self._connection.call("Resolver/Explain", request, "ExplainResponse", timeout_s)

    def stop(self) -> None:
        """Asks both threads to say good-bye and end; does not wait."""
        self._follower.stop()
        self._reporter.stop()

    def finish(self, deadline: float) -> None:
        """After `stop`: waits until `deadline` (monotonic), then cuts the connection."""
        if not self._reporter.join(deadline - time.monotonic()):
            self._connection.close()
            self._reporter.join(_CUT_S)
        self._follower.join(_CUT_S)

    def _send_window(self, request: Any) -> None:
        try:
            self._connection.call(
                "Profile/ReportWindow", request, "ReportWindowResponse", _REPORT_DEADLINE_S
            )
        except FuseboardError as error:
            _log.warning("a measuring window could not be reported: %s", error)

    def _hang_up(self) -> None:
        self._connections.release(self._connection)

    def _introduce_again(self) -> None:
        """The daemon restarted and does not know us: send everything once more."""
        if self.live:
            self._follower.restart_if_settled()
            return
        with contextlib.suppress(FuseboardError):
            resolve(self._connection, self._session.request, _REGISTER_DEADLINE_S)
            self._session.acknowledge_in_force()
