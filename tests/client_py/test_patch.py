"""patch() against a fake daemon and a fake patcher: start, live switches, options, reports."""

from __future__ import annotations

import gc
import logging
import os
import pathlib
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fuseboard
from fakes import fake_daemon, fake_model
from fakes.fake_daemon import COMPOSITE, NATIVE, RULE_KILL, RULE_OVERRIDE, FakeDaemon
from fakes.fake_model import FakeBoundary, FakePatcher, Model
from fuseboard._plan import DecisionKind, Rule, SiteRefusal
from fuseboard._registry import registry
from fuseboard._reporter import Reporter

Wait = Callable[..., None]


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from fuseboard import _patcher, _steps

    monkeypatch.setattr(_patcher, "ModelPatcher", FakePatcher)
    monkeypatch.setattr(_steps, "StepBoundary", FakeBoundary)
    yield
    fuseboard.unpatch()


@pytest.fixture
def daemon(fake_home: pathlib.Path, short_tmp: pathlib.Path) -> Iterator[FakeDaemon]:
    started = FakeDaemon(str(short_tmp / "job.sock"), short_tmp / "state").start()
    yield started
    fuseboard.unpatch()
    started.stop()


def norm_runs() -> DecisionKind:
    return fuseboard.report().sites[0].kind


def cross_until(condition: Callable[[], object], eventually: Wait) -> None:
    """Crosses step boundaries until a condition holds, as a training loop would."""

    def step_and_check() -> object:
        FakeBoundary.latest.mark()
        return condition()

    eventually(step_and_check)


# ---- Start ----


def test_a_patched_model_runs_the_daemons_plan_at_once(daemon: FakeDaemon) -> None:
    fuseboard.patch(Model(), address=daemon.address)
    plan = FakePatcher.latest.applied[0]
    assert [d.kind for d in plan.decisions] == [DecisionKind.KERNEL, DecisionKind.NATIVE]
    assert [d.rule for d in plan.decisions] == [Rule.CATALOGUE, Rule.INCOMPATIBLE]
    assert [a.name for a in plan.artifacts] == ["rms_norm"]
    assert FakePatcher.latest.applied_on == ["MainThread"]


def test_the_daemon_hears_who_asks_and_what_became_of_it(
    daemon: FakeDaemon, eventually: Wait
) -> None:
    model = Model()
    fuseboard.patch(model, address=daemon.address, job="team/llama", disable=["swiglu"])
    (resolved,) = daemon.calls("Resolve")
    assert resolved["job"]["name"] == "team/llama"
    assert resolved["job"]["world_size"] == 1
    assert resolved["environment"]["torch_version"] == torch.__version__
    assert resolved["environment"]["device_type"] == "cpu"
    assert resolved["opt_out"] == ["swiglu"]
    eventually(lambda: daemon.calls("AckPlan"), "acknowledgement")
    (ack,) = daemon.calls("AckPlan")
    assert ack["instance_id"] == resolved["job"]["instance_id"]
    assert ack["revision"] == "1" and ack["store_id"] == "store-a"
    assert "applied_step" not in ack and "error" not in ack
    assert abs(int(ack["applied_at_us"]) - time.time() * 1e6) < 60e6


def test_progress_is_reported_three_times_per_liveness_window(
    daemon: FakeDaemon, eventually: Wait
) -> None:
    model = Model()
    patched = fuseboard.patch(model, address=daemon.address)
    patched.step()
    eventually(lambda: len(daemon.calls("ReportProgress")) >= 2, "two reports")
    first, second = daemon.calls("ReportProgress")[:2]
    assert first["step"] == "1"
    # Not more often, however slow the machine; when it is due is the next test's.
    assert second["at"] - first["at"] > 0.9


@pytest.mark.parametrize(("liveness_s", "period_s"), [(3.0, 1.0), (30.0, 10.0), (0.1, 1.0 / 3)])
def test_two_reports_may_be_lost_before_the_daemon_gives_a_process_up(
    liveness_s: float, period_s: float
) -> None:
    unused: Any = None
    reporter = Reporter(unused, "", unused, unused, unused, liveness_s)
    assert reporter._period_s == pytest.approx(period_s)


