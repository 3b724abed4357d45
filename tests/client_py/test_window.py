"""Patched.window: a measuring window between the step boundaries of a patched model."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")

import fuseboard
from fakes.fake_daemon import FakeDaemon
from fakes.fake_model import FakeBoundary, FakePatcher, Model
from fuseboard import _binding
from fuseboard._measure import Method, Variant

Wait = Callable[..., None]

# As a mapped binding: the counters that a report shows are read by an operator. For life, since the thread
# that reports may call it until it ends.
LIBRARY = torch.library.Library("fb_test_window", "DEF")
LIBRARY.define("counters() -> str")
LIBRARY.impl("counters", lambda: '{"rms_norm": {"fused": 7}}', "CompositeExplicitAutograd")


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


def train(model: Model, steps: int) -> None:
    """Boundaries as a training loop makes them: before each step."""
    for _ in range(steps):
        FakeBoundary.latest.mark()
        model(torch.ones(4))


def test_a_window_counts_the_steps_asked_for_and_stands_in_the_report(daemon: FakeDaemon) -> None:
    model = Model()
    patched = fuseboard.patch(model, address=daemon.address)
    patched.window(steps=2, warmup=1)
    train(model, 3)
    assert patched.report().windows == ()  # The last step ends at the next boundary.
    train(model, 1)
    (window,) = patched.report().windows
    assert window.error == ""
    assert (window.variant, window.steps) == (Variant.PLAN, 2)
    assert window.revision == patched.report().revision
    assert window.launches_per_step is not None
    assert window.launches_per_step.method is Method.OPERATOR_COUNT
    # mul of the norm, add of the odd module, ones of the input.
    assert window.launches_per_step.value == 3, window.kernels
    assert window.step_ms is not None and window.step_ms.samples == 1
    assert "operators counted as the framework dispatched them, 2 samples" in str(patched.report())


def test_a_report_within_a_window_is_not_counted(
    daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = _binding.Binding(injected=torch.ops.fb_test_window)
    monkeypatch.setattr(_binding, "_process_binding", mapped)
    model = Model()
    patched = fuseboard.patch(model, address=daemon.address)
    patched.window(steps=1, warmup=0)
    train(model, 1)
    assert patched.report().counters[0].fused_calls == 7
    train(model, 1)
    (window,) = patched.report().windows
    assert window.launches_per_step is not None
    assert window.launches_per_step.value == 3, window.kernels


def test_nothing_is_counted_after_the_window(daemon: FakeDaemon) -> None:
    model = Model()
    patched = fuseboard.patch(model, address=daemon.address)
    patched.window(steps=1, warmup=0)
    train(model, 5)
    assert len(patched.report().windows) == 1
    assert torch._C._len_torch_dispatch_stack() == 0


def test_the_daemon_gets_the_window(daemon: FakeDaemon, eventually: Wait, monkeypatch) -> None:
    sent = []
    from fuseboard import _uplink

    monkeypatch.setattr(_uplink.Uplink, "_send_window", lambda self, request: sent.append(request))
    model = Model()
    fuseboard.patch(model, address=daemon.address, job="measured").window(steps=1, warmup=0)
    train(model, 2)
    eventually(lambda: sent)
    assert sent[0].job_name == "measured"
    assert sent[0].device_name == "cpu"
    assert sent[0].window.launches_per_step.value == 3
    assert not sent[0].window.HasField("device_ms_per_step")


def test_where_everything_runs_native_the_window_is_a_baseline(daemon: FakeDaemon) -> None:
    model = Model()
    patched = fuseboard.patch(model, address=daemon.address + ".absent")
    patched.window(steps=1, warmup=0)
    train(model, 2)
    assert patched.report().windows[0].variant is Variant.NATIVE


def test_unpatching_in_mid_window_reports_the_loss_and_takes_the_instruments_off(
    daemon: FakeDaemon,
) -> None:
    model = Model()
    patched = fuseboard.patch(model, address=daemon.address)
    patched.window(steps=5, warmup=0)
    train(model, 3)
    patched.unpatch()
    assert patched.report().windows[0].error == "ended after 3 of 5 steps of the window"
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_second_request_ends_the_first_window(daemon: FakeDaemon) -> None:
    model = Model()
    patched = fuseboard.patch(model, address=daemon.address)
    patched.window(steps=5, warmup=0)
    train(model, 2)
    patched.window(steps=1, warmup=0)
    train(model, 2)
    assert [bool(w.error) for w in patched.report().windows] == [True, False]


def test_a_bad_number_of_steps_is_refused_and_measures_nothing(daemon: FakeDaemon) -> None:
    model = Model()
    patched = fuseboard.patch(model, address=daemon.address)
    with pytest.raises(ValueError, match="active is 0, want an integer of at least 1"):
        patched.window(steps=0)
    train(model, 2)
    assert patched.report().windows == ()
