"""The demonstration: its text, its arithmetic, demo.json, the table and the page, from recorded runs."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import math
import xml.etree.ElementTree as ET

import pytest
from fuseboard._demo import charts
from fuseboard._demo.__main__ import main
from fuseboard._demo.config import DemoConfig, default_config
from fuseboard._demo.corpus import batch_of, load_corpus
from fuseboard._demo.page import render_page
from fuseboard._demo.result import DemoResult, kill_peaks, relative_differences
from fuseboard._demo.runs import SWITCHES, Run, Switch, run_live
from fuseboard._demo.table import bytes_text, render_table

NATIVE = [10.46, 10.20, 9.71, 9.34, 9.02, 8.7, 8.4, 8.1, 7.9, 7.7]
RMS, LOSS = "rms_norm", "fused_linear_cross_entropy"


def window(launches: float, step_ms: float) -> dict:
    return {
        "launches": {"value": launches, "samples": 2},
        "device_ms": None,
        "step_ms": {"value": step_ms, "samples": 7},
        "method": "OPERATOR_COUNT",
        "error": "",
        "kernels": [["aten.mm", 90]],
    }


def site(name: str, operation: str, kind: str = "kernel") -> dict:
    return {
        "site": name,
        "count": 4,
        "decision": f"{operation} 0.1.0",
        "reason": "catalogue default for <code> & more",
        "operation": operation,
        "kind": kind,
    }


def live_steps(peak_with_kill: int = 1_050_000_000) -> list[dict]:
    """14 steps; rms_norm native in [3, 12), the loss a composite in [6, 9)."""
    steps = []
    for number in range(14):
        runs = {
            RMS: "native" if 3 <= number < 12 else "kernel",
            "swiglu": "kernel",
            LOSS: "composite" if 6 <= number < 9 else "kernel",
        }
        peak = peak_with_kill if number >= 6 else 1_000_000_000
        steps.append({"step": number, "loss": 10.0 - number / 4, "runs": runs, "peak": peak})
    for recorded, loss in zip(steps, NATIVE):
        recorded["loss"] = loss * (1 + 1e-6)
    return steps


@pytest.fixture
def result() -> DemoResult:
    fused = [loss * (1 + 3e-6 * (i % 2)) for i, loss in enumerate(NATIVE)]
    sites = [site("LlamaRMSNorm/0a", RMS), site("LlamaMLP/1b", "swiglu"), site("LM/2c", LOSS)]
    return DemoResult(
        config=DemoConfig(),
        corpus="10 licences (200,000 bytes)",
        device="cpu",
        native=Run("cpu", "", steps(NATIVE), [], window(1200, 1400.5), 1_500_000_000),
        fused=Run("cpu", "", steps(fused), sites, window(700, 1300), 1_010_000_000),
        live=Run("cpu", "", live_steps(), sites, {}, None),
        switches=[
            Switch(f"disable {RMS}", RMS, 2, 3),
            Switch(f"kill {LOSS}", LOSS, 5, 6),
            Switch(f"unkill {LOSS}", LOSS, 8, 9),
            Switch(f"enable {RMS}", RMS, 11, 12),
        ],
        notes=[],
    )


def steps(losses: list[float]) -> list[dict]:
    return [{"step": i, "loss": loss} for i, loss in enumerate(losses)]


def failed(result: DemoResult) -> list[str]:
    return [claim.text for claim in result.claims() if claim.held is False]


# ---- demo.json ----


def test_json_has_exactly_the_promised_keys(result):
    plain = json.loads(json.dumps(result.to_json()))
    assert set(plain) == {
        "device",
        "steps",
        "loss_native",
        "loss_fused",
        "max_rel_loss_diff",
        "launches_per_step",
        "peak_bytes",
        "step_ms",
        "switches",
        "sites",
    }
    assert set(plain["launches_per_step"]) == {"native", "fused", "method"}
    assert set(plain["peak_bytes"]) == {"native", "fused", "method"}
    assert set(plain["step_ms"]) == {"native", "fused"}
    assert all(set(s) == {"what", "requested_at", "applied_step"} for s in plain["switches"])
    assert all(set(s) == {"site", "count", "decision", "reason"} for s in plain["sites"])


def test_json_carries_the_numbers_and_their_methods(result):
    plain = result.to_json()
    assert plain["loss_native"] == NATIVE
    assert plain["max_rel_loss_diff"] == pytest.approx(3e-6)
    assert plain["launches_per_step"] == {
        "native": 1200,
        "fused": 700,
        "method": "METHOD_OPERATOR_COUNT",
    }
    assert plain["peak_bytes"]["method"] == "METHOD_PEAK_RSS"
    assert plain["step_ms"] == {"native": 1400.5, "fused": 1300}


def test_what_was_not_measured_is_null_not_zero(result):
    empty = dict(window(0, 0), launches=None, error="another profiler holds CUPTI: nsys")
    result = dataclasses.replace(
        result,
        native=dataclasses.replace(result.native, window=empty, peak=None),
        notes=["native window: another profiler holds CUPTI: nsys"],
    )
    plain = result.to_json()
    assert plain["launches_per_step"]["native"] is None
    assert plain["peak_bytes"]["native"] is None
    assert failed(result) == []
    assert "not measured" in render_table(result)
    assert "not measured" in render_page(result)
    assert "another profiler holds CUPTI: nsys" in render_page(result)


# ---- Claims ----


def test_a_good_run_holds_every_claim(result):
    assert [claim.held for claim in result.claims()] == [True] * 10


def test_losses_beyond_the_tolerance_fail(result):
    result.fused.steps[5]["loss"] *= 1 + 2e-5
    assert failed(result) == ["fused and native losses agree within 1e-05 relative (float32)"]


def test_a_run_that_is_too_short_fails(result):
    del result.fused.steps[-1]
    assert any("losses agree" in text for text in failed(result))


def test_not_a_number_fails(result):
    result.fused.steps[5]["loss"] = math.nan
    assert any("losses agree" in text for text in failed(result))
    assert json.loads(json.dumps(result.to_json(), allow_nan=False))["loss_fused"][5] is None
    assert len(pictures(render_page(result))) == 6


def test_a_switch_that_the_job_did_not_make_fails(result):
    for step in result.live.steps:
        step["runs"][RMS] = "kernel"
    assert failed(result) == [
        "'disable rms_norm' takes effect while training runs",
        "'enable rms_norm' takes effect while training runs",
    ]


def test_a_switch_that_took_effect_at_another_step_than_reported_fails(result):
    wrong = [dataclasses.replace(s, applied_step=s.applied_step + 1) for s in result.switches]
    assert len(failed(dataclasses.replace(result, switches=wrong))) == 4


def test_a_kill_that_raises_the_peak_fails(result):
    for step in result.live.steps[6:]:
        step["peak"] = 1_200_000_000
    assert failed(result) == ["a kill of the fused loss raises the peak by at most 10%"]


def test_on_a_gpu_the_killed_steps_are_compared_with_the_fused_steps(result):
    result = dataclasses.replace(result, config=default_config("cuda"))
    for number, step in enumerate(result.live.steps):
        step["peak"] = 108 if 6 <= number < 9 else 100
    result.live.steps[0]["peak"] = 50  # Without the optimizer's state yet.
    assert kill_peaks(result) == (108, 100)


def test_native_everywhere_fails(result):
    for entry in result.fused.sites:
        entry["kind"] = "native"
    assert failed(result) == ["fused kernels run"]


def test_more_memory_or_more_operations_fail(result):
    result.fused.peak = 2_000_000_000
    result.fused.window["launches"]["value"] = 1201
    assert "operations per step fall" in failed(result)
    assert "peak memory falls" in failed(result)


def test_relative_differences_go_as_far_as_both_runs():
    assert relative_differences([2.0, 4.0, 5.0], [2.0, 3.0]) == [0.0, 0.25]
    assert relative_differences([], [1.0]) == []


# ---- The live run ----


class FakeProcess:
    """Steps whenever it is waited for."""

    def __init__(self, ends_after: int = 1000) -> None:
        self.steps_done = 0
        self.killed = False
        self._ends_after = ends_after

    def wait_for_step(self, step: int) -> None:
        if step > self._ends_after:
            raise RuntimeError("training ended")
        self.steps_done = max(self.steps_done, step)

    def finish(self) -> Run:
        return Run()

    def kill(self) -> None:
        self.killed = True


class FakeDaemon:
    def __init__(self, process: FakeProcess) -> None:
        self.process = process
        self.asked: list[tuple[str, str]] = []

    def switch(self, command: str, operation: str, wait_s: float) -> int:
        self.asked.append((command, operation))
        self.process.steps_done += 1
        return self.process.steps_done


def test_the_live_run_makes_all_switches_in_order_with_steps_between():
    process = FakeProcess()
    daemon = FakeDaemon(process)
    _, switches = run_live(process, daemon, 3, lambda text: None)
    assert daemon.asked == list(SWITCHES)
    assert [(s.requested_at, s.applied_step) for s in switches] == [
        (3, 4),
        (7, 8),
        (11, 12),
        (15, 16),
    ]
    assert process.steps_done == 19


def test_a_live_run_that_breaks_leaves_no_process_behind():
    process = FakeProcess(ends_after=5)
    with pytest.raises(RuntimeError, match="training ended"):
        run_live(process, FakeDaemon(process), 3, lambda text: None)
    assert process.killed


# ---- Text ----


def test_the_default_text_is_named_and_each_file_counts_once(tmp_path):
    (tmp_path / "GPL-3").write_bytes(b"g" * 5000)
    (tmp_path / "GPL").symlink_to("GPL-3")
    (tmp_path / "BSD").write_bytes(b"b" * 100)
    corpus = load_corpus(None, tmp_path)
    assert corpus.text == b"b" * 100 + b"\n" + b"g" * 5000
    assert corpus.origin == f"2 licences of {tmp_path}"


def test_without_licences_pythons_own_text_is_taken(tmp_path):
    corpus = load_corpus(None, tmp_path / "none")
    assert len(corpus.text) > 4096
    assert "argparse.py" in corpus.origin


def test_a_text_that_is_too_short_is_refused_with_both_numbers(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(b"x" * 10)
    with pytest.raises(ValueError, match="has 10 bytes, want at least 4096"):
        load_corpus(path)


def test_batches_follow_the_text_and_begin_again_at_its_end():
    text = bytes(range(10))
    assert batch_of(text, 0, 2, 3) == [[0, 1, 2], [3, 4, 5]]
    assert batch_of(text, 1, 2, 3) == [[6, 7, 8], [9, 0, 1]]


# ---- Table and page ----


def test_the_table_shows_losses_savings_switches_decisions_and_claims(result):
    table = render_table(result)
    assert "10.460000" in table
    assert "-41.7%" in table  # 1200 -> 700 operations.
    assert "operators counted as the framework dispatched them; median of 2 samples" in table
    assert "kill fused_linear_cross_entropy" in table
    assert "LlamaRMSNorm/0a" in table
    assert "FAILED" not in table


def test_bytes_are_readable():
    assert [bytes_text(v) for v in (12, 3 << 20, 5 << 30)] == ["12 B", "3 MiB", "5.00 GiB"]


class PageChecker(html.parser.HTMLParser):
    """Collects tags and whether they nest."""

    VOID = frozenset({"meta", "br", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.sources += [v for k, v in attrs if k in ("src", "href") and v]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        pass


def pictures(page: str) -> list[ET.Element]:
    found = []
    for piece in page.split("<svg ")[1:]:
        found.append(ET.fromstring("<svg " + piece.split("</svg>")[0] + "</svg>"))
    return found


def test_the_page_is_well_formed_and_loads_nothing(result):
    page = render_page(result)
    checker = PageChecker()
    checker.feed(page)
    assert checker.open == []
    assert checker.sources == []
    assert "http" not in page.replace("http-equiv", "")
    assert len(pictures(page)) == 6  # Three pairs of bars, two charts of losses, one timeline.


def test_what_comes_from_outside_is_escaped(result):
    assert "default for &lt;code&gt; &amp; more" in render_page(result)


def test_the_page_names_methods_and_samples(result):
    page = render_page(result)
    assert "Operators counted as the framework dispatched them; median of 2 samples" in page
    assert "Peak resident set of a process of its own; 1 sample" in page
    assert "Wall clock, device synchronised; median of 7 samples" in page


def test_a_failed_claim_shows_on_the_page(result):
    result.fused.steps[5]["loss"] *= 1.1
    assert 'class="failed"' in render_page(result)


def test_every_number_in_a_picture_is_finite(result):
    result.native.steps[0]["loss"] = result.fused.steps[0]["loss"]  # A difference of exactly 0.
    assert not any(bad in render_page(result) for bad in ("nan", "inf,", 'inf"'))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (7.6, 10.5, [8, 9, 10]), (0, 0, [0])],
)
def test_ticks_are_round_numbers_inside_the_range(low, high, expected):
    assert charts._ticks(low, high, 5) == pytest.approx(expected)


def test_equal_neighbours_make_one_span():
    spans = charts.spans_of(["kernel", "kernel", "native", "kernel"])
    assert [(s.begin, s.end, s.state) for s in spans] == [
        (0, 2, "kernel"),
        (2, 3, "native"),
        (3, 4, "kernel"),
    ]


# ---- Command line ----


def test_a_text_that_is_missing_is_a_plain_error(tmp_path, capsys):
    assert main([str(tmp_path / "none"), "--device=cpu"]) == 2
    assert "No such file" in capsys.readouterr().err


def test_too_few_steps_are_refused_with_both_numbers(tmp_path, capsys):
    assert main(["--device=cpu", "--steps=3"]) == 2
    assert "--steps is 3, want at least 4" in capsys.readouterr().err
