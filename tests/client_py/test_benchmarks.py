"""tests.benchmarks without a GPU: every case computes what it says, and a whole run goes through."""

from __future__ import annotations

import collections
import json
import pathlib
import time

import pytest

torch = pytest.importorskip("torch")

from fuseboard._home import find_home

from tests.benchmarks import __main__ as program
from tests.benchmarks import measure, timing
from tests.benchmarks.case import Case
from tests.benchmarks.suites import SUITES, cases_of

FIELDS = {
    "operation", "shape", "dtype", "impl", "impl_version", "fwd_ms", "full_ms", "host_us_fwd",
    "host_us_full", "launches", "peak_mib", "share_of_limit_fwd", "share_of_limit_full",
    "rel_error_vs_fp64", "native_rel_error_vs_fp64",
}  # fmt: skip
OPERATIONS = [(suite, operation) for suite in SUITES for operation in SUITES[suite].factories]


@pytest.fixture(scope="module")
def bench():
    """All kernels on the CPU, and no peers but torch."""
    return program.make_bench(find_home().root, "cpu")


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the program; returns its exit code and the folder it wrote to."""
    monkeypatch.setenv("FUSEBOARD_HOME", str(find_home().root))

    def call(*arguments: str) -> tuple[int, pathlib.Path]:
        command = [*arguments, "--device", "cpu", "--rounds", "1", "--out", str(tmp_path)]
        return program.main(command), tmp_path

    return call


@pytest.mark.parametrize("suite, operation", OPERATIONS)
def test_all_implementations_agree_with_float64(bench, suite, operation):
    cases = cases_of(SUITES[suite], bench, [operation], tiny=True)
    assert len(cases) >= 2
    for index, case in enumerate(cases):
        limit = 2e-2 if case.make(0)[0].dtype == torch.bfloat16 else 1e-6
        forwards = dict(case.forwards)
        assert {"eager", "torch.compile", "fuseboard"} <= forwards.keys()
        if index:
            del forwards["torch.compile"]  # Of each operation it compiles one shape.
        found = measure.errors(case, forwards)
        assert max(found.values()) < limit, (case.shape, found)


@pytest.mark.parametrize("suite", SUITES)
def test_every_shape_makes_a_case(bench, suite):
    chosen = SUITES[suite]
    cases = cases_of(chosen, bench)
    plain = [case for case in cases if case.upstream == 1]
    assert len(plain) == sum(len(shapes) for shapes in chosen.shapes.values())
    assert {case.operation for case in plain[: len(chosen.shapes)]} == set(chosen.shapes)
    for case in cases:
        assert (case.bytes_full > case.bytes_forward > 0) != bool(case.products)
    assert {o for names in chosen.groups.values() for o in names} <= set(chosen.factories)
    quick = cases_of(chosen, bench, quick=True)
    assert {case.operation for case in quick} == set(chosen.shapes) and len(quick) <= len(cases)


def test_losses_are_measured_with_both_kinds_of_upstream_gradient(bench):
    cases = cases_of(SUITES["kernels"], bench)
    losses = {case.operation for case in cases if case.upstream != 1}
    assert losses == {
        "cross_entropy", "kl_div", "jsd", "tvd", "fused_linear_cross_entropy", "fused_linear_jsd",
    }  # fmt: skip
    rows, _ = measure.measure(
        cases_of(SUITES["kernels"], bench, ["tvd"], tiny=True)[1], bench, 1e12, 1
    )
    assert {row["upstream"] for row in rows} == {0.5}
    assert all(row["shape"].endswith("upstream 0.5") for row in rows)


def test_a_backward_of_one_gives_the_gradients_of_ones():
    def twice(x):
        return (x * 2).sum()

    x = torch.randn(3, requires_grad=True)
    one = torch.ones(())
    (implied,) = measure.full(twice, (x,), (one,), is_backward=True)()
    (given,) = measure.full(twice, (x,), (one,))()
    assert torch.equal(implied, given)


def test_a_run_writes_rows_and_a_page_with_its_pictures(run):
    code, folder = run("--suite", "kernels", "softmax", "tvd", "--without", "torch.compile")
    assert code == 0
    result = json.loads((folder / "h200-kernels.json").read_text())
    assert {row["operation"] for row in result["rows"]} == {"softmax", "tvd"}
    assert {row["impl"] for row in result["rows"]} == {"eager", "fuseboard"}
    for row in result["rows"]:
        assert row.keys() >= FIELDS
        assert row["fwd_ms"] > 0 and row["host_us_full"] > 0
    page = (folder / "h200-kernels.md").read_text()
    assert "Not compared with: liger (needs a GPU)" in page
    assert "### softmax" in page and "## losses" in page and "## Host time per call" in page
    for picture in folder.glob("*.svg"):
        assert f"]({picture.name})" in page


def test_a_run_of_operations_without_groups_writes_their_own_pages(run):
    code, folder = run("swiglu")
    assert code == 0
    assert "## swiglu" in (folder / "h200-foundation.md").read_text()


def test_a_run_that_is_out_of_time_keeps_what_it_has(run, capsys):
    code, folder = run("--suite", "kernels", "--seconds", "1e-9")
    assert code == 0
    assert "cases not measured" in capsys.readouterr().err
    assert (folder / "h200-kernels.md").exists()


def test_what_was_left_out_stands_on_the_page(run):
    _, folder = run("--suite", "kernels", "--seconds", "1e-9")
    assert "- out of time: " in (folder / "h200-kernels.md").read_text()


def test_a_page_can_be_written_from_what_an_interrupted_run_left(run):
    _, folder = run("--suite", "kernels", "tvd", "--without", "torch.compile")
    files = [folder / "h200-kernels.md", folder / "h200-kernels-losses.svg"]
    written = [file.read_text() for file in files]
    for file in (*folder.glob("*.md"), *folder.glob("*.svg")):
        file.unlink()
    code, _ = run("--suite", "kernels", "--page-only")
    assert code == 0
    assert [file.read_text() for file in files] == written


def test_a_run_goes_on_where_an_earlier_one_ended(run, monkeypatch):
    arguments = ("--suite", "kernels", "softmax", "tvd", "--without", "torch.compile")
    _, folder = run(*arguments)
    target = folder / "h200-kernels.json"
    whole = json.loads(target.read_text())
    softmax = [row for row in whole["rows"] if row["operation"] == "softmax"]
    lines = ["out of time: 3 cases not measured", f"softmax {softmax[0]['shape']}: liger fails"]
    target.write_text(json.dumps({**whole, "rows": softmax, "left_out": lines}))
    code, _ = run(*arguments, "--resume")
    assert code == 0
    resumed = json.loads(target.read_text())
    assert resumed["rows"][: len(softmax)] == softmax
    assert resumed["left_out"] == lines[1:]
    key = [(row["operation"], row["shape"], row["impl"]) for row in resumed["rows"]]
    assert sorted(key) == sorted((r["operation"], r["shape"], r["impl"]) for r in whole["rows"])
    monkeypatch.setenv("FUSEBOARD_COMMIT", "another")
    with pytest.raises(SystemExit, match="commit of .* is .*, of this run 'another'"):
        run(*arguments, "--resume")


def test_a_process_that_warms_up_compiles_its_part_and_measures_nothing(run, monkeypatch):
    monkeypatch.setenv("FUSEBOARD_BENCHMARK_PART", "0/2")
    code, folder = run("--suite", "kernels", "tvd")
    assert code == 0 and not list(folder.iterdir())


def test_a_peer_that_compiles_for_long_is_measured_at_two_shapes():
    slow = collections.Counter({("double", "liger"): 2, ("double", "quack"): 1})
    case = tiny_case(liger=failing, quack=failing)
    assert program.without_slow(case, slow) == ["double 2x3: liger compiles for too long"]
    assert list(case.forwards) == ["eager", "fuseboard", "quack"]


def test_an_operation_that_is_unknown_is_named(run, capsys):
    with pytest.raises(SystemExit):
        run("--suite", "kernels", "rms_nrom")
    assert "suite kernels has no operation 'rms_nrom', only rms_norm" in capsys.readouterr().err


def failing(*tensors):
    raise RuntimeError("no kernel image\nand more")


def tiny_case(**forwards):
    def make(seed):
        return (
            torch.randn(2, 3, generator=torch.Generator().manual_seed(seed), requires_grad=True),
        )

    every = {"eager": lambda x: x * 2, "fuseboard": lambda x: x + x, **forwards}
    return Case("double", "2x3", make, every, 12.0, 24.0)


def test_a_peer_that_fails_is_named_and_left_out(bench, capsys):
    rows, left_out = measure.measure(tiny_case(liger=failing), bench, 1e12, 1)
    assert [row["impl"] for row in rows] == ["eager", "fuseboard"]
    assert left_out == ["double 2x3: liger fails: no kernel image"]
    assert left_out[0] in capsys.readouterr().err


def test_a_case_that_fails_does_not_end_the_run(bench, capsys):
    rows, left_out = program.measured(tiny_case(fuseboard=failing), bench, 1e12, 1)
    assert rows == [] and left_out == ["double 2x3: RuntimeError"]
    assert "double 2x3 fails:" in capsys.readouterr().err


def test_an_implementation_that_writes_over_its_inputs_spoils_nobody_elses(bench):
    class InPlace(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 2
            x.data.zero_()
            return y

        @staticmethod
        def backward(ctx, dy):
            dx = dy * 2
            dy.zero_()
            return dx

    found = measure.errors(tiny_case(), {"a": InPlace.apply, "b": lambda x: x * 2})
    assert found == {"a": 0.0, "b": 0.0}


def test_the_hosts_time_of_a_long_call_takes_few_calls():
    made = []

    def call():
        made.append(time.sleep(0.03))

    assert timing.host_us(call, lambda: None, 100, 3) >= 30_000
    assert len(made) == 5
    made.clear()
    assert timing.host_us(lambda: made.append(None), lambda: None, 100, 3) > 0
    assert len(made) == 2 + 6 + 300


def test_everyone_comes_after_everyone():
    names = ["a", "b", "c", "d"]
    orders = [timing.in_turn(names, index) for index in range(10)]
    assert all(sorted(order) == names for order in orders)
    assert orders == [timing.in_turn(names, index) for index in range(10)]
    for name in names:
        before = {order[order.index(name) - 1] for order in orders if order.index(name) > 0}
        assert len(before) >= 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_gpus_clock_counts_launches_and_memory():
    x = torch.ones(2**20, device="cuda")
    clock = timing.clock(True)
    calls = {"one": lambda: x + 1, "three": lambda: ((x + 1) * 2) - 3, "none": lambda: x.view(-1)}
    assert clock.launches(calls) == {"one": 1, "three": 3, "none": 0}
    assert clock.peak_mib(calls["one"]) == 4
    times = clock.interleaved({name: [call] for name, call in calls.items()}, 3)
    assert 0 < times["one"].median < times["three"].median
    assert clock.host_us(calls["one"]) > 0
