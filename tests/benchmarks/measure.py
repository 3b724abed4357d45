"""One case measured: times, launches, memory and errors of all its implementations."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from tests.benchmarks import page, timing
from tests.benchmarks.case import Bench, Case, Forward, Tensors, outputs
from tests.benchmarks.peers import version_of

Row = dict[str, object]
_MANY_BYTES = 2**30


def leaves(tensors: Tensors) -> list[torch.Tensor]:
    """The tensors that want a gradient."""
    return [t for t in tensors if t.requires_grad]


def copies(tensors: Tensors, dtype: torch.dtype | None = None) -> Tensors:
    """Leaves of their own, the floating ones in another dtype if one is given."""
    return tuple(
        t.detach()
        .to(dtype if dtype is not None and t.is_floating_point() else t.dtype, copy=True)
        .requires_grad_(t.requires_grad)
        for t in tensors
    )


def upstream_like(results: Tensors, of_loss: float, seed: int = 3) -> Tensors:
    """Upstream gradients: `of_loss` for a loss, random numbers for the rest."""
    g = torch.Generator(results[0].device).manual_seed(seed)
    return tuple(
        torch.full_like(r, of_loss)
        if r.dim() == 0
        else torch.empty_like(r).copy_(torch.randn(r.shape, generator=g, device=r.device))
        for r in (result.detach() for result in results)
    )


def full(
    forward: Forward, inputs: Tensors, upstream: Tensors, *, is_backward: bool = False
) -> Callable[[], object]:
    """Forward and backward of one call, gradients returned and not accumulated.

    With `is_backward` nothing is given upstream, as in loss.backward(); autograd makes the 1.
    """
    wanted, given = leaves(inputs), None if is_backward else upstream
    return lambda: torch.autograd.grad(outputs(forward(*inputs)), wanted, given)


def forward_only(forward: Forward, inputs: Tensors) -> Callable[[], object]:
    """The forward of one call as training runs it: the graph is recorded."""
    return lambda: forward(*inputs)


def relative_error(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
    """The largest over the tensors of ||got - want|| / ||want||."""
    return max(
        float((g.double() - w).norm() / w.norm().clamp_min(1e-300))
        for g, w in zip(got, want, strict=True)
    )


def results_and_gradients(
    forward: Forward, inputs: Tensors, upstream: Tensors
) -> list[torch.Tensor]:
    """Everything that one call computes, in the dtypes of the implementation."""
    results = outputs(forward(*inputs))
    given = tuple(u.to(r.dtype, copy=True) for u, r in zip(upstream, results, strict=True))
    gradients = torch.autograd.grad(results, leaves(inputs), given)
    return [t.detach() for t in (*results, *gradients)]


def errors(case: Case, forwards: Mapping[str, Forward]) -> dict[str, float]:
    """Relative error of outputs and gradients against float64, by implementation."""
    inputs = case.make(7)
    exact = copies(inputs, torch.float64)
    with torch.no_grad():
        upstream = upstream_like(outputs(case.forwards["eager"](*copies(inputs))), case.upstream)
    want = results_and_gradients(case.forwards["eager"], exact, upstream)
    del exact
    found = {}
    for name, forward in forwards.items():
        # Own copies: some implementations write gradients over their inputs.
        got = results_and_gradients(forward, copies(inputs), upstream)
        found[name] = relative_error(got, want)
        del got
    return found


def without_failing(
    case: Case, inputs: Tensors
) -> tuple[dict[str, tuple[Forward, float]], list[str]]:
    """The implementations that run here with the first call's seconds; a line for each that does not."""
    running: dict[str, tuple[Forward, float]] = {}
    left_out: list[str] = []
    for name, forward in case.forwards.items():
        begin = time.perf_counter()
        try:
            mine = copies(inputs)
            results = outputs(forward(*mine))
            torch.autograd.grad(results, leaves(mine), upstream_like(results, case.upstream))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if name == "eager" or name.startswith("fuseboard"):
                raise
            lines = str(error).splitlines() or [type(error).__name__]
            left_out.append(f"{case.operation} {case.shape}: {name} fails: {lines[0][:200]}")
            print(left_out[-1], file=sys.stderr)
            continue
        running[name] = forward, time.perf_counter() - begin
    return running, left_out


def measure(case: Case, bench: Bench, copy_rate: float, rounds: int) -> tuple[list[Row], list[str]]:
    """A row for each implementation, and a line for each that is left out."""
    clock = timing.clock(bench.on_gpu)
    sets = [case.make(seed) for seed in range(4 if case.bytes_full < _MANY_BYTES else 2)]
    if case.products:
        sets = sets[:1]
    running, left_out = without_failing(case, sets[0])
    forwards = {name: forward for name, (forward, _) in running.items()}
    found = errors(case, forwards) if case.has_error else {}
    forward_calls, full_calls = {}, {}
    for name, forward in forwards.items():
        # Upstream gradients of its own: some implementations write over them.
        results = outputs(forward(*copies(sets[0])))
        is_loss = all(r.dim() == 0 for r in results)
        upstream = upstream_like(results, case.upstream)
        forward_calls[name] = [forward_only(forward, s) for s in sets]
        full_calls[name] = [
            full(forward, s, upstream, is_backward=is_loss and case.upstream == 1) for s in sets
        ]
        for _ in range(2):  # Fill the allocator's cache, tune.
            full_calls[name][-1]()
            forward_calls[name][-1]()
    floors = _floors(case, clock, copy_rate)
    forward_times = clock.interleaved(forward_calls, rounds)
    full_times = clock.interleaved(full_calls, rounds)
    launches = clock.launches({name: calls[0] for name, calls in full_calls.items()})
    rows: list[Row] = [
        {
            "operation": case.operation,
            "shape": case.shape,
            "dtype": str(sets[0][0].dtype).removeprefix("torch."),
            "impl": name,
            "upstream": case.upstream if is_loss else "random",
            "impl_version": version_of(name, page.own_version()),
            "fwd_ms": forward_times[name].median,
            "fwd_ms_spread": [forward_times[name].low, forward_times[name].high],
            "full_ms": full_times[name].median,
            "full_ms_spread": [full_times[name].low, full_times[name].high],
            "floor_fwd_ms": floors[0],
            "floor_full_ms": floors[1],
            "host_us_fwd": clock.host_us(forward_calls[name][0]) if case.host else None,
            "host_us_full": clock.host_us(full_calls[name][0]) if case.host else None,
            "launches": launches.get(name),
            "peak_mib": clock.peak_mib(full_calls[name][0]),
            "share_of_limit_fwd": floors[0] / forward_times[name].median,
            "share_of_limit_full": floors[1] / full_times[name].median,
            "rel_error_vs_fp64": found.get(name),
            "native_rel_error_vs_fp64": found.get("eager"),
            "first_call_s": running[name][1],
        }
        for name in forwards
    ]
    return rows, left_out


def _floors(case: Case, clock: timing.Clock, copy_rate: float) -> tuple[float, float]:
    """The limit of forward and of both, milliseconds."""
    if case.products:
        return clock.matrix_ms(case.forward_products), clock.matrix_ms(case.products)
    return case.bytes_forward / copy_rate * 1e3, case.bytes_full / copy_rate * 1e3
