"""memcheck.py with a checker, a list of tests and programs that pretend."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import memcheck

CHECKER = """#!/bin/sh
echo "========= COMPUTE-SANITIZER $*"
while [ "${1#--}" != "$1" ]; do shift; shift; done
"$@"
code=$?
if [ -n "$NO_CALLS" ]; then
  echo "========= Error: Target application terminated before first instrumented API call"
  exit 97
fi
if [ -n "$RACES" ]; then echo "========= RACECHECK SUMMARY: $RACES hazards"; exit 97; fi
echo "========= ERROR SUMMARY: 0 errors"
exit $code
"""
PASSES = """
echo "[ RUN      ] Gpu/XTest.Works/0"
echo "elements ${FUSEBOARD_TEST_GPU_ELEMENTS:-any}, columns ${FUSEBOARD_TEST_GPU_COLUMNS:-any}"
echo "share $GTEST_SHARD_INDEX"
echo "[  PASSED  ] 2 tests."
"""
FAILS = """
echo "[  FAILED  ] Gpu/XTest.Works/0"
echo "[  PASSED  ] 1 test."
exit 1
"""
HANGS = """
echo "[ RUN      ] Gpu/XTest.Works/0"
echo "[       OK ] Gpu/XTest.Works/0"
echo "[ RUN      ] Gpu/XTest.TakesForever/0"
sleep 600 & echo $! > "$0.child"; wait
"""


class Build:
    """A build tree with one test program, and `compute-sanitizer` and `ctest` on the path."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.program = self.script("x_test", PASSES)
        self.wide = self.script("tests/kernels/tuning/wide_norm_tune", 'echo "ran $2 $3"')
        self.script("compute-sanitizer", CHECKER)
        self.list([{"name": "tests/kernels/x_test.cc.gpu", "command": [str(self.program)]}])

    def script(self, name: str, body: str) -> pathlib.Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body if body.startswith("#!") else f"#!/bin/sh\n{body}")
        path.chmod(0o755)
        return path

    def list(self, tests: list[dict[str, object]]) -> None:
        self.script("ctest", f"cat <<'END'\n{json.dumps({'tests': tests})}\nEND")

    def check(self, tool: str = "memcheck", only: str = "", **changed: int) -> int:
        chosen = dataclasses.replace(memcheck.TOOLS[tool], **changed)
        return memcheck.check(str(self.folder), tool, chosen, only, jobs=4)


@pytest.fixture
def build(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Build(tmp_path)


@pytest.mark.parametrize(
    ("words", "want"),
    [
        (["x"], ["x", "--gtest_filter=*-*Huge*:*Many*"]),
        (["x", "--gtest_filter=Gpu*"], ["x", "--gtest_filter=Gpu*-*Huge*:*Many*"]),
        (["x", "--gtest_filter=*-A*"], ["x", "--gtest_filter=*-A*:*Huge*:*Many*"]),
    ],
)
def test_tests_are_left_out_by_the_filter_that_is_there(words: list[str], want: list[str]) -> None:
    assert memcheck.without(words, ("*Huge*", "*Many*")) == want
    assert memcheck.without(words, ()) == words


def test_the_tests_of_all_shares_are_counted(build: Build, capsys) -> None:
    assert build.check() == 0
    told = capsys.readouterr().out
    assert "memcheck tests/kernels/x_test.cc.gpu: 8 tests, ERROR SUMMARY: 0 errors" in told
    assert "1 passed, 0 failed" in told


def test_a_failing_test_and_a_report_of_the_checker_are_failures(
    build: Build, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.script("x_test", FAILS)
    assert build.check() == 1
    build.script("x_test", PASSES)
    monkeypatch.setenv("RACES", "3")
    assert build.check() == 1
    assert "RACECHECK SUMMARY: 3 hazards" in capsys.readouterr().out


def test_a_share_that_makes_no_call_to_cuda_passes_unless_a_test_of_it_fails(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_CALLS", "1")
    assert build.check() == 0
    build.script("x_test", FAILS)
    assert build.check() == 1


def test_what_is_not_finished_fails_by_the_name_of_its_test_and_is_ended(
    build: Build, capsys
) -> None:
    build.script("x_test", HANGS)
    assert build.check(seconds=1) == 1
    assert "not finished in 1 s, in Gpu/XTest.TakesForever/0" in capsys.readouterr().out
    child = pathlib.Path("/proc", pathlib.Path(f"{build.program}.child").read_text().strip())
    deadline = time.monotonic() + 30
    while child.exists() and "Z" not in (child / "stat").read_text().rsplit(")", 1)[1]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_none_begins_after_the_limit_of_all(build: Build, capsys) -> None:
    assert build.check(within=0) == 1
    assert "not finished: none begins after 0 s" in capsys.readouterr().out


def test_racecheck_keeps_large_calls_off_the_gpu_and_checks_wide_norms(
    build: Build, capsys
) -> None:
    build.script("x_test", PASSES + 'echo "[  FAILED  ] to show the output"\n')
    assert build.check("racecheck") == 1
    told = capsys.readouterr().out
    assert "elements 131072, columns any\nshare 3\n" in told
    assert "racecheck wide_norm_tune layer_norm backward: ERROR SUMMARY: 0 errors" in told
    assert "6 passed, 1 failed" in told
    build.list([{"name": "tests/kernels/rms_norm/x_test.cc", "command": [str(build.program)]}])
    build.check("racecheck", only="x_test")
    assert "elements 524288, columns 16384\n" in capsys.readouterr().out
    build.check()
    assert "elements any, columns any\n" in capsys.readouterr().out


def test_a_wide_norm_that_is_not_built_or_ends_with_an_error_fails(build: Build, capsys) -> None:
    build.script("tests/kernels/tuning/wide_norm_tune", "exit 1")
    assert build.check("racecheck", only="rms_norm forward") == 1
    build.wide.unlink()
    assert build.check("racecheck", only="rms_norm forward") == 1
    assert "wide_norm_tune is not built" in capsys.readouterr().out


def test_a_test_that_is_not_built_fails(build: Build, capsys) -> None:
    build.list([{"name": "tests/kernels/x_test.cc.gpu"}])
    assert build.check() == 1
    assert "tests/kernels/x_test.cc.gpu is not built" in capsys.readouterr().out


def test_no_program_at_all_is_a_failure(build: Build, capsys) -> None:
    assert build.check(only="y_test") == 1
    assert "lists no such kernel test" in capsys.readouterr().err
