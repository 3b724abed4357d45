"""Benchmarks of the fused operations against their peers on one GPU: JSON, a table and pictures.

Run as `./dev bench`, or `python -m tests.benchmarks --out DIR` with FUSEBOARD_HOME set.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import torch

from tests.benchmarks import page, timing
from tests.benchmarks.cases import Case, Forward, Tensors, all_cases, rms_norm, swiglu, versions

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load_kernels(home: pathlib.Path) -> dict[str, int]:
    """Loads binding and kernel libraries of an installation; returns the handles by operation."""
    torch.ops.load_library(str(next(home.glob("lib/fuseboard/torch/*/libfuseboard_torch.so"))))
    handles = {}
    for library in sorted(home.glob("lib/fuseboard/kernels/*.so")):
        handle = torch.ops.fuseboard.load_kernel(str(library))
        torch.ops.fuseboard.prepare_kernel(handle, torch.device("cuda"))
        handles[library.stem] = handle
    return handles


def leaves(tensors: Tensors) -> list[torch.Tensor]:
    """The tensors that want a gradient."""
    return [t for t in tensors if t.requires_grad]


def full(forward: Forward, inputs: Tensors, upstream: torch.Tensor) -> Callable[[], object]:
    """Forward and backward of one call, gradients returned and not accumulated."""
    wanted = leaves(inputs)
    return lambda: torch.autograd.grad(forward(*inputs), wanted, upstream)


def forward_only(forward: Forward, inputs: Tensors) -> Callable[[], object]:
    """The forward of one call as training runs it: the graph is recorded."""
    return lambda: forward(*inputs)


def upstream_of(case: Case, inputs: Tensors) -> torch.Tensor:
    """An upstream gradient that is not 1."""
    if case.scalar:
        return torch.full((), 0.5, device="cuda")
    return torch.randn_like(inputs[0])


def relative_error(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
    """The largest over the tensors of ||got - want|| / ||want||."""
    return max(
        float((g.double() - w).norm() / w.norm().clamp_min(1e-300))
        for g, w in zip(got, want, strict=True)
    )


def errors(case: Case) -> dict[str, float]:
    """Relative error of output and gradients against float64, by implementation."""
    inputs = case.make(7)
    upstream = upstream_of(case, inputs)
    exact = tuple(
        t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t
        for t in inputs
    )
    output = case.forwards["eager"](*exact)
    want = [output.detach(), *torch.autograd.grad(output, leaves(exact), upstream.double())]
    del exact, output
    found = {}
    for name, forward in case.forwards.items():
        output = forward(*inputs)
        if upstream.dtype != output.dtype:
            upstream = upstream.to(output.dtype)
        got = [output.detach(), *torch.autograd.grad(output, leaves(inputs), upstream)]
        found[name] = relative_error(got, want)
        del got, output
    return found


def measure(case: Case, copy_rate: float, rounds: int) -> list[dict[str, object]]:
    """All rows of one case."""
    sets = [case.make(seed) for seed in range(4 if case.bytes_full < 2**30 else 2)]
    if case.products:
        sets = sets[:1]
    upstream = upstream_of(case, sets[0])
    found_errors = errors(case) if case.has_error else {}
    forward_calls, full_calls = {}, {}
    for name, forward in case.forwards.items():
        ups = upstream.float() if case.scalar else upstream
        forward_calls[name] = [forward_only(forward, s) for s in sets]
        full_calls[name] = [full(forward, s, ups) for s in sets]
        for _ in range(3):  # compile, tune, fill the allocator's cache
            full_calls[name][0]()
            forward_calls[name][0]()
    floor_forward = case.bytes_forward / copy_rate * 1e3
    floor_full = case.bytes_full / copy_rate * 1e3
    if case.products:
        floor_forward = timing.matrix_ms(case.forward_products)
        floor_full = timing.matrix_ms(case.products)
    forward_times = timing.interleaved(forward_calls, rounds)
    full_times = timing.interleaved(full_calls, rounds)
    rows = []
    for name in case.forwards:
        row = {
            "operation": case.operation,
            "shape": case.shape,
            "dtype": "bfloat16",
            "impl": name,
            "impl_version": versions().get(name.split(" ")[0], page.own_version()),
            "fwd_ms": forward_times[name].median,
            "fwd_ms_spread": [forward_times[name].low, forward_times[name].high],
            "full_ms": full_times[name].median,
            "full_ms_spread": [full_times[name].low, full_times[name].high],
            "floor_fwd_ms": floor_forward,
            "floor_full_ms": floor_full,
            "launches": timing.launches(full_calls[name][0]),
            "peak_mib": timing.peak_mib(full_calls[name][0]),
            "share_of_limit_fwd": floor_forward / forward_times[name].median,
            "share_of_limit_full": floor_full / full_times[name].median,
            "rel_error_vs_fp64": found_errors.get(name),
            "native_rel_error_vs_fp64": found_errors.get("eager"),
        }
        rows.append(row)
    return rows


def measure_host(kernels: dict[str, int]) -> list[dict[str, object]]:
    """Host time per call of launch-bound operations, 64 x 2048."""
    rows = []
    for case in (
        rms_norm(64, 2048, kernels["rms_norm"]),
        swiglu(64, 2048, kernels["swiglu"]),
    ):
        inputs = case.make(1)
        upstream = upstream_of(case, inputs)
        for name, forward in case.forwards.items():
            rows.append(
                {
                    "operation": case.operation,
                    "shape": "64x2048",
                    "impl": name,
                    "host_us_fwd": timing.host_us(forward_only(forward, inputs)),
                    "host_us_full": timing.host_us(full(forward, inputs, upstream)),
                }
            )
    return rows


def context(copy_rate: float) -> dict[str, object]:
    """What the numbers depend on."""
    clocks = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem", "--format=csv,noheader"],
        check=False,
        capture_output=True,
        text=True,
    ).stdout.strip()
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver_and_clocks": clocks,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "versions": versions(),
        "copy_bytes_per_s": copy_rate,
        "commit": os.environ.get("FUSEBOARD_COMMIT", page.commit(ROOT)),
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> int:
    """Measures every case; writes the JSON after each, so that nothing is lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out")
    parser.add_argument("--name", default="h200-foundation", help="stem of the files written")
    parser.add_argument("--quick", action="store_true", help="only the shapes that decide")
    parser.add_argument("--rounds", type=int, default=20, help="timed calls per implementation")
    parser.add_argument("--seconds", type=float, default=480, help="start no case after this long")
    options = parser.parse_args()
    begin = time.monotonic()
    kernels = load_kernels(pathlib.Path(os.environ["FUSEBOARD_HOME"]))
    copy_rate = timing.copy_rate()
    result = {"context": context(copy_rate), "host": measure_host(kernels), "rows": []}
    options.out.mkdir(parents=True, exist_ok=True)
    target = options.out / f"{options.name}.json"
    cases = all_cases(kernels, options.quick)
    for index, case in enumerate(cases, 1):
        if time.monotonic() - begin > options.seconds:
            print(f"out of time: {len(cases) - index + 1} cases not measured", file=sys.stderr)
            break
        try:
            rows = measure(case, copy_rate, options.rounds)
        except torch.OutOfMemoryError as error:
            print(f"{case.operation} {case.shape}: {error}", file=sys.stderr)
            continue
        result["rows"] += rows
        print(f"[{index}/{len(cases)}] {case.operation} {case.shape}", flush=True)
        for row in rows:
            print(page.line(row), flush=True)
        target.write_text(json.dumps(result, indent=1))
        gc.collect()
        torch.cuda.empty_cache()
    target.write_text(json.dumps(result, indent=1))
    page.write(result, options.out / f"{options.name}.md")
    print(f"wrote {target} in {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
