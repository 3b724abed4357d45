"""How a call is measured on a CUDA device: device time L2-cold, host time, launches, peak memory.

Every function takes a list of argument-free callables over different buffers and goes round them, so
that no call finds its inputs in the L2 cache.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence

import torch

Call = Callable[[], object]

# Long enough that the host has enqueued a whole forward and backward before the device starts.
_HEAD_START_CYCLES = 4_000_000


@dataclasses.dataclass(frozen=True)
class Times:
    """Median and spread (10th to 90th percentile) in milliseconds."""

    median: float
    low: float
    high: float
    samples: int


def summary(values: Sequence[float]) -> Times:
    """Median and spread of `values`."""
    ordered = sorted(values)
    tenth = len(ordered) // 10
    return Times(statistics.median(ordered), ordered[tenth], ordered[-1 - tenth], len(ordered))


def interleaved(calls: dict[str, Sequence[Call]], rounds: int) -> dict[str, Times]:
    """Device time of each implementation's calls, one implementation after another in each round."""
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {
        name: [] for name in calls
    }
    for round_index in range(rounds):
        for name, variants in calls.items():
            call = variants[round_index % len(variants)]
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(_HEAD_START_CYCLES)
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            events[name].append((start, end))
    return {name: summary([a.elapsed_time(b) for a, b in pairs]) for name, pairs in events.items()}


def host_us(call: Call, calls: int = 200, repeats: int = 5) -> float:
    """Microseconds that the host spends per call, the device never being waited for."""
    for _ in range(20):
        call()
    measured = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        measured.append((time.perf_counter() - begin) / calls * 1e6)
    torch.cuda.synchronize()
    return statistics.median(measured)


def launches(call: Call) -> int:
    """Kernels, copies and fills on the device in one call, as torch.profiler records them."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return sum(1 for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA)


def peak_mib(call: Call) -> float:
    """MiB that the call allocates at its peak beyond what was allocated before it."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def copy_rate() -> float:
    """Bytes per second of a large device-to-device copy, read and written bytes counted."""
    source = torch.empty(2**32, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    times = interleaved({"copy": [lambda: target.copy_(source)]}, 10)["copy"]
    return 2 * source.numel() / times.median * 1e3


def matrix_ms(products: Sequence[tuple[int, int, int]], rounds: int = 6) -> float:
    """Milliseconds of bf16 matrix products [m, k] @ [k, n], each timed alone and summed."""
    total = 0.0
    for m, n, k in products:
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        torch.mm(a, b, out=out)
        total += interleaved({"mm": [lambda a=a, b=b, out=out: torch.mm(a, b, out=out)]}, rounds)[
            "mm"
        ].median
    return total