def test_without_a_daemon_everything_runs_native_and_one_line_says_why(
    fake_home: pathlib.Path, short_tmp: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "fuseboard")
    patched = fuseboard.patch(Model(), address=f"unix:{short_tmp}/absent.sock", live=False)
    assert "UNAVAILABLE" in patched.problem
    assert patched.report().sites[0].kind is DecisionKind.NATIVE
    assert "UNAVAILABLE" in patched.report().sites[0].reason
    assert len(caplog.records) == 1 and "native" in caplog.text


def test_a_daemon_that_appears_later_is_used_from_the_next_step(
    fake_home: pathlib.Path, short_tmp: pathlib.Path, eventually: Wait
) -> None:
    model = Model()
    fuseboard.patch(model, address=f"unix:{short_tmp}/job.sock")
    assert norm_runs() is DecisionKind.NATIVE
    late = FakeDaemon(str(short_tmp / "job.sock"), short_tmp / "state").start()
    try:
        cross_until(lambda: norm_runs() is DecisionKind.KERNEL, eventually)
    finally:
        late.stop()


@pytest.mark.parametrize("mode", ["garbage", "refuse", "bad_plan"])
def test_a_daemon_that_talks_nonsense_leaves_the_model_native(
    daemon: FakeDaemon, mode: str, eventually: Wait
) -> None:
    daemon.control(mode=mode)
    model = Model()
    patched = fuseboard.patch(model, address=daemon.address)
    assert patched.problem
    assert norm_runs() is DecisionKind.NATIVE
    daemon.control(mode="normal")
    cross_until(lambda: norm_runs() is DecisionKind.KERNEL, eventually)


def test_a_plan_that_cannot_be_prepared_leaves_the_model_native_and_is_acknowledged_as_error(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, eventually: Wait
) -> None:
    broken = fuseboard.ArtifactError("DIGEST_MISMATCH", "rms_norm.so has another digest")
    monkeypatch.setattr(FakePatcher, "prepare", lambda self, plan: _raise(broken))
    model = Model()
    fuseboard.patch(model, address=daemon.address)
    assert norm_runs() is DecisionKind.NATIVE
    eventually(lambda: daemon.calls("AckPlan"))
    assert daemon.calls("AckPlan")[0]["error"] == "rms_norm.so has another digest"


def test_a_fault_of_ours_at_start_is_logged_and_training_goes_on(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakePatcher, "sites", lambda self: _raise(ZeroDivisionError("oops")))
    patched = fuseboard.patch(Model(), address=daemon.address)
    assert "ZeroDivisionError" in patched.problem
    assert registry.sessions() == ()


def _raise(error: Exception) -> None:
    raise error


# ---- Options ----


