"""Measuring windows: schedule, sources, and what a window says when something goes wrong."""

from __future__ import annotations

import itertools
import pathlib

import pytest

torch = pytest.importorskip("torch")

from fuseboard import _cupti, _profile
from fuseboard._devices import peak_rss_bytes
from fuseboard._measure import KernelCount, Measurement, Method, Variant, Window
from fuseboard._profile import StepWindows, measure_window
from fuseboard._schedule import Phase, Schedule
from fuseboard._sources import Counts, SourceError


class FakeSource:
    """Counts one launch per `op`; remembers what it was told."""

    method = Method.CUPTI

    def __init__(self) -> None:
        self.started = 0
        self.marks: list[int] = []
        self.abandoned = 0
        self.on = False
        self.ops: list[int] = []
        self.fail_start = ""
        self.fail_mark_at: int | None = None

    def start(self) -> None:
        if self.fail_start:
            raise SourceError(self.fail_start)
        self.started += 1
        self.on, self.ops = True, []

    def mark(self, step: int) -> None:
        if step == self.fail_mark_at:
            raise SourceError("torch's profiler is active")
        self.marks.append(step)
        self.ops.append(0)

    def op(self) -> None:
        if self.on:
            self.ops[-1] += 1

    def stop(self) -> Counts:
        self.on = False
        return Counts(launches=tuple(self.ops), kernels=(KernelCount("op", sum(self.ops)),))

    def abandon(self) -> None:
        self.on = False
        self.abandoned += 1


def run(schedule: Schedule, steps: int, source: FakeSource) -> StepWindows:
    windows = StepWindows(schedule, Variant.PLAN, source=source)
    for _ in range(steps):
        windows.boundary()
        source.op()
    windows.close()
    return windows


@pytest.mark.parametrize(
    ("wait", "warmup", "active", "repeat"),
    list(itertools.product((0, 1), (0, 1), (1, 5), (0, 1, 2))),
)
@pytest.mark.parametrize("skip", (0, 3))
def test_every_schedule_gives_its_windows_at_its_steps(skip, wait, warmup, active, repeat):
    schedule = Schedule(skip=skip, wait=wait, warmup=warmup, active=active, repeat=repeat)
    source = FakeSource()
    ended: list[Window] = []
    windows = StepWindows(schedule, Variant.PLAN, source=source, on_window=ended.append)
    for _ in range(100):
        windows.boundary()
        source.op()
    windows.close()
    whole = [w for w in ended if not w.error]
    expected = (100 - skip) // (wait + warmup + active)
    expected = min(expected, repeat) if repeat else expected
    assert source.started - source.abandoned == len(whole) == expected
    for number, window in enumerate(whole):
        assert window.first_step == skip + wait + warmup + number * schedule.round_steps
        assert window.steps == active
        assert sum(k.count for k in window.kernels) == active
        assert window.launches_per_step == Measurement(1.0, Method.CUPTI, active)
        assert (window.step_ms is None) == (warmup == 0)


def test_an_empty_run_says_so():
    windows = run(Schedule(active=5, warmup=1), 0, FakeSource())
    assert windows.finished == []
    assert windows.problem == "no window: 0 steps ran, the first window would end after 6"


def test_a_run_that_ends_before_the_first_window_says_so():
    windows = run(Schedule(active=5, warmup=1, wait=10), 4, FakeSource())
    assert windows.finished == []
    assert "4 steps ran, the first window would end after 16" in windows.problem


def test_stopping_in_mid_window_reports_the_loss_and_switches_off():
    source = FakeSource()
    windows = run(Schedule(active=5, warmup=1), 3, source)
    (window,) = windows.finished
    assert window.error == "ended after 2 of 5 steps of the window"
    assert window.launches_per_step is None
    assert (source.abandoned, source.on) == (1, False)


def test_a_window_that_ends_with_the_run_is_whole():
    windows = run(Schedule(active=2, warmup=1), 3, FakeSource())
    assert [w.error for w in windows.finished] == [""]


def test_close_may_be_repeated_and_later_boundaries_do_nothing():
    source = FakeSource()
    windows = run(Schedule(active=1, warmup=0), 1, source)
    windows.close()
    windows.boundary()
    assert len(windows.finished) == 1


def test_the_callers_step_numbers_are_reported():
    source = FakeSource()
    windows = StepWindows(Schedule(active=2, warmup=1), Variant.NATIVE, source=source)
    for step in (41, 42, 43):
        windows.boundary(step)
    windows.close()
    assert windows.finished[0].first_step == 42
    assert source.marks == [42, 43]


def test_a_source_that_is_busy_makes_a_window_with_the_reason_and_a_step_time():
    source = FakeSource()
    source.fail_start = "another profiler holds CUPTI: nsys"
    (window,) = run(Schedule(active=2, warmup=2), 4, source).finished
    assert window.error == "another profiler holds CUPTI: nsys"
    assert window.launches_per_step is None
    assert window.step_ms is not None and window.step_ms.samples == 2


