"""A daemon that is stopped, killed, restarted or replaced while a model trains."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("torch")

import fuseboard
from fakes.fake_daemon import NATIVE, RULE_OVERRIDE, read_calls, write_control
from fakes.fake_model import FakeBoundary, FakePatcher, Model
from fuseboard import _daemon, _registry, _uplink
from fuseboard._channel import Connection
from fuseboard._plan import DecisionKind

Wait = Callable[..., None]


class DaemonProcess:
    """The fake daemon as a process that a test may stop or kill."""

    def __init__(self, home: pathlib.Path, folder: pathlib.Path) -> None:
        self._home = home
        self.socket = folder / "job.sock"
        self.state = folder / "state"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"unix:{self.socket}"

    def start(self) -> None:
        program = self._home / "bin" / "fuseboardd"
        self.process = subprocess.Popen(
            [program, f"--state_dir={self.state}", f"--job_socket={self.socket}"]
        )
        while not _daemon.answers(str(self.socket)):
            assert self.process.poll() is None
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        if number == signal.SIGSTOP:  # Until it has, it may still answer.
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Calls:
    """Every call of this process to a daemon: who began it, and who has got its answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[threading.Thread] = []
        self.ended: list[threading.Thread] = []
        call, watch = Connection.call, Connection.watch

        def recorded_call(connection: Connection, *arguments: object) -> object:
            self.begun.append(threading.current_thread())
            try:
                return call(connection, *arguments)  # type: ignore[arg-type]
            finally:
                self.ended.append(threading.current_thread())

        def recorded_watch(connection: Connection, *arguments: object) -> object:
            self.begun.append(threading.current_thread())
            self.ended.append(threading.current_thread())
            return watch(connection, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(Connection, "call", recorded_call)
        monkeypatch.setattr(Connection, "watch", recorded_watch)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.fixture
def process(
    fake_home: pathlib.Path, short_tmp: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DaemonProcess]:
    from fuseboard import _patcher, _reporter, _steps

    monkeypatch.setattr(_patcher, "ModelPatcher", FakePatcher)
    monkeypatch.setattr(_steps, "StepBoundary", FakeBoundary)
    monkeypatch.setattr(_reporter, "_CALL_DEADLINE_S", 1.0)
    daemon = DaemonProcess(fake_home, short_tmp)
    daemon.start()
    yield daemon
    fuseboard.unpatch()
    daemon.kill()


def steps_call_nobody(calls: Calls, count: int = 200) -> None:
    """Crosses boundaries: whatever the daemon does, the training thread does not ask it."""
    before = len(calls.begun)
    for _ in range(count):
        FakeBoundary.latest.mark()
    assert threading.current_thread() not in calls.begun[before:]


def cross_until(condition: Callable[[], object], eventually: Wait) -> None:
    def step_and_check() -> object:
        FakeBoundary.latest.mark()
        return condition()

    eventually(step_and_check)


def norm_runs() -> DecisionKind:
    return fuseboard.report().sites[0].kind


def test_a_stopped_daemon_costs_training_nothing_and_is_followed_again_when_it_goes_on(
    process: DaemonProcess, calls: Calls, eventually: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fuseboard import _reporter

    # Far longer than the steps take on any machine.
    monkeypatch.setattr(_reporter, "_CALL_DEADLINE_S", 60.0)
    model = Model()
    fuseboard.patch(model, address=process.address)
    process.signal(signal.SIGSTOP)
    write_control(process.state, revision=2, off={"rms_norm": [NATIVE, RULE_OVERRIDE]})
    before = len(calls.begun)
    eventually(lambda: len(calls.begun) > before, "a call that nobody answers")
    steps_call_nobody(calls)
    # Steps that waited for it, or for a lock that it holds, would have seen its end.
    assert len(calls.ended) < len(calls.begun)
    assert norm_runs() is DecisionKind.KERNEL
    process.signal(signal.SIGCONT)
    cross_until(lambda: norm_runs() is DecisionKind.NATIVE, eventually)


def test_a_killed_daemon_changes_nothing_and_a_restarted_one_learns_who_we_are(
    process: DaemonProcess, calls: Calls, eventually: Wait
) -> None:
    model = Model()
    fuseboard.patch(model, address=process.address)
    eventually(lambda: read_calls(process.state, "AckPlan"))
    process.kill()
    steps_call_nobody(calls)
    assert norm_runs() is DecisionKind.KERNEL
    (process.state / "calls.jsonl").unlink()
    process.start()
    eventually(lambda: read_calls(process.state, "WatchPlan"), "a new watch")
    watch = read_calls(process.state, "WatchPlan")[0]
    assert (watch["known_revision"], watch["known_store_id"]) == ("1", "store-a")
    assert watch["request"]["sites"]
    eventually(lambda: read_calls(process.state, "AckPlan"), "the plan in force, told again")
    assert read_calls(process.state, "AckPlan")[-1]["revision"] == "1"
    assert len(FakePatcher.latest.applied) == 1


def test_a_daemon_with_another_store_is_followed_whatever_its_revision(
    process: DaemonProcess, eventually: Wait
) -> None:
    write_control(process.state, revision=40)
    model = Model()
    fuseboard.patch(model, address=process.address)
    process.kill()
    write_control(
        process.state, revision=2, store_id="b", off={"rms_norm": [NATIVE, RULE_OVERRIDE]}
    )
    process.start()
    cross_until(lambda: norm_runs() is DecisionKind.NATIVE, eventually)
    assert (fuseboard.report().revision, fuseboard.report().store_id) == (2, "b")


def test_garbage_in_the_stream_is_survived(
    process: DaemonProcess, calls: Calls, eventually: Wait
) -> None:
    model = Model()
    fuseboard.patch(model, address=process.address)
    write_control(process.state, mode="garbage", revision=2)
    eventually(lambda: fuseboard.report().problem, "the problem in the report")
    steps_call_nobody(calls)
    assert norm_runs() is DecisionKind.KERNEL
    write_control(process.state, mode="normal", off={"rms_norm": [NATIVE, RULE_OVERRIDE]})
    cross_until(lambda: norm_runs() is DecisionKind.NATIVE, eventually)


def test_a_daemon_that_forgot_this_process_is_introduced_to_it_again(
    process: DaemonProcess, eventually: Wait
) -> None:
    """The new daemon listens at the same path while the old one is stopped and still connected."""
    model = Model()
    fuseboard.patch(model, address=process.address)
    eventually(lambda: read_calls(process.state, "WatchPlan"))
    old = process.process
    assert old is not None
    process.signal(signal.SIGSTOP)
    process.socket.unlink()
    (process.state / "calls.jsonl").unlink()
    process.start()
    try:
        eventually(lambda: read_calls(process.state, "WatchPlan"), "a watch at the new daemon")
    finally:
        old.kill()
        old.wait()


@pytest.mark.parametrize("number", [None, signal.SIGSTOP, signal.SIGKILL])
def test_the_process_ends_promptly_whatever_the_daemon_does(
    process: DaemonProcess, number: int | None
) -> None:
    """Its end waits for its threads, each time so many seconds at most; never for the daemon."""
    script = (
        "import sys, fuseboard\n"
        "from fakes import fake_model\n"
        "from fuseboard import _follower, _reporter\n"
        "def record(kind):\n"
        "    join = kind.join\n"
        "    def recorded(self, timeout_s):\n"
        "        print(timeout_s, flush=True)\n"
        "        return join(self, timeout_s)\n"
        "    kind.join = recorded\n"
        "record(_follower.PlanFollower), record(_reporter.Reporter)\n"
        "fake_model.install()\n"
        "model = fake_model.Model()\n"
        "fuseboard.patch(model, address=sys.argv[1])\n"
        "assert fuseboard.report().revision == 1\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    training = subprocess.Popen(
        [sys.executable, "-c", script, process.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert training.stdin is not None and training.stdout is not None
    assert training.stdout.readline() == b"ready\n"
    if number is not None:
        process.signal(number)
    out, err = training.communicate(b"\n", timeout=60)
    assert training.returncode == 0, err.decode()
    assert err == b"" or number is not None
    waits = [float(line) for line in out.split()]
    assert waits and sum(waits) <= _registry._EXIT_S + 2 * _uplink._CUT_S
    if number is None:
        assert read_calls(process.state, "ReportProgress")[-1]["leaving"] is True
