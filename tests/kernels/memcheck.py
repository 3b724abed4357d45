"""Runs the kernels' GPU tests under compute-sanitizer's memory checker, or another of its tools.

Takes the test programs and their arguments from ctest, so that it can miss none. Each program is
several processes with a share of its tests each (gtest's shards), as many at a time as there are
cores: most of what a check takes is the host's time, for references in double and for the checker's
own work at every launch.

racecheck follows every access to shared memory, and what blocks exchange takes it longest: on an
H200 0.04 s for a softmax of 1000 x 4096, 0.3 s for one row of 131072 in a cluster, 0.9 s for the
backward of a norm of two rows of 16392. Tests of more than 2^31 elements ("Huge" or "Beyond2To31"
in their names) are left out for it, and of the others the calls with large tensors run on the CPU
(tests/testing/kernel_harness.h). Wide rows of the norms have a program of their own, wide_norm_tune
race: a process for each pass of each operation.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

SHARDS = 4
WIDE_NORMS = ("rms_norm", "fused_add_rms_norm", "layer_norm")
WIDEST_OTHERS = 1 << 14  # Columns of the norms' rows that are not wide.
# What the checker says of a process that makes no call to CUDA, as a share of no tests.
NO_CALL = "terminated before first instrumented API call"


@dataclasses.dataclass(frozen=True)
class Tool:
    """How a tool of compute-sanitizer is used.

    Attributes:
        left_out: Filter patterns of the tests that it would not finish.
        gpu_elements: The largest tensor of a call that runs on the GPU; 0: any.
        seconds: Limit of one process.
        within: Limit of all together.
    """

    left_out: tuple[str, ...] = ()
    gpu_elements: int = 0
    seconds: int = 240
    within: int = 3600


TOOLS = {
    "memcheck": Tool(),
    "initcheck": Tool(),
    "racecheck": Tool(("*Huge*", "*Beyond2To31*"), gpu_elements=1 << 17, seconds=150, within=240),
}


@dataclasses.dataclass(frozen=True)
class Program:
    """What is checked.

    Attributes:
        command: Its command line.
        shards: How many processes share its tests; 0: it has none, and is right if it ends with 0.
        environment: What it gets beside the caller's variables.
    """

    command: list[str]
    shards: int = 0
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


def gpu_commands(build: str) -> dict[str, list[str]]:
    """Command lines of the kernel tests with label gpu, by test name; their names if not built."""
    listed = subprocess.run(
        ["ctest", "--test-dir", build, "-L", "gpu", "--show-only=json-v1"],
        capture_output=True,
        text=True,
        check=True,
    )
    tests = json.loads(listed.stdout)["tests"]
    kernels = (t for t in tests if t["name"].startswith("tests/kernels/"))
    return {t["name"]: t.get("command", [t["name"]]) for t in kernels}


def without(command: list[str], left_out: tuple[str, ...]) -> list[str]:
    """The command with tests excluded by its gtest filter."""
    if not left_out:
        return command
    option = "--gtest_filter="
    words = [w for w in command if not w.startswith(option)]
    chosen = next((w.removeprefix(option) for w in command if w.startswith(option)), "*")
    return [*words, option + chosen + (":" if "-" in chosen else "-") + ":".join(left_out)]


def limits(test: str, tool: Tool) -> dict[str, str]:
    """The variables by which the harness of a test keeps large calls off the GPU."""
    if not tool.gpu_elements:
        return {}
    if test.startswith(tuple(f"tests/kernels/{norm}/" for norm in WIDE_NORMS)):
        return {
            "FUSEBOARD_TEST_GPU_COLUMNS": str(WIDEST_OTHERS),
            "FUSEBOARD_TEST_GPU_ELEMENTS": str(4 * tool.gpu_elements),  # They exchange little.
        }
    return {"FUSEBOARD_TEST_GPU_ELEMENTS": str(tool.gpu_elements)}


def programs(build: str, name: str, tool: Tool) -> dict[str, Program]:
    """All that a tool checks, by name; first what takes longest."""
    found = {}
    if name == "racecheck":
        tune = f"{build}/tests/kernels/tuning/wide_norm_tune"
        for operation, way in itertools.product(WIDE_NORMS, ("forward", "backward")):
            command = [tune, "race", operation, way]
            found[f"wide_norm_tune {operation} {way}"] = Program(command)
    for test, command in gpu_commands(build).items():
        chosen = without(command, tool.left_out)
        found[test] = Program(chosen, SHARDS, limits(test, tool))
    return found


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one process said.

    Attributes:
        failed: Whether the checker or a test found an error, or the process did not finish.
        tests: How many tests passed.
        summary: In a line.
        output: All of it.
    """

    failed: bool
    tests: int
    summary: str
    output: str


