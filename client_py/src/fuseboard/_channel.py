"""Calls to the daemon over its Unix socket. The only module that knows gRPC.

grpcio is imported at the first connection, never with the package. Every call has a deadline, can be
cancelled from another thread by `close`, and fails with an exception of `_errors`. A forked child must
call `forget` and nothing else: gRPC's threads do not exist there and its locks may be held for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import socket
import stat
import threading
from collections.abc import Iterator
from typing import Any

from fuseboard import _messages
from fuseboard._errors import DaemonUnreachable, FuseboardError

# A stream is opened again after this long: nothing in this client waits without a deadline.
_WATCH_DEADLINE_S = 3600.0
_UNREACHABLE = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED")
_METHOD_PACKAGE = "/fuseboard.v1."
# sun_path holds 108 bytes with the terminating zero.
MAX_SOCKET_PATH_BYTES = 107

_OPTIONS = (
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    # The caller backs off by itself; gRPC must not still be waiting when the daemon is back.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)


def socket_path(address: str) -> str:
    """The path of a Unix socket named "unix:/path", "unix:///path" or "/path".

    Raises:
        FuseboardError: BAD_ADDRESS.
    """
    path = address.removeprefix("unix://") if address.startswith("unix://") else address
    path = path.removeprefix("unix:")
    if not path.startswith("/"):
        raise FuseboardError("BAD_ADDRESS", f"address is {address!r}, want unix:/absolute/path")
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH_BYTES:
        raise FuseboardError(
            "BAD_ADDRESS", f"address {path} has {length} bytes, at most {MAX_SOCKET_PATH_BYTES}"
        )
    return path


@contextlib.contextmanager
def _without_fork_support() -> Iterator[None]:
    """Keeps gRPC from hooking fork(), unless the user has chosen otherwise.

    Its hooks want every gRPC thread idle, which a live stream never is: each fork of a data-loader
    worker would wait or print a warning. gRPC reads the variable once, so it is put back at once and
    no program that the user starts inherits it.
    """
    name = "GRPC_ENABLE_FORK_SUPPORT"
    if name in os.environ:
        yield
        return
    os.environ[name] = "0"
    try:
        yield
    finally:
        os.environ.pop(name, None)


def _error_reason(error: Any) -> str:
    """The ErrorInfo reason that the daemon attached to a failed call, or empty."""
    for name, value in error.trailing_metadata() or ():
        if name == "grpc-status-details-bin":
            with contextlib.suppress(Exception):
                for detail in _messages.parse("google.rpc.Status", value).details:
                    if detail.type_url.endswith("/google.rpc.ErrorInfo"):
                        return str(_messages.parse("google.rpc.ErrorInfo", detail.value).reason)
    return ""


class Connection:
    """A channel to one daemon, shared by the sessions of a process. Safe to use from several threads.

    Args:
        address: As `socket_path` takes it.

    Raises:
        FuseboardError: BAD_ADDRESS; NO_GRPC if grpcio cannot be imported.
    """

    def __init__(self, address: str) -> None:
        self.path = socket_path(address)
        with _without_fork_support():
            try:
                self._grpc: Any = importlib.import_module("grpc")
            except ImportError as error:
                raise FuseboardError("NO_GRPC", f"grpcio cannot be imported: {error}") from error
            self._channel = self._new_channel()
        # Re-entrant: a garbage collection inside a guarded block may end another session.
        self._lock = threading.RLock()
        self._calls: set[Any] = set()
        self._closed = False

    def call(self, method: str, request: Any, reply: str, timeout_s: float) -> Any:
        """Makes a unary call, e.g. method "Resolver/Resolve".

        Raises:
            DaemonUnreachable: No daemon, no answer in time, or closed meanwhile.
            FuseboardError: The daemon's refusal, with its reason as code; BAD_REPLY.
        """
        with self._failures(method):
            with self._lock:
                stub = self._channel.unary_unary(_METHOD_PACKAGE + method)
                future = stub.future(request.SerializeToString(), timeout=timeout_s)
                self._calls.add(future)
            try:
                serialized = future.result()
            finally:
                self._end(future)
        return _messages.parse(reply, serialized)

    def watch(self, method: str, request: Any, reply: str) -> Stream:
        """Starts a streaming call.

        Raises:
            DaemonUnreachable: The connection is closed. All else is raised by the stream.
        """
        with self._failures(method), self._lock:
            stub = self._channel.unary_stream(_METHOD_PACKAGE + method)
            call = stub(request.SerializeToString(), timeout=_WATCH_DEADLINE_S)
            self._calls.add(call)
        return Stream(self, call, method, reply)

    def renew(self) -> None:
        """Cancels all calls and connects anew: what listens at the path may be another process now."""
        with self._lock:
            if self._closed:
                return
            old, self._channel = self._channel, self._new_channel()
            self._cancel_all()
        old.close()

    def close(self) -> None:
        """Cancels all calls, wherever they wait, and closes. Does not wait for the daemon."""
        with self._lock:
            self._closed = True
            self._cancel_all()
        self._channel.close()

    def forget(self) -> None:
        """In a forked child: lets go without touching gRPC, and hangs up the inherited socket."""
        never_destroy(self)
        _hang_up(self.path)

    def _new_channel(self) -> Any:
        return self._grpc.insecure_channel("unix:" + self.path, options=_OPTIONS)

    def _cancel_all(self) -> None:
        for call in list(self._calls):
            call.cancel()

    def _end(self, call: Any) -> None:
        with self._lock:
            self._calls.discard(call)
        call.cancel()

    @contextlib.contextmanager
    def _failures(self, method: str) -> Iterator[None]:
        """Turns what gRPC raises into errors of this package."""
        try:
            yield
        except (self._grpc.FutureCancelledError, ValueError) as error:
            # gRPC raises ValueError for a call on a closed channel.
            raise DaemonUnreachable("CANCELLED", f"{method}: {error or 'cancelled'}") from error
        except self._grpc.RpcError as error:
            code = error.code().name
            text = f"{method} at {self.path}: {code}: {error.details()}"
            if code in _UNREACHABLE:
                raise DaemonUnreachable(code, text) from error
            raise FuseboardError(_error_reason(error) or code, text) from error


class Stream:
    """The messages of a streaming call. Made by `Connection.watch`."""

    def __init__(self, connection: Connection, call: Any, method: str, reply: str) -> None:
        self._connection = connection
        self._call = call
        self._method = method
        self._reply = reply

    def __iter__(self) -> Iterator[Any]:
        """Waits for messages until the daemon ends the stream.

        Raises:
            DaemonUnreachable, FuseboardError: As `Connection.call`.
        """
        try:
            while True:
                with self._connection._failures(self._method):
                    serialized = next(self._call, None)
                if serialized is None:
                    return
                yield _messages.parse(self._reply, serialized)
        finally:
            self._connection._end(self._call)

    def cancel(self) -> None:
        """Ends the stream from any thread; the iteration raises DaemonUnreachable."""
        self._call.cancel()


def never_destroy(owner: object) -> None:
    """In a forked child: keeps `owner` and all that it refers to from ever being destroyed.

    Destructors of gRPC objects take locks that may be held by threads that were not forked; the
    interpreter runs them when it ends, and would hang.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))


def _hang_up(path: str) -> None:
    """Points every descriptor that is connected to the socket at `path` to /dev/null.

    The connection then ends when the parent ends, not when the last child does. The numbers stay
    taken, so nothing that still believes to own them can close somebody else's file.
    """
    null = os.open(os.devnull, os.O_RDWR)
    try:
        for name in os.listdir("/proc/self/fd"):
            if _peer_path(int(name)) == path:
                os.dup2(null, int(name), inheritable=False)
    except OSError:
        pass  # No /proc: the daemon's liveness window still tells.
    finally:
        os.close(null)


def _peer_path(descriptor: int) -> Any:
    """Path that a socket is connected to; None for anything else."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        borrowed = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=descriptor)
        try:
            return borrowed.getpeername()
        finally:
            borrowed.detach()
    except OSError:
        return None
