"""The client's session against the real daemon, with a patcher that binds nothing."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

CLIENT_TESTS = pathlib.Path(__file__).resolve().parents[1] / "client_py"
sys.path.insert(0, str(CLIENT_TESTS))

import fuseboard
from daemon_harness import FINGERPRINT, STAGE, Daemon, message
from fakes import fake_model
from fakes.fake_model import FakeBoundary, FakePatcher, Model
from fuseboard import _daemon, _environment
from fuseboard._home import Home
from fuseboard._plan import DecisionKind, Rule


def eventually(condition: Callable[[], object], what: str) -> None:
    """Crosses step boundaries until a condition holds; fails with `what` after 60 s."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        FakeBoundary.latest.mark()
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def known_site(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fakes on the torch side, with one site that the daemon's catalogue knows."""
    from fuseboard import _patcher, _steps

    def describe(model: Model) -> _environment.Environment:
        """The environment that the harness's binding is for."""
        return _environment.Environment(torch_version="2.11.0", device_type="cpu")

    monkeypatch.setattr(_environment, "describe_environment", describe)
    norm, odd = fake_model.SITES
    sites = (dataclasses.replace(norm, fingerprint=FINGERPRINT), odd)
    monkeypatch.setattr(fake_model, "SITES", sites)
    monkeypatch.setattr(_patcher, "ModelPatcher", FakePatcher)
    monkeypatch.setattr(_steps, "StepBoundary", FakeBoundary)
    monkeypatch.setenv("FUSEBOARD_HOME", str(STAGE))
    yield
    fuseboard.unpatch()


def norm_site() -> fuseboard._report.SiteReport:
    return fuseboard.report().sites[0]


def patch(model: Model, daemon: Daemon, **options: object) -> fuseboard._patch.Patched:
    return fuseboard.patch(model, address=f"unix:{daemon.job_socket}", job="session", **options)


def operate(daemon: Daemon, *command: str) -> None:
    done = daemon.fusectl(*command)
    assert done.returncode == 0, done.stderr


def processes(daemon: Daemon) -> list[Any]:
    request = message("ListJobsRequest")
    return list(daemon.admin().call("Status/ListJobs", request, "ListJobsResponse").processes)


def test_the_daemon_decides_and_explains(daemon: Daemon) -> None:
    model = Model()
    patched = patch(model, daemon)
    assert patched.problem == ""
    assert norm_site().kind is DecisionKind.KERNEL
    assert norm_site().version == "1.2.3"
    odd = fuseboard.report().sites[1]
    assert (odd.kind, odd.rule) == (DecisionKind.NATIVE, Rule.INCOMPATIBLE)
    assert odd.reason
    explained = fuseboard.explain(model)
    assert any(c.accepted for c in explained[0].candidates)


def test_a_switch_of_the_operator_reaches_the_running_model_and_back(daemon: Daemon) -> None:
    model = Model()
    patch(model, daemon)
    operate(daemon, "disable", "rms_norm", "--reason=test")
    eventually(lambda: norm_site().kind is DecisionKind.NATIVE, "the switch off")
    assert norm_site().rule is Rule.OVERRIDE
    operate(daemon, "enable", "rms_norm", "--reason=test")
    eventually(lambda: norm_site().kind is DecisionKind.KERNEL, "the switch on")
    operate(daemon, "kill", "rms_norm", "--reason=test")
    eventually(lambda: norm_site().rule is Rule.KILL, "the kill")


def test_the_operator_sees_the_step_at_which_a_plan_took_effect(daemon: Daemon) -> None:
    model = Model()
    patch(model, daemon)
    operate(daemon, "disable", "rms_norm", "--reason=test")
    eventually(lambda: norm_site().kind is DecisionKind.NATIVE, "the switch")
    applied = fuseboard.report().applied_step
    assert applied > 0

    def seen() -> bool:
        (process,) = processes(daemon)
        return process.applied_step == applied and process.applied_revision == process.sent_revision

    eventually(seen, f"applied step {applied} in the daemon's list of jobs")


def test_a_killed_and_restarted_daemon_is_followed_again(daemon: Daemon) -> None:
    model = Model()
    patch(model, daemon)
    daemon.kill()
    for _ in range(50):
        FakeBoundary.latest.mark()
    assert norm_site().kind is DecisionKind.KERNEL
    daemon.start()
    operate(daemon, "disable", "rms_norm", "--reason=test")
    eventually(lambda: norm_site().kind is DecisionKind.NATIVE, "the switch after the restart")


def test_an_unknown_kernel_is_refused_by_name(daemon: Daemon) -> None:
    with pytest.raises(fuseboard.FuseboardError, match="'rms_nrom'; did you mean 'rms_norm'"):
        patch(Model(), daemon, disable=["rms_nrom"])


def test_a_required_kernel_that_is_killed_is_an_error_with_the_operators_reason(
    daemon: Daemon,
) -> None:
    operate(daemon, "kill", "rms_norm", "--reason=wrong on sm_90")
    with pytest.raises(fuseboard.KernelRejected) as caught:
        patch(Model(), daemon, require=["rms_norm"])
    assert any("wrong on sm_90" in reason for reason in caught.value.reasons)


def test_a_process_that_ends_is_forgotten_by_the_daemon(daemon: Daemon) -> None:
    model = Model()
    with patch(model, daemon):
        assert len(processes(daemon)) == 1
    eventually(lambda: not processes(daemon), "the end of the process in the list of jobs")


def test_a_private_daemon_serves_a_model(
    short_folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fuseboard import _patch

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_folder))
    monkeypatch.delenv("FUSEBOARD_ADDRESS", raising=False)
    monkeypatch.setattr(_daemon, "SYSTEM_SOCKET", str(short_folder / "absent.sock"))
    monkeypatch.setattr(_daemon.find_daemon, "__defaults__", (os.environ, str(short_folder / "no")))
    monkeypatch.setattr(_patch, "_START_DEADLINE_S", 60.0)
    model = Model()
    patched = fuseboard.patch(model)
    try:
        assert patched.problem == ""
        assert fuseboard.report().address == f"unix:{short_folder}/fuseboard/job.sock"
        assert fuseboard.report().store_id
    finally:
        fuseboard.unpatch()
        pid = _daemon_pid(short_folder / "fuseboard" / "state")
        os.kill(pid, signal.SIGTERM)


def _daemon_pid(state: pathlib.Path) -> int:
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if f"--state_dir={state}".encode() in command:
                return int(entry.name)
    raise AssertionError(f"no daemon with {state}")


def test_the_installation_of_the_build_is_complete() -> None:
    assert os.access(Home(STAGE, "test").daemon, os.X_OK)