def test_a_profiler_that_comes_during_the_window_ends_it_with_the_reason():
    source = FakeSource()
    source.fail_mark_at = 2
    (window,) = run(Schedule(active=3, warmup=1), 4, source).finished
    assert window.error == "torch's profiler is active"
    assert window.launches_per_step is None
    assert source.abandoned == 1


def test_a_later_window_succeeds_after_the_other_profiler_left():
    source = FakeSource()
    source.fail_mark_at = 0
    windows = run(Schedule(active=2, warmup=0, repeat=2), 4, source)
    assert [bool(w.error) for w in windows.finished] == [True, False]


def test_a_fault_in_a_source_never_reaches_training_and_opens_no_half_window():
    class Broken(FakeSource):
        def mark(self, step: int) -> None:
            raise KeyError("surprise")

    windows = run(Schedule(active=3, warmup=0), 3, Broken())
    assert [w.error for w in windows.finished] == ["KeyError: 'surprise'"]


def test_a_consumer_that_raises_does_not_reach_training():
    def consume(window: object) -> None:
        raise ValueError("full")

    source = FakeSource()
    windows = StepWindows(
        Schedule(active=1, warmup=0), Variant.PLAN, source=source, on_window=consume
    )
    windows.boundary()
    windows.close()
    assert windows.problem == "window not handed on: ValueError: full"


def test_a_plan_that_changes_during_a_window_is_named():
    revisions = iter([7, 9])
    source = FakeSource()
    windows = StepWindows(
        Schedule(active=1, warmup=0), Variant.PLAN, source=source, revision=lambda: next(revisions)
    )
    windows.boundary()
    source.op()
    windows.close()
    assert windows.finished[0].error == ("the plan changed from revision 7 to 9 during the window")


@pytest.mark.parametrize(
    "bad", ({"active": 0}, {"warmup": -1}, {"wait": 1.5}, {"skip": True}, {"repeat": "2"})
)
def test_a_bad_schedule_is_refused_by_name_and_value(bad):
    ((name, value),) = bad.items()
    with pytest.raises(ValueError, match=f"{name} is {value!r}"):
        Schedule(**bad)


def test_phases_follow_the_numbers():
    schedule = Schedule(skip=1, wait=1, warmup=1, active=2, repeat=1)
    phases = [schedule.phase(step) for step in range(7)]
    assert phases == [Phase.IDLE] * 2 + [Phase.WARMUP] + [Phase.ACTIVE] * 2 + [Phase.IDLE] * 2


def test_peak_rss_that_cannot_be_read_is_absent(tmp_path):
    assert peak_rss_bytes(str(tmp_path / "none")) is None
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nVmHWM:\tgarbage kB\n")
    assert peak_rss_bytes(str(status)) is None
    status.write_text("VmPeak:\t 9 kB\nVmHWM:\t    1234 kB\n")
    assert peak_rss_bytes(str(status)) == 1234 * 1024


def test_peak_rss_of_this_process_grows_with_what_it_touches():
    before = peak_rss_bytes()
    block = torch.ones(64 << 20, dtype=torch.uint8)
    after = peak_rss_bytes()
    assert before and after and after >= before
    assert after > block.numel()


def test_measuring_a_real_step_counts_its_operators():
    x = torch.randn(8, 8, requires_grad=True)

    def step() -> None:
        (x @ x).sum().backward()

    window = measure_window(step, variant=Variant.NATIVE, steps=2, warmup=2)
    assert window.error == ""
    assert window.launches_per_step is not None
    assert window.launches_per_step.method is Method.OPERATOR_COUNT
    assert window.launches_per_step.samples == 2
    assert {"aten.mm", "aten.sum"} <= {k.name for k in window.kernels}
    assert window.peak_bytes is not None and window.peak_bytes.method is Method.PEAK_RSS


def test_an_error_of_the_step_passes_through_and_instruments_are_off():
    calls = []

    def step() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("the step's own")

    source = FakeSource()
    with pytest.raises(RuntimeError, match="the step's own"):
        measure_window(step, variant=Variant.NATIVE, steps=3, warmup=1, source=source)
    assert source.on is False


# ---- The profiler library, seen from Python ----


class FakeLibrary:
    """The C interface; `script` maps a function to (code, reason)."""

    def __init__(self, abi: int = 1, report: bytes | None = None, **script: tuple[int, bytes]):
        self.called: list[str] = []
        self.arguments: list[tuple[object, ...]] = []
        self._script, self._report = script, report
        self.fb_cupti_abi_version = type("F", (), {"__call__": lambda self: abi, "restype": None})()

    def __getattr__(self, name: str):
        def function(*args):
            self.called.append(name)
            self.arguments.append(args)
            code, reason = self._script.get(name.removeprefix("fb_cupti_"), (0, b""))
            args[-2].value = reason
            if name.endswith("stop_window") and self._report is not None:
                args[0]._obj.value = self._report
            return code

        return function


