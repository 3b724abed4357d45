"""The whole demonstration, with a model small enough for a test: daemon, three trainings, four switches."""

from __future__ import annotations

import html.parser
import json
import pathlib
from collections.abc import Iterator

import pytest
from daemon_harness import STAGE
from fuseboard._demo.__main__ import run_demo, write_result
from fuseboard._demo.config import DemoConfig
from fuseboard._demo.corpus import load_corpus
from fuseboard._demo.result import DemoResult
from fuseboard._demo.runs import SWITCHES

# The vocabulary stays large: logits of 48 MiB are what the fused loss saves, and a process that
# trains this model has several hundred without them.
TINY = DemoConfig(
    hidden=32,
    intermediate=64,
    layers=1,
    heads=2,
    kv_heads=1,
    length=96,
    steps=4,
    counted=1,
    gap=1,
    max_live_steps=4000,
)


@pytest.fixture(scope="module")
def result() -> Iterator[DemoResult]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FUSEBOARD_HOME", str(STAGE))
        yield run_demo(TINY, load_corpus(None))


def test_every_claim_holds(result: DemoResult) -> None:
    assert [claim for claim in result.claims() if claim.held is not True] == []


def test_losses_of_both_paths_agree_in_float32(result: DemoResult) -> None:
    assert len(result.native.losses) == len(result.fused.losses) == TINY.steps
    assert result.max_rel_loss_diff <= 1e-5
    assert result.native.losses[-1] < result.native.losses[0]


def test_all_four_switches_take_effect_in_order(result: DemoResult) -> None:
    assert [switch.what for switch in result.switches] == [" ".join(pair) for pair in SWITCHES]
    steps = [step for s in result.switches for step in (s.requested_at, s.applied_step)]
    assert steps == sorted(steps)
    kinds = [step["runs"]["fused_linear_cross_entropy"] for step in result.live.steps]
    assert {"kernel", "composite"} == set(kinds)


def test_what_is_written_has_the_promised_keys_and_is_a_whole_page(
    result: DemoResult, tmp_path: pathlib.Path
) -> None:
    write_result(result, tmp_path / "out")
    written = json.loads((tmp_path / "out/demo.json").read_text())
    assert {name: keys_of(value) for name, value in written.items()} == {
        "device": set(),
        "steps": set(),
        "loss_native": set(),
        "loss_fused": set(),
        "max_rel_loss_diff": set(),
        "launches_per_step": {"native", "fused", "method"},
        "peak_bytes": {"native", "fused", "method"},
        "step_ms": {"native", "fused"},
        "switches": {"what", "requested_at", "applied_step"},
        "sites": {"site", "count", "decision", "reason"},
    }
    assert written["device"] == "cpu"
    page = Page()
    page.feed((tmp_path / "out/demo.html").read_text())
    assert page.opened.count("svg") >= 5  # Losses, differences, three quantities, the switches.


def keys_of(value: object) -> set[str]:
    """Those of an object, or of the objects of a list, which must have the same."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        assert all(set(item) == set(value[0]) for item in value)
        return set(value[0])
    return set(value) if isinstance(value, dict) else set()


class Page(html.parser.HTMLParser):
    """Names of the elements that begin."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.opened.append(tag)
