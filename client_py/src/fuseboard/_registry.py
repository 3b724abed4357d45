"""Which models of this process are patched, and what happens at fork and at exit.

The only mutable state of the package: one `Registry` per process. A forked child (a data-loader
worker) gets an empty one and never touches gRPC.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from typing import Any

from fuseboard._channel import never_destroy
from fuseboard._session import Session
from fuseboard._uplink import SharedConnections, Uplink

# Longest that the end of the interpreter waits for good-byes, whatever state the daemon is in.
_EXIT_S = 1.0


class Registry:
    """Sessions by model, in the order in which they began. Models are held weakly."""

    def __init__(self) -> None:
        self.connections = SharedConnections()
        self.forked = False
        # Re-entrant: a garbage collection inside a guarded block may remove another session.
        self._lock = threading.RLock()
        self._sessions: dict[int, tuple[Session, Any]] = {}
        self._uplinks: weakref.WeakSet[Uplink] = weakref.WeakSet()
        self._hooked = False

    def add(self, model: Any, session: Session, options: Any) -> None:
        """Adds a session; it ends with its model, with the process, or by `remove`."""
        with self._lock:
            self._sessions[id(model)] = (session, options)
            if session.uplink is not None:
                self._uplinks.add(session.uplink)
            self._hook_process()
        weakref.finalize(model, self._model_gone, id(model), session).atexit = False

    def find(self, model: Any) -> tuple[Session, Any] | None:
        """The session of a model and the options it began with."""
        with self._lock:
            return self._sessions.get(id(model))

    def sessions(self) -> tuple[Session, ...]:
        """All sessions, oldest first."""
        with self._lock:
            return tuple(session for session, _ in self._sessions.values())

    def remove(self, session: Session) -> None:
        """Restores the session's model and says good-bye to the daemon in the background."""
        self._drop(session)
        session.end(restore=True)
        self._stop(session)

    def _drop(self, session: Session) -> None:
        with self._lock:
            for key, (candidate, _) in list(self._sessions.items()):
                if candidate is session:
                    del self._sessions[key]

    def _model_gone(self, key: int, session: Session) -> None:
        """The model was collected. NOTE: runs on whichever thread collected it."""
        if self.find_by_key(key) is session:
            self._drop(session)
            session.end(restore=False)
            self._stop(session)

    def find_by_key(self, key: int) -> Session | None:
        """The session of the model with this id()."""
        with self._lock:
            entry = self._sessions.get(key)
            return entry[0] if entry else None

    def _stop(self, session: Session) -> None:
        if session.uplink is not None:
            session.uplink.stop()

    def _hook_process(self) -> None:
        if not self._hooked:
            self._hooked = True
            os.register_at_fork(after_in_child=self._after_fork_in_child)
            atexit.register(self._at_exit)

    def _after_fork_in_child(self) -> None:
        self._lock = threading.RLock()
        self.forked = True
        self.connections.forget()
        for uplink in self._uplinks:
            never_destroy(uplink)
        self._uplinks = weakref.WeakSet()
        for session, _ in self._sessions.values():
            session.forget_daemon()

    def _at_exit(self) -> None:
        uplinks = [] if self.forked else list(self._uplinks)
        for uplink in uplinks:
            uplink.stop()
        deadline = time.monotonic() + _EXIT_S
        for uplink in uplinks:
            uplink.finish(deadline)


registry = Registry()
