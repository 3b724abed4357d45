"""How a call is measured: device time L2-cold, host time, launches, peak memory.

Calls come as lists over different buffers and are gone round, so that none finds its inputs in the L2
cache. Without a GPU there is a clock too, so that a whole run can be tried; its numbers mean little.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import torch

Call = Callable[[], object]
Calls = Mapping[str, Sequence[Call]]

# Per repetition of host_us: Liger's linear losses spend 40 ms of the host's time on 64 tokens, 26 s at 100 calls.
_HOST_SECONDS = 0.2
# A call of the host that takes longer is measured in few calls, once: it scatters little beside its length.
_LONG_HOST_S = 0.02
# Long enough that the host has enqueued a whole forward and backward before the device starts.
_HEAD_START_CYCLES = 4_000_000
# A case of many milliseconds is measured less often: its times scatter little.
_FEWEST_ROUNDS, _LONG_S = 5, 1.5
_MARKER = "spin_kernel"  # What torch.cuda._sleep launches.


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


def host_us(call: Call, wait: Call, calls: int, repeats: int) -> float:
    """Microseconds that the host spends per call, the device never being waited for.

    Of at most `calls` calls a time; fewer, but three, where they take long.
    """
    call()
    wait()
    begin = time.perf_counter()
    call()
    once = time.perf_counter() - begin
    if once > _LONG_HOST_S:
        calls, repeats = min(calls, 3), 1
    else:
        calls = max(min(calls, 3), min(calls, int(_HOST_SECONDS / once)))
        for _ in range(min(6, calls)):
            call()
    measured = []
    for _ in range(repeats):
        wait()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        measured.append((time.perf_counter() - begin) / calls * 1e6)
    wait()
    return statistics.median(measured)


def in_turn(names: Iterable[str], round_index: int) -> list[str]:
    """The implementations in the order of a round, another in each, the same in every run.

    What a call heats or leaves in a cache meets the next one: in a fixed order always the same one.
    """
    order = list(names)
    random.Random(round_index).shuffle(order)
    return order


class Clock(Protocol):
    """Measures calls on one kind of device."""

    def interleaved(self, calls: Calls, rounds: int) -> dict[str, Times]:
        """Times of each implementation's calls, one implementation after another in each round.

        At most `rounds` of them, fewer where they take long. In an order that changes with the round.
        """

    def host_us(self, call: Call) -> float:
        """Microseconds that the host spends per call."""

    def launches(self, calls: Mapping[str, Call]) -> dict[str, int]:
        """Kernels, copies and fills on the device in one call of each; empty: not measured."""

    def peak_mib(self, call: Call) -> float | None:
        """MiB that the call allocates at its peak beyond what was allocated before it."""

    def copy_rate(self) -> float:
        """Bytes per second of a large copy on the device, read and written bytes counted."""

    def matrix_ms(self, products: Sequence[tuple[int, int, int]]) -> float:
        """Milliseconds of bf16 products [m, k] @ [k, n], each timed alone and summed."""


def clock(on_gpu: bool) -> Clock:
    """The clock of the current GPU, or that of the CPU."""
    return CudaClock() if on_gpu else CpuClock()


class CudaClock:
    """By CUDA events; as Clock."""

    def interleaved(self, calls: Calls, rounds: int) -> dict[str, Times]:
        """The device is kept busy before each call, so that launching is not timed."""
        events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {n: [] for n in calls}
        begin = time.perf_counter()
        for round_index in range(rounds):
            if round_index >= _FEWEST_ROUNDS and time.perf_counter() - begin > _LONG_S:
                break
            for name in in_turn(calls, round_index):
                call = calls[name][round_index % len(calls[name])]
                start = torch.cuda.Event(enable_timing=True)
                end = torch.cuda.Event(enable_timing=True)
                torch.cuda._sleep(_HEAD_START_CYCLES)
                start.record()
                call()
                end.record()
                torch.cuda.synchronize()
                events[name].append((start, end))
        return {n: summary([a.elapsed_time(b) for a, b in pairs]) for n, pairs in events.items()}

    def host_us(self, call: Call) -> float:
        """The queue holds what 100 calls launch, so that none waits."""
        return host_us(call, torch.cuda.synchronize, 100, 3)

    def launches(self, calls: Mapping[str, Call]) -> dict[str, int]:
        """As torch.profiler records them, in one session: beginning one takes long."""
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for call in calls.values():
                torch.cuda._sleep(1000)
                call()
            torch.cuda.synchronize()
        events = [
            e
            for e in profile.events()
            if e.device_type == torch.autograd.DeviceType.CUDA
            and not getattr(e, "is_user_annotation", False)
        ]
        events.sort(key=lambda event: event.time_range.start)
        counts: list[int] = []
        for event in events:
            if _MARKER in event.name:
                counts.append(0)
            elif counts:
                counts[-1] += 1
        return dict(zip(calls, counts, strict=True)) if len(counts) == len(calls) else {}

    def peak_mib(self, call: Call) -> float | None:
        """Of the framework's allocator."""
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    def copy_rate(self) -> float:
        """Of 4 GiB."""
        source = torch.empty(2**32, dtype=torch.uint8, device="cuda").random_()
        target = torch.empty_like(source)
        times = self.interleaved({"copy": [lambda: target.copy_(source)]}, 10)["copy"]
        return 2 * source.numel() / times.median * 1e3

    def matrix_ms(self, products: Sequence[tuple[int, int, int]]) -> float:
        """Six times each, the median."""
        total = 0.0
        for m, n, k in products:
            a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
            b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
            out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
            torch.mm(a, b, out=out)
            calls = {"mm": [lambda a=a, b=b, out=out: torch.mm(a, b, out=out)]}
            total += self.interleaved(calls, 6)["mm"].median
        return total


class CpuClock:
    """By the host's clock; as Clock. To try a run, not to compare."""

    def interleaved(self, calls: Calls, rounds: int) -> dict[str, Times]:
        """Wall time."""
        taken: dict[str, list[float]] = {name: [] for name in calls}
        for round_index in range(rounds):
            for name in in_turn(calls, round_index):
                begin = time.perf_counter()
                calls[name][round_index % len(calls[name])]()
                taken[name].append((time.perf_counter() - begin) * 1e3)
        return {name: summary(values) for name, values in taken.items()}

    def host_us(self, call: Call) -> float:
        """All of the time."""
        return host_us(call, lambda: None, 1, 1)

    def launches(self, calls: Mapping[str, Call]) -> dict[str, int]:
        """Not measured."""
        return {}

    def peak_mib(self, call: Call) -> float | None:
        """Not measured."""
        return None

    def copy_rate(self) -> float:
        """Of 1 MiB."""
        source = torch.zeros(2**20, dtype=torch.uint8)
        target = torch.empty_like(source)
        times = self.interleaved({"copy": [lambda: target.copy_(source)]}, 3)["copy"]
        return 2 * source.numel() / times.median * 1e3

    def matrix_ms(self, products: Sequence[tuple[int, int, int]]) -> float:
        """Once each."""
        total = 0.0
        for m, n, k in products:
            a, b = torch.ones(m, k), torch.ones(k, n)
            total += self.interleaved({"mm": [lambda a=a, b=b: a @ b]}, 1)["mm"].median
        return total
