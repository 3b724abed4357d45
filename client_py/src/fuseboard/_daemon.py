"""Finds the daemon of this node, or starts a private one for this user.

A private daemon outlives the process that started it and is shared by all processes of the user on
this node; it ends when unused. It gets its own session, no descriptor of ours, and a socket in a folder
that only the user can enter. It obeys the node's deny file like any daemon.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import select
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from typing import Any

from fuseboard import _home
from fuseboard._channel import MAX_SOCKET_PATH_BYTES, socket_path
from fuseboard._errors import DaemonUnreachable

SYSTEM_SOCKET = "/run/fuseboard/job.sock"
# Long enough to serve the next run of a user at a terminal, short enough not to pile up.
IDLE_EXIT_S = 300.0
_LOG_BYTES = 1024 * 1024
# Variables that a private daemon keeps. Nothing else: no LD_PRELOAD of a profiler, no credentials.
_KEPT_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")


@dataclasses.dataclass(frozen=True)
class Found:
    """A daemon's address and, for people, how it was found."""

    address: str
    origin: str


def find_daemon(
    address: str | None,
    timeout_s: float,
    environ: Mapping[str, str] = os.environ,
    system_socket: str = SYSTEM_SOCKET,
) -> Found:
    """The daemon to ask: `address`, FUSEBOARD_ADDRESS, the system socket, a private one.

    A named or system daemon is returned whether or not it answers: it may be about to restart, and
    its operator's switches must not be escaped by starting another.

    Raises:
        FuseboardError: BAD_ADDRESS.
        DaemonUnreachable: There is none and a private one could not be started; says why.
    """
    if address is not None:
        return Found("unix:" + socket_path(address), "address=")
    if environ.get("FUSEBOARD_ADDRESS"):
        return Found("unix:" + socket_path(environ["FUSEBOARD_ADDRESS"]), "FUSEBOARD_ADDRESS")
    if os.path.exists(system_socket):
        return Found("unix:" + system_socket, "system socket")
    folder = private_folder(environ)
    start_private(_home.find_home(), folder, timeout_s)
    return Found(f"unix:{folder / 'job.sock'}", "private daemon of this user")


def private_folder(environ: Mapping[str, str] = os.environ, tmp: str = "/tmp") -> pathlib.Path:
    """The user's own folder for a private daemon, created if absent.

    Raises:
        DaemonUnreachable: NO_PRIVATE_FOLDER: it belongs to somebody else, or others may enter.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    uid = os.geteuid()
    folder = pathlib.Path(runtime) / "fuseboard" if runtime else None
    if folder is None or not _usable_runtime_dir(folder.parent):
        folder = pathlib.Path(tmp) / f"fuseboard-{uid}"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        raise DaemonUnreachable("NO_PRIVATE_FOLDER", f"{folder}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise DaemonUnreachable("NO_PRIVATE_FOLDER", f"{folder} is not a folder")
    if found.st_uid != uid or found.st_mode & 0o077:
        raise DaemonUnreachable(
            "NO_PRIVATE_FOLDER",
            f"{folder} has owner {found.st_uid} and mode {stat.S_IMODE(found.st_mode):o}, "
            f"want {uid} and 700",
        )
    return folder


def _usable_runtime_dir(runtime: pathlib.Path) -> bool:
    """Whether XDG_RUNTIME_DIR is ours and leaves room for a socket's path."""
    if len(os.fsencode(runtime / "fuseboard" / "admin.sock")) > MAX_SOCKET_PATH_BYTES:
        return False
    try:
        found = runtime.stat()
    except OSError:
        return False
    return runtime.is_absolute() and stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def answers(path: str) -> bool:
    """Whether some process listens on the socket at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def start_private(
    home: _home.Home,
    folder: pathlib.Path,
    timeout_s: float,
    idle_exit_s: float = IDLE_EXIT_S,
) -> bool:
    """Makes sure that a private daemon serves in `folder`; returns whether this call started it.

    Any number of processes may call this at once: one starts it, the others wait for that one.

    Raises:
        DaemonUnreachable: START_FAILED or START_TIMEOUT; says why.
    """
    deadline = time.monotonic() + timeout_s
    job_socket = str(folder / "job.sock")
    if answers(job_socket):
        return False
    if not os.access(home.daemon, os.X_OK):
        raise DaemonUnreachable("START_FAILED", f"no program {home.daemon}")
    with _starter_lock(folder / "start.lock", deadline):
        if answers(job_socket):
            return False
        _spawn(home, folder, deadline, idle_exit_s)
    return True


@contextlib.contextmanager
def _starter_lock(path: pathlib.Path, deadline: float) -> Iterator[None]:
    """Holds the lock that lets one process at a time start the daemon; the kernel frees it if we die."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DaemonUnreachable(
                        "START_TIMEOUT", f"another process holds {path} and starts no daemon"
                    ) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def _command(home: _home.Home, folder: pathlib.Path, ready: int, idle_exit_s: float) -> list[str]:
    return [
        str(home.daemon),
        f"--home={home.root}",
        f"--state_dir={folder / 'state'}",
        f"--job_socket={folder / 'job.sock'}",
        f"--admin_socket={folder / 'admin.sock'}",
        "--http_address=",
        f"--idle_exit_seconds={idle_exit_s:g}",
        f"--ready_fd={ready}",
    ]


def _open_log(path: pathlib.Path) -> int:
    log = os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
    )
    if os.fstat(log).st_size > _LOG_BYTES:
        os.ftruncate(log, 0)
    return log


def _spawn(home: _home.Home, folder: pathlib.Path, deadline: float, idle_exit_s: float) -> None:
    """Starts the daemon and waits until it serves.

    The shell between us and the daemon ends at once, so the daemon is nobody's child: training
    neither collects its exit nor is signalled by it.
    """
    ready_read, ready_write = os.pipe()
    log_path = folder / "fuseboardd.log"
    log = _open_log(log_path)
    try:
        shell = subprocess.Popen(
            ["/bin/sh", "-c", '"$@" </dev/null >/dev/null & echo $!', "sh"]
            + _command(home, folder, ready_write, idle_exit_s),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            pass_fds=(ready_write,),
            start_new_session=True,
            cwd="/",
            env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
        )
        os.close(ready_write)
        ready_write = -1
        pid = int(shell.communicate()[0])
        _await_ready(ready_read, deadline, pid, log_path)
    except (OSError, ValueError) as error:
        raise DaemonUnreachable("START_FAILED", f"{home.daemon}: {error}") from error
    finally:
        for descriptor in (ready_read, ready_write, log):
            if descriptor >= 0:
                os.close(descriptor)


def _await_ready(ready: int, deadline: float, pid: int, log_path: pathlib.Path) -> dict[str, Any]:
    """Reads the daemon's one line of JSON from `ready`."""
    received = b""
    while not received.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([ready], [], [], left)[0]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            raise DaemonUnreachable("START_TIMEOUT", "the private daemon did not get ready in time")
        chunk = os.read(ready, 4096)
        if not chunk:
            raise DaemonUnreachable(
                "START_FAILED", f"the private daemon ended: {_last_line(log_path)}"
            )
        received += chunk
    serving = json.loads(received)
    if not isinstance(serving, dict):
        raise DaemonUnreachable("START_FAILED", f"the private daemon said {received!r}")
    return serving


def _last_line(path: pathlib.Path) -> str:
    try:
        lines = path.read_text(errors="replace").split("\n")
    except OSError:
        lines = []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it left no message")
