"""CUPTI windows on a GPU: exact counts, and peace with torch's own profiler."""

from __future__ import annotations

import ctypes

import pytest

torch = pytest.importorskip("torch")

from fuseboard import _cupti
from fuseboard._cupti import Code, CuptiSource, open_library
from fuseboard._measure import Method, Variant
from fuseboard._profile import measure_window
from fuseboard._sources import SourceError

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def library() -> _cupti.CuptiLibrary:
    torch.ones(1, device="cuda")  # The driver is there and CUPTI, if torch loads one, is torch's.
    return open_library()


@pytest.fixture
def vector():
    return torch.ones(1024, device="cuda")


def launches(library, vector, count: int):
    source = CuptiSource(library)
    torch.cuda.synchronize()
    source.start()
    source.mark(0)
    for _ in range(count):
        vector.add_(1)
    torch.cuda.synchronize()
    return source.stop()


def gpu_events_of_torch(vector) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(20):
            vector.add_(1)
        torch.cuda.synchronize()
    device = torch.autograd.DeviceType.CUDA
    return sum(1 for event in profiler.events() if event.device_type == device)


def test_every_launch_is_counted_exactly(library, vector):
    counts = launches(library, vector, 200)
    assert counts.error == ""
    assert counts.launches == (200,)
    assert counts.dropped_records == 0
    assert counts.device_ms[0] > 0
    (kernel,) = counts.kernels
    assert kernel.count == 200 and kernel.device_ns > 0
    assert "(" not in kernel.name.split("<")[0]


def test_launches_of_a_graph_made_before_the_window_are_counted(library, vector):
    graph = torch.cuda.CUDAGraph()
    vector.add_(1)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(7):
            vector.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    source = CuptiSource(library)
    source.start()
    source.mark(0)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert source.stop().launches == (21,)


def test_a_window_without_kernels_is_an_error(library):
    source = CuptiSource(library)
    torch.cuda.synchronize()
    source.start()
    counts = source.stop()
    assert "no kernel record" in counts.error
    assert counts.launches == ()


def test_many_windows_in_a_row_count_alike(library, vector):
    assert [launches(library, vector, 5).launches for _ in range(50)] == [(5,)] * 50


def test_steps_are_told_apart(library, vector):
    source = CuptiSource(library)
    torch.cuda.synchronize()
    source.start()
    for step, count in enumerate((3, 5)):
        source.mark(step)
        for _ in range(count):
            vector.add_(1)
        torch.cuda.synchronize()
    assert source.stop().launches == (3, 5)


def test_a_subscriber_makes_us_busy_until_it_leaves(library, vector):
    if library.check()[0] is not Code.OK:
        pytest.skip("somebody holds CUPTI already")
    cupti = ctypes.CDLL("libcupti.so.13")
    subscriber = ctypes.c_void_p()
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    nothing = callback(lambda *_: None)
    assert cupti.cuptiSubscribe(ctypes.byref(subscriber), nothing, None) == 0
    try:
        code, reason = library.check()
        assert code is Code.BUSY
        assert "another profiler holds CUPTI" in reason
    finally:
        assert cupti.cuptiUnsubscribe(subscriber) == 0
    assert launches(library, vector, 5).launches == (5,)


def test_a_measured_step_has_launches_time_and_memory(vector):
    def step() -> None:
        block = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
        block.zero_()

    window = measure_window(step, variant=Variant.NATIVE, steps=3, device_type="cuda")
    if "another profiler" in window.error:
        pytest.skip(window.error)
    assert window.error == ""
    assert window.launches_per_step.method is Method.CUPTI
    assert window.peak_bytes.method is Method.ALLOCATOR
    assert window.peak_bytes.value >= 32 << 20
    assert window.step_ms.samples == 3


# Last: a Kineto that keeps CUPTI once it profiled would make the tests above busy.


def counts_or_says_busy(library, vector) -> bool:
    """A Kineto that keeps the subscription makes us busy for good, and that is said."""
    try:
        return launches(library, vector, 5).launches == (5,)
    except SourceError as error:
        return "another profiler holds CUPTI" in str(error)


def test_torchs_profiler_keeps_its_gpu_events_before_and_after_our_windows(library, vector):
    assert counts_or_says_busy(library, vector)
    assert gpu_events_of_torch(vector) >= 20
    assert counts_or_says_busy(library, vector)
    assert gpu_events_of_torch(vector) >= 20


def test_a_torch_profiler_that_starts_inside_our_window_is_survived(library, vector):
    """CUDA 13.0 gives both 0 events then: activity state is global. Hence windows of a few steps."""
    source = CuptiSource(library)
    if library.check()[0] is not Code.OK:
        pytest.skip("this Kineto keeps CUPTI for the life of the process")
    torch.cuda.synchronize()
    source.start()
    source.mark(0)
    gpu_events_of_torch(vector)
    torch.cuda.synchronize()
    try:
        source.stop()
    except SourceError as error:
        assert str(error), "the reason is said"
    assert gpu_events_of_torch(vector) >= 20, "torch's profiler works again after our window"