def where(lines: list[str]) -> str:
    """The test in which a process was, or the last that it said."""
    running = [line for line in lines if line.startswith("[ RUN ")]
    last = running[-1].split("] ")[-1] if running else (lines or ["nothing said"])[-1]
    return f"in {last}" if running else f"after: {last}"


def judge(returncode: int, lines: list[str], has_tests: bool) -> Outcome:
    """What became of a process that finished."""
    summary = next((x for x in reversed(lines) if "SUMMARY" in x), "no summary").strip("= ")
    passed = re.search(r"\[  PASSED  \] (\d+) test", "\n".join(lines))
    tests = int(passed.group(1)) if passed else 0
    idle = passed is not None and (tests == 0 or any(NO_CALL in line for line in lines))
    failed = (returncode != 0 and not idle) or (has_tests and passed is None)
    failed = failed or any(line.startswith("[  FAILED  ]") for line in lines)
    return Outcome(failed, tests, summary, "\n".join(lines[-60:]))


class Checker:
    """One of compute-sanitizer's tools on the programs of a build tree."""

    def __init__(self, build: str, name: str, tool: Tool) -> None:
        self._name, self._tool = name, tool
        self._end = time.monotonic() + tool.within
        self._environment = {**os.environ, "FUSEBOARD_HOME": f"{build}/stage"}

    def run(self, program: Program, shard: int = 0) -> Outcome:
        """Checks a program, or a share of its tests."""
        if not pathlib.Path(program.command[0]).exists():
            return Outcome(True, 0, f"{program.command[0]} is not built", "")
        limit = min(self._tool.seconds, self._end - time.monotonic())
        if limit <= 0:
            return Outcome(True, 0, f"not finished: none begins after {self._tool.within} s", "")
        shards = {"GTEST_TOTAL_SHARDS": str(program.shards), "GTEST_SHARD_INDEX": str(shard)}
        checker = ["compute-sanitizer", "--tool", self._name, "--error-exitcode", "97"]
        # A session of its own: the checker and what it checks are ended together.
        with subprocess.Popen(
            [*checker, *program.command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=self._environment | program.environment | (shards if program.shards else {}),
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                lines = process.communicate()[0].splitlines()
                why = f"not finished in {limit:.0f} s, {where(lines)}"
                return Outcome(True, 0, why, "\n".join(lines[-60:]))
        return judge(process.returncode, output.splitlines(), program.shards > 0)


def report(tool: str, name: str, program: Program, outcomes: list[Outcome]) -> bool:
    """Prints what became of a program; returns whether it passed."""
    failed = [o for o in outcomes if o.failed]
    if failed:
        print(f"{tool} {name}: {'; '.join(o.summary for o in failed)}", flush=True)
        for outcome in failed:
            print(outcome.output, flush=True)
        return False
    tests = sum(o.tests for o in outcomes)
    told = [o for o in outcomes if o.tests or not program.shards]
    summaries = {o.summary for o in told} or {"all of them left out"}
    counted = f"{tests} tests, " if program.shards else ""
    print(f"{tool} {name}: {counted}{'; '.join(sorted(summaries))}", flush=True)
    return True


def check(build: str, name: str, tool: Tool, only: str, jobs: int) -> int:
    """Checks every program; returns 1 if one had an error or did not finish."""
    chosen = {n: p for n, p in programs(build, name, tool).items() if only in n}
    if not chosen:
        print("memcheck: ctest lists no such kernel test with label gpu", file=sys.stderr)
        return 1
    checker = Checker(build, name, tool)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = {
            n: [pool.submit(checker.run, p, shard) for shard in range(max(p.shards, 1))]
            for n, p in chosen.items()
        }
        passed = [
            report(name, n, chosen[n], [shard.result() for shard in shards])
            for n, shards in running.items()
        ]
    print(f"{sum(passed)} passed, {len(passed) - sum(passed)} failed")
    return 0 if all(passed) else 1


def main() -> int:
    """Runs from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", help="build tree, e.g. build/gpu")
    parser.add_argument("--tool", default="memcheck", choices=tuple(TOOLS))
    parser.add_argument("--only", default="", help="programs whose names contain this")
    parser.add_argument("--seconds", type=int, help="limit of one process")
    parser.add_argument("--within", type=int, help="limit in seconds of all of them together")
    parser.add_argument("--gpu-elements", type=int, help="largest tensor of a call on the GPU")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    options = parser.parse_args()
    given = {
        field: getattr(options, field)
        for field in ("seconds", "within", "gpu_elements")
        if getattr(options, field) is not None
    }
    tool = dataclasses.replace(TOOLS[options.tool], **given)
    return check(options.build, options.tool, tool, options.only, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
