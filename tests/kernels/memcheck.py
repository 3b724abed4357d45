"""Runs the kernels' GPU tests under compute-sanitizer's memory checker, or another of its tools.

Takes the test programs and their arguments from ctest, so that it can miss none. Tests of more than
2^31 elements (their names contain "Huge") are left out: the checker would take hours. Each program
is several processes with a share of its tests each (gtest's shards), as many at a time as there are
cores: most of what a check takes is the host's time, for references in double and for the checker's
own work at every launch.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import re
import subprocess
import sys

SHARDS = 4


def gpu_commands(build: str) -> dict[str, list[str]]:
    """Command lines of the kernel tests with label gpu, by test name."""
    listed = subprocess.run(
        ["ctest", "--test-dir", build, "-L", "gpu", "--show-only=json-v1"],
        capture_output=True,
        text=True,
        check=True,
    )
    tests = json.loads(listed.stdout)["tests"]
    return {t["name"]: t["command"] for t in tests if t["name"].startswith("tests/kernels/")}


def without_huge(command: list[str]) -> list[str]:
    """The command with the huge tests excluded by its gtest filter."""
    words = [w for w in command if not w.startswith("--gtest_filter=")]
    chosen = next((w for w in command if w.startswith("--gtest_filter=")), "--gtest_filter=*")
    return [*words, chosen + (":" if "-" in chosen else "-") + "*Huge*"]


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


class Checker:
    """One of compute-sanitizer's tools on the tests of a build tree."""

    def __init__(self, build: str, tool: str, seconds: int) -> None:
        self._build, self._tool, self._seconds = build, tool, seconds

    def run(self, command: list[str], shard: int) -> Outcome:
        """Checks a share of a program's tests."""
        checker = ["compute-sanitizer", "--tool", self._tool, "--error-exitcode", "97"]
        shards = {"GTEST_TOTAL_SHARDS": str(SHARDS), "GTEST_SHARD_INDEX": str(shard)}
        home = {"FUSEBOARD_HOME": f"{self._build}/stage"}
        try:
            run = subprocess.run(
                [*checker, *without_huge(command)],
                capture_output=True,
                text=True,
                check=False,
                timeout=self._seconds,
                env={**os.environ, **home, **shards},
            )
        except subprocess.TimeoutExpired:
            return Outcome(True, 0, f"not finished in {self._seconds} s", "")
        lines = run.stdout.splitlines()
        summary = next((x for x in reversed(lines) if "SUMMARY" in x), "no summary").strip("= ")
        passed = re.search(r"\[  PASSED  \] (\d+) test", run.stdout)
        tests = int(passed.group(1)) if passed else 0
        # A share of no tests makes no call to CUDA, of which the checker complains.
        empty = passed is not None and tests == 0
        failed = (run.returncode != 0 and not empty) or passed is None
        return Outcome(failed, tests, summary, "\n".join(lines[-60:]) + run.stderr[-2000:])


def report(tool: str, name: str, outcomes: list[Outcome]) -> bool:
    """Prints what became of a program; returns whether it passed."""
    tests = sum(o.tests for o in outcomes)
    failed = [o for o in outcomes if o.failed]
    if not failed:
        summaries = {o.summary for o in outcomes if o.tests} or {"all of them huge"}
        print(f"{tool} {name}: {tests} tests, {'; '.join(sorted(summaries))}", flush=True)
        return True
    print(f"{tool} {name}: {'; '.join(o.summary for o in failed)}", flush=True)
    for outcome in failed:
        print(outcome.output, flush=True)
    return False


def main() -> int:
    """Checks every program; returns 1 if one had an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", help="build tree, e.g. build/gpu")
    parser.add_argument(
        "--tool", default="memcheck", choices=("memcheck", "racecheck", "initcheck")
    )
    parser.add_argument("--only", default="", help="programs whose names contain this")
    parser.add_argument("--seconds", type=int, default=240, help="limit of one process")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    options = parser.parse_args()
    commands = {n: c for n, c in gpu_commands(options.build).items() if options.only in n}
    if not commands:
        print("memcheck: ctest lists no such kernel test with label gpu", file=sys.stderr)
        return 1
    checker = Checker(options.build, options.tool, options.seconds)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = {
            name: [pool.submit(checker.run, command, shard) for shard in range(SHARDS)]
            for name, command in commands.items()
        }
        passed = [
            report(options.tool, name, [shard.result() for shard in shards])
            for name, shards in running.items()
        ]
    print(f"{sum(passed)} passed, {len(passed) - sum(passed)} failed")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
