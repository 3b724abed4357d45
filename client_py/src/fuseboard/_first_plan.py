"""The plan that a model begins with: finding a daemon and asking it, while `patch` waits."""

from __future__ import annotations

import logging
import time

from fuseboard import _daemon, _options, _uplink
from fuseboard._channel import Connection
from fuseboard._errors import FuseboardError
from fuseboard._messages import Request
from fuseboard._options import Options
from fuseboard._plan import Plan, native_plan
from fuseboard._registry import registry

_log = logging.getLogger("fuseboard")


class FirstPlan:
    """The calls to the daemon that `patch` waits for, under one deadline.

    Attributes:
        connection: To the daemon, also where it did not answer: it may do so later. None: there is
            no daemon to hope for.
        liveness_s: The daemon's liveness window.
        problem: Why the daemon could not be asked, or empty.
    """

    def __init__(self, options: Options, deadline_s: float) -> None:
        self.connection: Connection | None = None
        self.liveness_s = _uplink.DEFAULT_LIVENESS_S
        self.problem = ""
        self._options = options
        self._deadline = time.monotonic() + deadline_s

    def ask(self, request: Request) -> Plan:
        """The daemon's plan for `request`, or the native one with `problem` set.

        Raises:
            FuseboardError: The caller's mistake: UNKNOWN_KERNEL, or BAD_ADDRESS in `address`.
        """
        if registry.forked:
            return self._native(request, "forked from a process that uses Fuseboard: use spawn")
        try:
            self._connect()
            self._check_names()
            assert self.connection is not None
            plan, self.liveness_s = _uplink.resolve(self.connection, request, self._left_s())
        except FuseboardError as error:
            if error.code == "UNKNOWN_KERNEL" or (error.code == "BAD_ADDRESS" and self._named()):
                raise
            return self._native(request, str(error))
        return plan

    def give_up(self) -> None:
        """Lets go of the connection."""
        if self.connection is not None:
            registry.connections.release(self.connection)
            self.connection = None

    def _connect(self) -> None:
        found = _daemon.find_daemon(self._options.address, self._left_s())
        self.connection = registry.connections.acquire(found.address)

    def _check_names(self) -> None:
        if self._options.require or self._options.disable:
            assert self.connection is not None
            known = _uplink.operations(self.connection, self._left_s())
            _options.check_kernel_names(self._options, known)

    def _named(self) -> bool:
        return self._options.address is not None

    def _left_s(self) -> float:
        return max(self._deadline - time.monotonic(), 0.1)

    def _native(self, request: Request, problem: str) -> Plan:
        self.problem = problem
        _log.warning("everything runs native: %s", problem)
        return native_plan(request.sites, problem)
