"""A fuseboardd of the demonstration's own, and fusectl against it."""

from __future__ import annotations

import json
import os
import pathlib
import select
import subprocess
import time
import types
from typing import TYPE_CHECKING, Any

from fuseboard._home import Home

if TYPE_CHECKING:
    from typing_extensions import Self

_START_S = 60.0
_STOP_S = 30.0


class DemoError(Exception):
    """The demonstration cannot go on; the text says why."""


class DemoDaemon:
    """Runs a daemon in `folder` (mode 0700) from `with` to its end."""

    def __init__(self, home: Home, folder: pathlib.Path) -> None:
        self._home = home
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"unix:{folder / 'job.sock'}"
        self.admin_address = f"unix:{folder / 'admin.sock'}"

    def __enter__(self) -> Self:
        ready_read, ready_write = os.pipe()
        log = open(self._folder / "fuseboardd.log", "wb")
        command = [
            str(self._home.daemon),
            f"--home={self._home.root}",
            f"--state_dir={self._folder / 'state'}",
            f"--job_socket={self._folder / 'job.sock'}",
            f"--admin_socket={self._folder / 'admin.sock'}",
            "--http_address=",
            f"--ready_fd={ready_write}",
        ]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(ready_write,)
            )
        except OSError as error:
            raise DemoError(f"{self._home.daemon} does not start: {error}") from error
        finally:
            os.close(ready_write)
            log.close()
        ready = bool(select.select([ready_read], [], [], _START_S)[0]) and os.read(ready_read, 4096)
        os.close(ready_read)
        if not ready:
            self.__exit__(None, None, None)
            raise DemoError(f"fuseboardd did not get ready: {self.log_end()}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def log_end(self) -> str:
        """The last lines that the daemon wrote."""
        log = (self._folder / "fuseboardd.log").read_text(errors="replace").strip()
        return " | ".join(log.splitlines()[-3:]) or "it wrote nothing"

    def fusectl(self, *args: str) -> str:
        """Runs fusectl against this daemon; returns what it printed.

        Raises:
            DemoError: It failed; with what it said.
        """
        command = [str(self._home.root / "bin" / "fusectl"), *args]
        done = subprocess.run(
            [*command, f"--address={self.admin_address}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()
            raise DemoError(f"fusectl {' '.join(args)}: exit code {done.returncode}: {said}")
        return done.stdout

    def switch(self, command: str, operation: str, wait_s: float) -> int:
        """Changes a switch and waits for the job; returns the step before which it took effect.

        Raises:
            DemoError: Refused, or not applied in time.
        """
        began = time.monotonic()
        args = [command, operation, "--output=json", f"--wait={wait_s:g}s"]
        reply: Any = json.loads(self.fusectl(*args, f"--reason=demonstration of {command}"))
        jobs = reply["jobs"]
        processes = jobs["processes"] if isinstance(jobs, dict) else jobs
        if not processes:
            raise DemoError(f"{command} {operation} changes nothing in the running job")
        revision = int(reply["mutation"]["revision"])
        for process in processes:
            if int(process["applied_revision"]) < revision:
                waited = time.monotonic() - began
                raise DemoError(f"{command} {operation} was not applied within {waited:.0f} s")
        return max(int(process["applied_step"]) for process in processes)
