"""Compiles before anything is timed what Triton, QuACK and torch.compile keep on disk, in parallel.

Each shape makes them compile for seconds on one core; a run over all shapes would mostly wait for that.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence

import torch

from tests.benchmarks.case import Case, Forward, Tensors, outputs
from tests.benchmarks.measure import copies, leaves, upstream_like

_ENVIRONMENT = "FUSEBOARD_BENCHMARK_PART"  # "2/8" in the third of eight processes.


def part() -> tuple[int, int] | None:
    """Which of how many parts this process compiles; None: it is no such process."""
    text = os.environ.get(_ENVIRONMENT)
    if text is None:
        return None
    index, count = text.split("/")
    return int(index), int(count)


def run_parts(arguments: Sequence[str], processes: int, seconds: float) -> None:
    """Runs the program with `arguments` once for each part, all at once, for at most `seconds`."""
    command = [sys.executable, "-m", "tests.benchmarks", *arguments]
    running = [
        subprocess.Popen(
            command,
            env={**os.environ, _ENVIRONMENT: f"{index}/{processes}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for index in range(processes)
    ]
    end = time.monotonic() + seconds
    for process in running:
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def compile_part(cases: Sequence[Case], index: int, count: int) -> None:
    """Runs every count-th case once with each implementation that compiles; faults are the run's to report."""
    for case in cases[index::count]:
        torch._dynamo.reset()
        inputs = case.make(0)
        for name, forward in case.forwards.items():
            # Liger keeps nothing of its CuTe DSL on disk, the others compile nothing.
            if name in ("eager", "F.rms_norm", "liger cutedsl") or name.startswith("fuseboard"):
                continue
            # Whatever it raises, the run meets it again and names it.
            with contextlib.suppress(Exception):
                _once(forward, inputs, case.upstream)
        del inputs
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _once(forward: Forward, inputs: Tensors, upstream: float) -> None:
    mine = copies(inputs)
    results = outputs(forward(*mine))
    torch.autograd.grad(results, leaves(mine), upstream_like(results, upstream))
