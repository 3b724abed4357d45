"""demo.html: one self-contained page with the result as pictures."""

from __future__ import annotations

import html
import pathlib

from fuseboard._demo.charts import (
    Mark,
    Series,
    difference_chart,
    line_chart,
    pair_bars,
    timeline,
)
from fuseboard._demo.result import DemoResult, Pair, kill_peaks, relative_differences
from fuseboard._demo.table import bytes_text, quantities
from fuseboard._measure import Method

_STYLE = pathlib.Path(__file__).with_name("style.css")
_LANES = ("rms_norm", "swiglu", "fused_linear_cross_entropy")
_E = html.escape

# What a number cannot say by itself.
_CAVEATS = {
    Method.OPERATOR_COUNT: "A fused operation counts as one, although it runs several inside itself. "
    "Views, which move no data, are left out.",
    Method.PEAK_RSS: "Includes the interpreter and the framework. Taken before instruments ran.",
    Method.WALL_CLOCK: "Steps without instruments; the first ones are left out.",
}


def _section(title: str, lead: str, body: str) -> str:
    return f'<section><h2>{_E(title)}</h2><p class="soft small">{_E(lead)}</p>{body}</section>'


def _legend(*entries: tuple[str, str]) -> str:
    keys = "".join(f'<span class="{css}"><i></i>{_E(label)}</span>' for css, label in entries)
    return f'<div class="legend">{keys}</div>'


def _table(head: list[str], rows: list[list[str]], numbers: tuple[int, ...] = ()) -> str:
    """Cells of `rows` are HTML; those of `head` are text."""

    def css(column: int) -> str:
        return ' class="n"' if column in numbers else ""

    top = "".join(f"<th{css(i)}>{_E(cell)}</th>" for i, cell in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{css(i)}>{cell}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="table"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _card(name: str, pair: Pair, native: str, fused: str, saved: str) -> str:
    caveat = _CAVEATS.get(pair.method, "")
    how = f'<p class="soft small">{_E(pair.method_text[0].upper() + pair.method_text[1:])}. {_E(caveat)}</p>'
    if pair.native is None or pair.fused is None:
        big = '<div class="big none">not measured</div>'
        return f"<section><h2>{_E(name.capitalize())}</h2>{big}{how}</section>"
    worse = " worse" if pair.fused > pair.native else ""
    text = saved.replace("-", "\N{MINUS SIGN}")
    bars = pair_bars(pair.native, pair.fused, native, fused, name)
    return (
        f'<section><h2>{_E(name.capitalize())}</h2><div class="big{worse}">{_E(text)}</div>'
        f"{bars}{how}</section>"
    )


def _losses(result: DemoResult) -> str:
    native, fused, live = (run.losses for run in (result.native, result.fused, result.live))
    curves = line_chart(
        [
            Series("native", "native", native),
            Series("fused", "fused", fused),
            Series("live", "live", live),
        ],
        "Loss by step of the native, the fused and the live run",
    )
    differences = difference_chart(
        [
            Series("fused", "fused", relative_differences(native, fused)),
            Series("live", "live", relative_differences(native, live)),
        ],
        result.config.loss_tolerance,
        max(len(native), len(fused), len(live)) - 1,
        "Relative difference to the native loss by step",
    )
    legend = _legend(
        ("native", "native"), ("fused", "fused"), ("live", "fused, switched while running")
    )
    lead = (
        f"One seed, one text, {result.config.dtype}. The curves lie on each other; below is what is "
        f"left between them: at most {result.max_rel_loss_diff:.1e} over the {result.config.steps} "
        "steps of the fused run."
    )
    below = '<p class="soft small">Relative difference to the native loss (hollow on the floor: none)</p>'
    return _section("The same training", lead, legend + curves + below + differences)


def _switching(result: DemoResult) -> str:
    lanes = []
    for name in _LANES:
        states = [str(step["runs"].get(name, "")) or "native" for step in result.live.steps]
        marks = [
            Mark(s.what, s.requested_at, s.applied_step)
            for s in result.switches
            if s.operation == name
        ]
        lanes.append((name, states, marks))
    picture = timeline(lanes, "What each operation ran as, by step, and when it was switched")
    legend = _legend(
        ("fused", "kernel library"), ("composite", "chunked composite"), ("native", "native")
    )
    peaks = kill_peaks(result)
    memory = ""
    if peaks is not None:
        memory = (
            f" With the fused loss killed, the peak was {bytes_text(peaks[0])} against "
            f"{bytes_text(peaks[1])}: the fall-back works in chunks, too."
        )
    lead = (
        "fusectl, against the running job. A dashed mark is when the operator asked, a solid one "
        "where it took effect: always between two steps." + memory
    )
    rows = [
        [f"<code>fusectl {_E(s.what)}</code>", str(s.requested_at - 1), str(s.applied_step)]
        for s in result.switches
    ]
    head = ["command", "asked after step", "in force from step"]
    return _section("Switched live", lead, legend + picture + _table(head, rows, (1, 2)))


def _decisions(result: DemoResult) -> str:
    rows = [
        [
            f"<code>{_E(site['site'])}</code>",
            str(site["count"]),
            _E(site["decision"]),
            _E(site["reason"]),
        ]
        for site in result.fused.sites
    ]
    lead = "Every group of like modules, what the daemon decided for it, and why."
    return _section("Decisions", lead, _table(["site", "modules", "runs", "why"], rows, (1,)))


def _claims(result: DemoResult) -> str:
    words = {
        True: '<span class="held">held</span>',
        False: '<span class="failed">failed</span>',
        None: '<span class="soft">not measured</span>',
    }
    rows = [[words[c.held], _E(c.text), _E(c.found)] for c in result.claims()]
    lead = "The demonstration fails if one of these does not hold."
    notes = "".join(f'<p class="small">{_E(note)}</p>' for note in result.notes)
    return _section("Checked", lead, _table(["", "claim", "found"], rows) + notes)


def render_page(result: DemoResult) -> str:
    """The whole page."""
    config = result.config
    lead = (
        f"A Llama of transformers with {config.layers} layers, hidden size {config.hidden} and a "
        f"vocabulary of {config.vocab:,}, random weights, trained on {result.corpus} as bytes: "
        f"{config.batch} × {config.length} tokens a step, {config.dtype}, on {result.device}."
    )
    cards = "".join(_card(*row) for row in quantities(result))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Fuseboard demonstration</title><style>{_STYLE.read_text()}</style></head><body><main>"
        f'<h1>One line of Python, the same training</h1><p class="soft">{_E(lead)}</p>'
        f'<div class="grid3">{cards}</div>'
        f"{_losses(result)}{_switching(result)}{_decisions(result)}{_claims(result)}"
        "</main></body></html>\n"
    )