def test_an_unknown_option_is_named_with_the_nearest_one() -> None:
    with pytest.raises(TypeError, match=r"no option 'requires'; did you mean 'require'\?"):
        fuseboard.patch(Model(), requires=["rms_norm"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"require": "rms_norm"}, "require is 'rms_norm', want a list"),
        ({"disable": 3}, "disable is 3, want a list"),
        ({"disable": [None]}, "disable has None"),
        ({"live": 1}, "live is 1, want True or False"),
        ({"job": 5}, "job is 5, want a string"),
    ],
)
def test_an_option_of_the_wrong_type_is_named_with_its_value(options: dict, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        fuseboard.patch(Model(), **options)


@pytest.mark.parametrize("model", [None, "llama", 3, object(), Model])
def test_what_is_no_module_is_refused(model: object, fake_home: pathlib.Path) -> None:
    with pytest.raises(TypeError, match=r"want a torch\.nn\.Module"):
        fuseboard.patch(model)  # type: ignore[arg-type]


@pytest.mark.parametrize("job", ["", "a b", "x" * 129, "naïve"])
def test_a_job_name_that_the_daemon_would_refuse_is_refused_at_once(job: str) -> None:
    with pytest.raises(fuseboard.FuseboardError) as caught:
        fuseboard.patch(Model(), job=job)
    assert caught.value.code == "BAD_JOB" and repr(job) in str(caught.value)


@pytest.mark.parametrize("address", ["localhost:50051", "unix:relative.sock", "unix:/" + "x" * 107])
def test_a_bad_address_is_named(address: str, fake_home: pathlib.Path) -> None:
    with pytest.raises(fuseboard.FuseboardError) as caught:
        fuseboard.patch(Model(), address=address)
    assert caught.value.code == "BAD_ADDRESS"
    assert FakePatcher.latest.restored == 1


@pytest.mark.parametrize("option", ["require", "disable"])
def test_an_unknown_kernel_is_named_with_the_nearest_one(daemon: FakeDaemon, option: str) -> None:
    with pytest.raises(fuseboard.FuseboardError) as caught:
        fuseboard.patch(Model(), address=daemon.address, **{option: ["rms_nrom"]})
    assert caught.value.code == "UNKNOWN_KERNEL"
    assert "'rms_nrom'; did you mean 'rms_norm'?" in str(caught.value)
    assert registry.sessions() == ()


def test_a_disabled_kernel_runs_native_because_of_the_process_itself(daemon: FakeDaemon) -> None:
    patched = fuseboard.patch(Model(), address=daemon.address, disable=["rms_norm"])
    assert patched.report().sites[0].rule is Rule.OPT_OUT


def test_a_required_kernel_that_runs_is_no_error(daemon: FakeDaemon) -> None:
    fuseboard.patch(Model(), address=daemon.address, require=["rms_norm"])


def test_a_required_kernel_that_is_switched_off_is_an_error_with_the_reasons(
    daemon: FakeDaemon,
) -> None:
    daemon.control(off={"rms_norm": [NATIVE, RULE_KILL]})
    with pytest.raises(fuseboard.KernelRejected) as caught:
        fuseboard.patch(Model(), address=daemon.address, require=["rms_norm"])
    assert "switched off by a test" in caught.value.reasons
    assert FakePatcher.latest.restored == 1
    assert registry.sessions() == ()
    assert _our_threads() == []


def test_a_required_kernel_that_no_module_matches_is_an_error(daemon: FakeDaemon) -> None:
    with pytest.raises(fuseboard.KernelRejected) as caught:
        fuseboard.patch(Model(), address=daemon.address, require=["swiglu"])
    assert caught.value.reasons == ("no module of the model computes it",)


def test_a_required_kernel_that_every_module_refuses_is_an_error(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = SiteRefusal("Norm/00000000", 1, "weight is quantised")
    monkeypatch.setattr(FakePatcher, "apply", lambda self, prepared: (refusal,))
    with pytest.raises(fuseboard.KernelRejected) as caught:
        fuseboard.patch(Model(), address=daemon.address, require=["rms_norm"])
    assert "weight is quantised" in caught.value.reasons


def test_a_required_kernel_without_a_daemon_is_unavailable(
    fake_home: pathlib.Path, short_tmp: pathlib.Path
) -> None:
    with pytest.raises(fuseboard.KernelUnavailable, match="rms_norm"):
        fuseboard.patch(Model(), address=f"unix:{short_tmp}/absent.sock", require=["rms_norm"])
    assert _our_threads() == []


def test_patching_twice_gives_the_same_session_and_other_options_are_an_error(
    daemon: FakeDaemon,
) -> None:
    model = Model()
    fuseboard.patch(model, address=daemon.address)
    fuseboard.patch(model, address=daemon.address)
    assert len(registry.sessions()) == 1 and len(daemon.calls("Resolve")) == 1
    with pytest.raises(fuseboard.FuseboardError) as caught:
        fuseboard.patch(model, address=daemon.address, live=False)
    assert caught.value.code == "ALREADY_PATCHED"


def test_two_models_are_two_sessions_over_one_connection(
    daemon: FakeDaemon, short_tmp: pathlib.Path
) -> None:
    one, two = Model(), Model()
    first, second = (fuseboard.patch(m, address=daemon.address) for m in (one, two))
    ids = {call["job"]["instance_id"] for call in daemon.calls("Resolve")}
    assert len(ids) == 2
    assert len(registry.connections._open) == 1
    first.unpatch()
    assert fuseboard.report().sites  # The other one lives on.
    assert fuseboard.report(one).problem == "no model is patched"
    second.unpatch()


# ---- Live ----


def test_a_switch_takes_effect_at_the_next_boundary_and_not_before(
    daemon: FakeDaemon, eventually: Wait
) -> None:
    model = Model()
    patched = fuseboard.patch(model, address=daemon.address)
    patched.step()
    daemon.control(revision=2, off={"rms_norm": [NATIVE, RULE_OVERRIDE]})
    eventually(lambda: len(FakePatcher.latest.prepared_on) == 2, "preparation")
    assert FakePatcher.latest.prepared_on[1] == "fuseboard-watch"
    assert len(FakePatcher.latest.applied) == 1 and norm_runs() is DecisionKind.KERNEL
    cross_until(lambda: norm_runs() is DecisionKind.NATIVE, eventually)
    assert set(FakePatcher.latest.applied_on) == {"MainThread"}
    eventually(lambda: len(daemon.calls("AckPlan")) == 2)
    ack = daemon.calls("AckPlan")[1]
    assert ack["revision"] == "2"
    assert int(ack["applied_step"]) == patched.report().applied_step >= 2


def test_only_the_newest_of_the_plans_that_wait_is_applied(
    daemon: FakeDaemon, eventually: Wait
) -> None:
    model = Model()
    fuseboard.patch(model, address=daemon.address)
    daemon.control(revision=2, off={"rms_norm": [NATIVE, RULE_OVERRIDE]})
    eventually(lambda: len(FakePatcher.latest.prepared_on) == 2)
    daemon.control(revision=3, off={"rms_norm": [COMPOSITE, RULE_KILL]})
    eventually(lambda: len(FakePatcher.latest.prepared_on) == 3)
    cross_until(lambda: norm_runs() is DecisionKind.COMPOSITE, eventually)
    assert [p.revision for p in FakePatcher.latest.applied] == [1, 3]


def test_a_revision_that_changes_nothing_here_is_acknowledged_without_binding_anew(
    daemon: FakeDaemon, eventually: Wait
) -> None:
    model = Model()
    fuseboard.patch(model, address=daemon.address)
    daemon.control(revision=7)
    cross_until(lambda: fuseboard.report().revision == 7, eventually)
    assert [p.revision for p in FakePatcher.latest.applied] == [1]
    eventually(lambda: [c["revision"] for c in daemon.calls("AckPlan")] == ["1", "7"])


def test_a_plan_that_fails_to_apply_is_refused_and_the_plan_in_force_stays(
    daemon: FakeDaemon, eventually: Wait
) -> None:
    model = Model()
    fuseboard.patch(model, address=daemon.address)
    FakePatcher.latest.fail_apply = RuntimeError("no")
    daemon.control(revision=2, off={"rms_norm": [NATIVE, RULE_OVERRIDE]})
    cross_until(lambda: len(daemon.calls("AckPlan")) == 2, eventually)
    assert daemon.calls("AckPlan")[1]["error"] == "RuntimeError: no"
    assert norm_runs() is DecisionKind.KERNEL and fuseboard.report().revision == 1


def test_an_older_revision_of_the_same_store_is_ignored(
    daemon: FakeDaemon, eventually: Wait
) -> None:
    daemon.control(revision=5)
    model = Model()
    fuseboard.patch(model, address=daemon.address)
    daemon.control(revision=4, off={"rms_norm": [NATIVE, RULE_OVERRIDE]})
    time.sleep(0.3)
    FakeBoundary.latest.mark()
    assert norm_runs() is DecisionKind.KERNEL
    daemon.control(revision=1, store_id="store-b")
    cross_until(lambda: fuseboard.report().store_id == "store-b", eventually)
    assert norm_runs() is DecisionKind.NATIVE


def test_a_frozen_plan_stays_and_progress_is_still_reported(
    daemon: FakeDaemon, eventually: Wait
) -> None:
    model = Model()
    fuseboard.patch(model, address=daemon.address, live=False)
    daemon.control(revision=2, off={"rms_norm": [NATIVE, RULE_KILL]})
    eventually(lambda: daemon.calls("ReportProgress"))
    FakeBoundary.latest.mark()
    assert norm_runs() is DecisionKind.KERNEL
    assert daemon.calls("WatchPlan") == []


def test_a_job_of_several_ranks_keeps_its_start_up_plan_except_for_kills(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, eventually: Wait
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    model = Model()
    fuseboard.patch(model, address=daemon.address)
    daemon.control(revision=2, off={"rms_norm": [NATIVE, RULE_OVERRIDE]})
    cross_until(lambda: fuseboard.report().revision == 2, eventually)
    assert norm_runs() is DecisionKind.KERNEL
    eventually(lambda: len(daemon.calls("AckPlan")) == 2)
    (refusal,) = daemon.calls("AckPlan")[1]["refusals"]
    assert "2 ranks takes only kills" in refusal["reason"]
    daemon.control(revision=3, off={"rms_norm": [NATIVE, RULE_KILL]})
    cross_until(lambda: norm_runs() is DecisionKind.NATIVE, eventually)
    daemon.control(revision=4, off={})
    cross_until(lambda: fuseboard.report().revision == 4, eventually)
    assert norm_runs() is DecisionKind.NATIVE


def test_sites_that_turn_native_later_are_acknowledged(
    daemon: FakeDaemon, eventually: Wait
) -> None:
    model = Model()
    fuseboard.patch(model, address=daemon.address)
    FakePatcher.latest.refused = (SiteRefusal("Norm/00000000", 1, "differs by 0.5 at first use"),)
    eventually(lambda: any("refusals" in c for c in daemon.calls("AckPlan")), "refusals")
    assert "differs by 0.5" in str(fuseboard.report())


def test_a_model_that_moves_is_asked_about_anew(daemon: FakeDaemon, eventually: Wait) -> None:
    model = Model()
    fuseboard.patch(model, address=daemon.address)
    eventually(lambda: daemon.watchers)
    session = registry.sessions()[0]
    model.to(torch.bfloat16)
    FakeBoundary.latest.mark()
    eventually(lambda: len(daemon.calls("WatchPlan")) == 2, "a second watch")
    assert "known_revision" not in daemon.calls("WatchPlan")[1]
    cross_until(lambda: not session._request_is_new, eventually)


# ---- End ----


def test_unpatch_restores_says_good_bye_and_leaves_no_thread(
    daemon: FakeDaemon, eventually: Wait
) -> None:
    model = Model()
    with fuseboard.patch(model, address=daemon.address):
        pass
    assert FakePatcher.latest.restored == 1 and FakeBoundary.latest.closed
    eventually(lambda: not _our_threads(), "end of threads")
    assert daemon.calls("ReportProgress")[-1]["leaving"] is True
    assert registry.connections._open == {}
    eventually(lambda: daemon.watchers == 0, "end of the stream")


def test_a_model_that_is_dropped_is_collected_and_its_session_ends(
    daemon: FakeDaemon, eventually: Wait
) -> None:
    model = Model()
    reference = weakref.ref(model)
    fuseboard.patch(model, address=daemon.address)
    del model
    gc.collect()
    assert reference() is None
    assert registry.sessions() == ()
    eventually(lambda: not _our_threads(), "end of threads")
    assert daemon.calls("ReportProgress")[-1]["leaving"] is True


# ---- Switch ----


@pytest.mark.parametrize(
    ("value", "off"),
    [(None, False), ("", False), ("0", False), ("false", False), ("False", False), ("no", False)]
    + [("off", False), (" 0 ", False), ("1", True), ("true", True), ("YES", True), ("on", True)],
)
def test_the_environment_switch_means_what_it_says(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, value: str | None, off: bool
) -> None:
    if value is not None:
        monkeypatch.setenv("FUSEBOARD_DISABLE", value)
    patched = fuseboard.patch(Model(), address=daemon.address)
    assert bool(daemon.calls("Resolve")) is not off
    assert ("FUSEBOARD_DISABLE" in patched.problem) is off


def test_an_unclear_environment_switch_warns_with_its_value_and_is_safe(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FUSEBOARD_DISABLE", "2")
    fuseboard.patch(Model(), address=daemon.address)
    assert "FUSEBOARD_DISABLE is '2'" in caplog.text
    assert daemon.calls("Resolve") == []


def test_switched_off_touches_nothing(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEBOARD_DISABLE", "1")
    before = set(os.listdir("/proc/self/fd")), threading.active_count()
    model = Model()
    state = dict(model.__dict__)
    with fuseboard.patch(model, require=["rms_norm"], address="unix:/nowhere") as patched:
        patched.step()
        assert patched.state()["decisions"] == []
    assert model.__dict__ == state
    assert (set(os.listdir("/proc/self/fd")), threading.active_count()) == before


# ---- Reports ----


def test_the_report_prints_what_runs_and_why(daemon: FakeDaemon) -> None:
    patched = fuseboard.patch(Model(), address=daemon.address, job="demo")
    text = str(patched.report())
    assert "job demo, rank 0 of 1, step 0" in text
    assert "Norm    1      rms_norm 0.1.0  on by default" in text
    assert "Odd     1      native          unknown fingerprint" in text


def test_the_state_is_json_and_names_the_plan_in_force(daemon: FakeDaemon) -> None:
    import json

    patched = fuseboard.patch(Model(), address=daemon.address, job="demo")
    state = json.loads(json.dumps(patched.state()))
    assert (state["job"], state["revision"], state["store_id"]) == ("demo", 1, "store-a")
    assert state["decisions"][0]["kind"] == "KERNEL"
    assert state["decisions"][0]["sha256"] == fake_daemon.SHA256
    assert state["artifacts"][0]["name"] == "rms_norm"


def test_explain_names_every_candidate(daemon: FakeDaemon) -> None:
    model = Model()
    fuseboard.patch(model, address=daemon.address)
    norm, odd = fuseboard.explain(model)
    assert [c.accepted for c in norm.candidates] == [True]
    assert "rejected  rms_norm 0.1.0  rms_norm/fake: another fingerprint" in str(odd)


def test_nothing_patched_is_said_plainly() -> None:
    assert str(fuseboard.report()).endswith("no model is patched")
    assert fuseboard.explain() == ()
    fuseboard.step()
    fuseboard.unpatch()


def test_the_fake_sites_are_those_of_the_model() -> None:
    assert {s.qualified_name.rpartition(".")[2] for s in fake_model.SITES} == {"Norm", "Odd"}


def _our_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("fuseboard")]


def test_a_socket_that_nobody_serves_is_answered_in_time(
    fake_home: pathlib.Path, short_tmp: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fuseboard import _patch

    monkeypatch.setattr(_patch, "_START_DEADLINE_S", 1.0)
    with socket.socket(socket.AF_UNIX) as silent:  # Accepts, and never says a word.
        silent.bind(str(short_tmp / "job.sock"))
        silent.listen(8)
        patched = fuseboard.patch(Model(), address=f"unix:{short_tmp}/job.sock", live=False)
        assert "DEADLINE_EXCEEDED" in patched.problem or "UNAVAILABLE" in patched.problem
