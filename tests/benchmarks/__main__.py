"""Benchmarks of the fused operations against their peers on one GPU: JSON, tables and pictures.

Run as `./dev bench`, or `python -m tests.benchmarks --suite kernels --out DIR [operation ...]` with
FUSEBOARD_HOME set. `--device cpu` tries every case at a tiny shape without a GPU.
"""

from __future__ import annotations

import argparse
import collections
import functools
import gc
import json
import os
import pathlib
import subprocess
import sys
import time
import traceback
from typing import Any

import torch

from tests.benchmarks import page, peers, timing, warm_up
from tests.benchmarks.case import Bench, Case
from tests.benchmarks.measure import Row, measure
from tests.benchmarks.suites import SUITES, cases_of

Result = dict[str, Any]
# A peer whose first call takes longer than this is measured at so many shapes of an operation.
_SLOW_S, _SLOW_SHAPES = 8.0, 2
ROOT = pathlib.Path(__file__).resolve().parents[2]


def load_kernels(home: pathlib.Path, device: str) -> dict[str, int]:
    """Loads binding and kernel libraries of an installation; returns the handles by operation."""
    if not hasattr(torch.ops.fuseboard, "load_kernel"):
        torch.ops.load_library(str(next(home.glob("lib/fuseboard/torch/*/libfuseboard_torch.so"))))
    handles = {}
    for library in sorted(home.glob("lib/fuseboard/kernels/*.so")):
        handle = torch.ops.fuseboard.load_kernel(str(library))
        torch.ops.fuseboard.prepare_kernel(handle, torch.device(device))
        handles[library.stem] = handle
    return handles


def make_bench(home: pathlib.Path, device: str) -> Bench:
    """Kernels and peers for a device. Peers written in Triton have no CPU version."""
    on_gpu = device == "cuda"
    options = {"dynamic": False} if on_gpu else {"backend": "aot_eager", "fullgraph": True}
    triton = on_gpu or os.environ.get("TRITON_INTERPRET") == "1"
    compile_ = functools.partial(torch.compile, **options)
    return Bench(device, load_kernels(home, device), compile_, *peers.find(triton))


def context(bench: Bench, copy_rate: float) -> dict[str, object]:
    """What the numbers depend on."""
    clocks = ""
    if bench.on_gpu:
        query = "--query-gpu=driver_version,clocks.sm,clocks.mem"
        clocks = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],
            check=False,
            capture_output=True,
            text=True,
        ).stdout.strip()
    return {
        "gpu": torch.cuda.get_device_name() if bench.on_gpu else "no GPU",
        "driver_and_clocks": clocks,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "versions": peers.versions(),
        "absent": dict(bench.absent),
        "copy_bytes_per_s": copy_rate,
        "commit": os.environ.get("FUSEBOARD_COMMIT", page.commit(ROOT)),
        "date": time.strftime("%Y-%m-%d"),
    }


def device_fails(bench: Bench) -> bool:
    """Whether a peer's fault has made the device unusable for this process."""
    if bench.on_gpu:
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
    return False


def measured(
    case: Case, bench: Bench, copy_rate: float, rounds: int
) -> tuple[list[Row], list[str]]:
    """The rows of a case, also on the terminal, and what was left out.

    No rows if it fails, as what does not fit the device.
    """
    torch._dynamo.reset()  # Or the ninth shape of a function would run eager.
    try:
        rows, left_out = measure(case, bench, copy_rate, rounds)
    except (RuntimeError, AttributeError, torch.OutOfMemoryError) as error:
        print(f"{case.operation} {case.shape} fails:\n{traceback.format_exc()}", file=sys.stderr)
        rows, left_out = [], [f"{case.operation} {case.shape}: {type(error).__name__}"]
    for row in rows:
        print(page.line(row), flush=True)
    gc.collect()
    if bench.on_gpu and not device_fails(bench):
        torch.cuda.empty_cache()
    return rows, left_out


def without_slow(case: Case, slow: collections.Counter[tuple[str, str]]) -> list[str]:
    """Takes out the peers that compiled for long at two other shapes; a line for each."""
    names = [name for name in case.forwards if slow[case.operation, name] >= _SLOW_SHAPES]
    for name in names:
        del case.forwards[name]
    return [f"{case.operation} {case.shape}: {name} compiles for too long" for name in names]


