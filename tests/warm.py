"""Processes that begin with their imports done: forked from one that has made them.

Importing torch takes seconds, and many tests need a process of their own that does so. `start` gives one
that has the modules and nothing else: its environment, arguments and standard streams are those of the call,
and it ends as any interpreter does.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

TORCH = ("torch", "torch._dynamo")
LLAMA = (*TORCH, "transformers", "transformers.models.llama.modeling_llama")


class Process:
    """A forked process; its methods are those of subprocess.Popen.

    Attributes:
        pid: Its number.
    """

    def __init__(self, status: int) -> None:
        self._status = os.fdopen(status)
        self.pid = int(self._status.readline())
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, or minus the signal that ended it. Raises subprocess.TimeoutExpired."""
        if self._code is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("warm", timeout or 0.0)
            self._code = int(self._status.readline())
            self._status.close()
        return self._code

    def kill(self) -> None:
        """Ends it, if it has not ended."""
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def start(
    modules: Sequence[str],
    program: str,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
    stdin: int = 0,
    stdout: int = 1,
    stderr: int = 2,
) -> Process:
    """Runs source text in a process that has imported `modules`; the streams are file descriptors."""
    read, write = os.pipe()
    request = {"program": program, "argv": ["-c", *arguments], "environment": dict(environment)}
    try:
        server, _ = _server(tuple(modules))
        socket.send_fds(server, [json.dumps(request).encode()], [write, stdin, stdout, stderr])
    finally:
        os.close(write)
    return Process(read)


def script(path: pathlib.Path) -> str:
    """A program that runs a file."""
    return f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')"


def run(
    modules: Sequence[str],
    program: str,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
    timeout: float = 300.0,
) -> subprocess.CompletedProcess[str]:
    """As subprocess.run with captured text."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with open(os.devnull) as nothing:
            streams = (nothing.fileno(), out.fileno(), err.fileno())
            process = start(modules, program, arguments, environment, *streams)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        out.seek(0), err.seek(0)
        return subprocess.CompletedProcess(program, code, out.read(), err.read())


def run_ranks(path: pathlib.Path, folder: str, ranks: int) -> list[tuple[int, str]]:
    """Runs a file with arguments folder, number of ranks and rank; exit code and output of each rank."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(ranks)]
        processes = []
        for rank, file in enumerate(files):
            arguments = [folder, str(ranks), str(rank)]
            output = file.fileno()
            processes.append(start(LLAMA, script(path), arguments, stdout=output, stderr=output))
            stack.callback(processes[-1].kill)
        found = []
        for process, file in zip(processes, files, strict=True):
            code = process.wait(900)
            file.seek(0)
            found.append((code, file.read()))
        return found


@functools.cache
def _server(modules: tuple[str, ...]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The process to fork from, and the socket for requests; it ends when that is shut down or closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, __file__, str(theirs.fileno()), *modules]
    server = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
    theirs.close()

    owner = os.getpid()

    def stop() -> None:
        if os.getpid() == owner:  # And not one that was forked from it.
            ours.shutdown(socket.SHUT_RDWR)
            server.wait()

    atexit.register(stop)
    return ours, server


def _requests(requests: socket.socket) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """Requests with their descriptors, until nobody is there to make any."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        if not message:
            return
        yield json.loads(message), list(descriptors)


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """In the child of each request: the request, with its streams in place. In the server: None."""
    for request, descriptors in _requests(requests):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass  # Of an earlier request.
        if os.fork():
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        # Between the server and the process that was asked for: tells of its end.
        requests.close()
        status, *streams = descriptors
        child = os.fork()
        if child:
            for descriptor in (*streams, 0, 1, 2):
                os.close(descriptor)
            os.write(status, f"{child}\n".encode())
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            os.write(status, f"{code}\n".encode())
            os._exit(0)
        os.close(status)
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
            os.close(descriptor)
        return request
    return None


def _main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    request = _serve(requests)
    if request is None:
        return
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["argv"]
    sys.path[0] = ""  # As with -c; what PYTHONPATH names stands behind it.
    sys.path[1:1] = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(request["program"], "<string>", "exec"), sys.modules["__main__"].__dict__)  # noqa: S102


if __name__ == "__main__":
    _main()
