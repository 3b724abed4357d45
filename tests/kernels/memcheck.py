"""Runs the kernels' GPU tests under compute-sanitizer's memory checker.

Takes the test programs and their arguments from ctest, so that it can miss none. Tests of more than
2^31 elements (their names contain "Huge") are left out: the checker would take hours.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys


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


def main() -> int:
    """Checks every program; returns 1 if one had an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", help="build tree, e.g. build/gpu")
    parser.add_argument(
        "--tool", default="memcheck", choices=("memcheck", "racecheck", "initcheck")
    )
    parser.add_argument("--seconds", type=int, default=240, help="limit of one program")
    options = parser.parse_args()
    commands = gpu_commands(options.build)
    if not commands:
        print("memcheck: ctest lists no kernel test with label gpu", file=sys.stderr)
        return 1
    failed = []
    for name, command in commands.items():
        checker = ["compute-sanitizer", "--tool", options.tool, "--error-exitcode", "97"]
        home = {"FUSEBOARD_HOME": f"{options.build}/stage"}
        try:
            run = subprocess.run(
                [*checker, *without_huge(command)],
                capture_output=True,
                text=True,
                check=False,
                timeout=options.seconds,
                env={**os.environ, **home},
            )
        except subprocess.TimeoutExpired:
            failed.append(name)
            print(f"{options.tool} {name}: not finished in {options.seconds} s")
            continue
        lines = run.stdout.splitlines()
        verdict = next((x for x in reversed(lines) if "ERROR SUMMARY" in x), "no summary")
        passed = next((x for x in reversed(lines) if "PASSED" in x), "no test passed")
        print(f"{options.tool} {name}: {verdict.strip()} {passed.strip()}", flush=True)
        if run.returncode != 0 or "PASSED" not in passed:
            failed.append(name)
            print("\n".join(lines[-60:]) + run.stderr[-2000:])
    print(f"{len(commands) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