def resumed(cases: list[Case], result: Result, target: pathlib.Path) -> list[Case]:
    """Puts into `result` what an earlier run measured; returns the cases that it did not.

    Raises:
        SystemExit: There is no earlier run, or it was of another device, torch or commit.
    """
    if not target.exists():
        raise SystemExit(f"--resume: no {target}")
    earlier = json.loads(target.read_text())
    for field in ("gpu", "torch", "commit"):
        was, now = earlier["context"][field], result["context"][field]
        if was != now:
            raise SystemExit(f"--resume: {field} of {target} is {was!r}, of this run {now!r}")
    result["rows"] = earlier["rows"]
    done = {(row["operation"], row["shape"]) for row in earlier["rows"]}
    names = tuple(f"{operation} {shape}:" for operation, shape in done)
    result["left_out"] = [line for line in earlier["left_out"] if line.startswith(names)]
    return [case for case in cases if (case.operation, case.shape) not in done]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operations", nargs="*", help="only these operations of the suite")
    parser.add_argument("--suite", choices=SUITES, default="foundation")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out")
    parser.add_argument("--name", default="", help="stem of the files written; default: h200-SUITE")
    parser.add_argument("--quick", action="store_true", help="only the shapes that decide")
    parser.add_argument("--rounds", type=int, default=0, help="timed calls per implementation")
    parser.add_argument("--seconds", type=float, default=0, help="start no case after this long")
    parser.add_argument(
        "--warm-up", type=int, metavar="N", help="compile in N processes before; 0: do not"
    )
    parser.add_argument(
        "--without", action="append", default=[], metavar="IMPL", help='e.g. "torch.compile"'
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the JSON in --out: same device, same commit",
    )
    parser.add_argument(
        "--page-only", action="store_true", help="write the page of a JSON that a run left in --out"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args(arguments)
    kernels = options.suite == "kernels"
    options.name = options.name or f"h200-{options.suite}"
    options.rounds = options.rounds or (10 if kernels else 20)
    options.seconds = options.seconds or (400 if kernels else 480)
    if options.warm_up is None:
        some = kernels and options.device == "cuda"
        options.warm_up = min(12, max(0, (os.cpu_count() or 0) - 4)) if some else 0
    unknown = [name for name in options.operations if name not in SUITES[options.suite].factories]
    if unknown:
        known = ", ".join(SUITES[options.suite].factories)
        parser.error(f"suite {options.suite} has no operation {unknown[0]!r}, only {known}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measures every case; writes the JSON after each, so that nothing is lost."""
    options = parse(arguments)
    begin = time.monotonic()
    if options.page_only:
        left = json.loads((options.out / f"{options.name}.json").read_text())
        page.write(left, options.out / f"{options.name}.md", SUITES[options.suite].groups)
        return 0
    bench = make_bench(pathlib.Path(os.environ["FUSEBOARD_HOME"]), options.device)
    suite = SUITES[options.suite]
    tiny = not bench.on_gpu
    cases = cases_of(suite, bench, options.operations, quick=options.quick, tiny=tiny)
    for case in cases:
        for name in options.without:
            case.forwards.pop(name, None)
    if (part := warm_up.part()) is not None:
        warm_up.compile_part(cases, *part)
        return 0
    if options.warm_up:
        given = sys.argv[1:] if arguments is None else arguments
        warm_up.run_parts(given, options.warm_up, options.seconds / 3)
        print(f"compiled in {time.monotonic() - begin:.0f} s", flush=True)
    copy_rate = timing.clock(bench.on_gpu).copy_rate()
    result: Result = {"context": context(bench, copy_rate), "rows": [], "left_out": []}
    options.out.mkdir(parents=True, exist_ok=True)
    target = options.out / f"{options.name}.json"
    if options.resume:
        cases = resumed(cases, result, target)
    failed = 0
    slow: collections.Counter[tuple[str, str]] = collections.Counter()
    for index, case in enumerate(cases, 1):
        elapsed = time.monotonic() - begin
        if elapsed > options.seconds:
            missing = f"out of time: {len(cases) - index + 1} cases not measured"
            print(missing, file=sys.stderr)
            result["left_out"].append(missing)
            break
        print(f"[{index}/{len(cases)} {elapsed:.0f} s] {case.operation} {case.shape}")
        result["left_out"] += without_slow(case, slow)
        rows, left_out = measured(case, bench, copy_rate, options.rounds)
        slow.update((r["operation"], r["impl"]) for r in rows if r["first_call_s"] > _SLOW_S)
        failed += not rows
        result["rows"] += rows
        result["left_out"] += left_out
        if device_fails(bench):
            failed += 1
            result["left_out"].append(f"all after {case.operation} {case.shape}: the device failed")
            target.write_text(json.dumps(result, indent=1))
            break
        target.write_text(json.dumps(result, indent=1))
    page.write(result, options.out / f"{options.name}.md", suite.groups)
    print(f"wrote {target} in {time.monotonic() - begin:.0f} s, {failed} cases failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
