"""Many short processes that want the private daemon: whatever its state, there is exactly one."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
from collections.abc import Iterator

import pytest
from daemon_harness import DAEMON, PATIENCE_SECONDS, eventually, make_home
from fuseboard import _daemon
from fuseboard._home import Home

from tests import warm

MODULES = ("fuseboard._daemon", "fuseboard._home")
# What a training process does at its start, after a while of its own, once its standard input ends.
RACER = """
import os, pathlib, sys, time
from fuseboard import _daemon, _home
sys.stdin.read()
time.sleep(float(sys.argv[1]))
home, folder = (pathlib.Path(path) for path in sys.argv[2:])
answer = _daemon.start_private(_home.Home(home, "test"), folder, 60.0)
os.write(1, f"{answer}\\n".encode())  # At once: unbuffered, print would write the line's end by itself.
"""


class Node:
    """An installation whose daemon is slow to start and says in `starts` that it does."""

    def __init__(self, root: pathlib.Path) -> None:
        self.home = make_home(root / "home")
        self.folder = root / "private"
        self.folder.mkdir(mode=0o700)
        self._starts = root / "starts"
        program = self.home / "bin/fuseboardd"
        program.parent.mkdir()
        # While it sleeps it is neither up nor down: the others find no socket, and must not start one.
        program.write_text(f'#!/bin/sh\necho $$ >>{self._starts}\nsleep 0.3\nexec {DAEMON} "$@"\n')
        program.chmod(0o755)

    def starts(self) -> list[int]:
        """Process ids of all daemons ever started here."""
        text = self._starts.read_text() if self._starts.exists() else ""
        return [int(pid) for pid in text.split()]

    def alive(self) -> list[int]:
        return [pid for pid in self.starts() if is_alive(pid)]

    def start(self) -> bool:
        return _daemon.start_private(Home(self.home, "test"), self.folder, PATIENCE_SECONDS)

    @contextlib.contextmanager
    def racers(self, delays_s: list[float]) -> Iterator[Iterator[bool]]:
        """One process for each delay, released together; what they answer, in the order of answers.

        They must end without an error.
        """
        go_read, go_write = os.pipe()
        out_read, out_write = os.pipe()
        with contextlib.ExitStack() as stack:
            processes = []
            for delay_s in delays_s:
                arguments = [str(delay_s), str(self.home), str(self.folder)]
                streams = (go_read, out_write)
                processes.append(warm.start(MODULES, RACER, arguments, os.environ, *streams))
                stack.callback(processes[-1].kill)
            for descriptor in (go_read, go_write, out_write):
                os.close(descriptor)
            with os.fdopen(out_read) as out:
                yield (line == "True\n" for line in out)
            assert [process.wait(PATIENCE_SECONDS) for process in processes] == [0] * len(delays_s)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def node(short_folder: pathlib.Path) -> Iterator[Node]:
    node = Node(short_folder)
    yield node
    for pid in node.alive():
        os.kill(pid, signal.SIGKILL)


def test_of_many_processes_at_once_exactly_one_starts_it_and_later_ones_find_it(node: Node) -> None:
    with node.racers([0.0] * 24) as answers:
        assert sorted(answers) == [False] * 23 + [True]
    [pid] = node.starts()
    assert is_alive(pid)
    with node.racers([0.0] * 8) as answers:
        assert list(answers) == [False] * 8
    assert node.starts() == [pid]


def test_processes_that_come_while_it_is_up_down_and_starting_never_make_two(node: Node) -> None:
    kills = 0
    # They come over a second: some find it up, some dead, and some while another one starts it.
    with node.racers([0.025 * number for number in range(40)]) as answers:
        started = 0
        for answer in answers:
            started += answer
            assert len(node.alive()) <= 1
            if answer and kills < 3:
                os.kill(node.starts()[-1], signal.SIGKILL)
                kills += 1
    started += node.start()  # The last one may have been killed when everybody had come.
    assert started == len(node.starts()) == kills + 1
    [pid] = node.alive()
    assert pid == node.starts()[-1]
    assert _daemon.answers(str(node.folder / "job.sock"))


def test_an_unused_one_ends(short_folder: pathlib.Path, node: Node) -> None:
    home = Home(node.home, "test")
    assert _daemon.start_private(home, node.folder, PATIENCE_SECONDS, idle_exit_s=0.5)
    eventually(lambda: not node.alive())
    assert not _daemon.answers(str(node.folder / "job.sock"))