REPORT = (
    b'{"launches":5,"device_ns":30,"busy_ns":25,"copies":1,"memsets":0,"graph_launches":0,'
    b'"copied_bytes":8,"dropped_records":0,"unfinished_records":0,'
    b'"kernels":[{"name":"gemm","count":5,"device_ns":30}],"phases":['
    b'{"name":"step 1","launches":2,"device_ns":10,"busy_ns":2000000,"copies":1,"memsets":0},'
    b'{"name":"step 2","launches":3,"device_ns":20,"busy_ns":4000000,"copies":0,"memsets":0}]}'
)


def cupti_source(**kwargs) -> tuple[_cupti.CuptiSource, FakeLibrary]:
    library = FakeLibrary(**kwargs)
    return _cupti.CuptiSource(_cupti.CuptiLibrary(library)), library


def test_kernel_records_become_counts_per_step():
    source, _ = cupti_source(report=REPORT)
    source.start()
    source.mark(1)
    source.mark(2)
    counts = source.stop()
    assert counts.launches == (2, 3)
    assert counts.device_ms == (2.0, 4.0)
    assert counts.copies == (1, 0)
    assert counts.kernels == (KernelCount("gemm", 5, 30),)
    assert counts.error == ""


def test_an_incomplete_window_keeps_its_counts_beside_the_error():
    report = REPORT.replace(b'"dropped_records":0', b'"dropped_records":4')
    source, _ = cupti_source(report=report, stop_window=(3, b"window is incomplete: 4 dropped"))
    source.start()
    counts = source.stop()
    assert (counts.dropped_records, counts.error) == (4, "window is incomplete: 4 dropped")
    assert counts.launches == (2, 3)


def test_an_empty_window_is_an_error_and_absent_not_zero():
    source, _ = cupti_source(stop_window=(4, b"window holds no kernel record"))
    windows = StepWindows(Schedule(active=1, warmup=0), Variant.PLAN, source=source)
    windows.boundary()
    windows.close()
    (window,) = windows.finished
    assert window.error == "window holds no kernel record"
    assert window.launches_per_step is None


def test_a_library_of_another_abi_is_refused():
    with pytest.raises(SourceError, match="ABI 2, want 1"):
        _cupti.CuptiLibrary(FakeLibrary(abi=2))


def test_an_active_torch_profiler_makes_the_window_stand_down():
    source, library = cupti_source(report=REPORT)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities):
        assert "profiler" in _cupti.framework_profiler()
        with pytest.raises(SourceError, match="torch's profiler"):
            source.start()
    assert library.called == []
    assert _cupti.framework_profiler() == ""
    source.start()
    with torch.profiler.profile(activities=activities):
        with pytest.raises(SourceError, match="torch's profiler"):
            source.mark(1)
        source.abandon()
        # CUPTI's settings are the other profiler's now: they must stay.
        assert library.called[-1] == "fb_cupti_abandon_window"
        assert library.arguments[-1][0].value == 1


def stage() -> pathlib.Path:
    from fuseboard._home import find_home

    root = find_home().root
    if not (root / _cupti.LIBRARY).is_file():
        pytest.skip("this build has no profiler library")
    return root


def test_the_built_library_answers_on_any_machine():
    code, reason = _cupti.open_library(stage()).check()
    assert code in (_cupti.Code.OK, _cupti.Code.BUSY, _cupti.Code.UNAVAILABLE)
    assert (code == _cupti.Code.OK) == (reason == "")


def test_a_library_that_differs_from_its_manifest_is_not_loaded(tmp_path):
    root = stage()
    target = tmp_path / _cupti.LIBRARY
    target.parent.mkdir(parents=True)
    target.write_bytes((root / _cupti.LIBRARY).read_bytes() + b"\0")
    manifest = (root / _cupti.LIBRARY).with_suffix(".textpb")
    target.with_suffix(".textpb").write_bytes(manifest.read_bytes())
    with pytest.raises(SourceError, match="has digest [0-9a-f]{64}, its manifest says"):
        _cupti.open_library(tmp_path)


def test_a_missing_library_is_a_reason_in_the_window(tmp_path, monkeypatch):
    monkeypatch.setattr(_profile, "CudaDevice", _profile.CpuDevice)
    monkeypatch.setattr(_cupti, "open_library", lambda: _raise(SourceError("no profiler library")))
    windows = StepWindows(Schedule(active=1, warmup=1), Variant.PLAN, device_type="cuda")
    windows.boundary()
    windows.boundary()
    windows.close()
    assert windows.finished[0].error == "no profiler library"
    assert windows.finished[0].step_ms is not None


def _raise(error: Exception) -> None:
    raise error
