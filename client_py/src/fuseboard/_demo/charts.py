"""Pictures as inline SVG. Colours come from the page's style sheet, so they follow light and dark."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Sequence

WIDTH = 900
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 14, 30


@dataclasses.dataclass(frozen=True)
class Series:
    """A line: its label, its CSS class, and its values by step from 0."""

    label: str
    css: str
    values: Sequence[float]


@dataclasses.dataclass(frozen=True)
class Span:
    """Steps [begin, end) of a lane in one state."""

    begin: int
    end: int
    state: str


@dataclasses.dataclass(frozen=True)
class Mark:
    """A switch on a lane: asked for when `asked` steps were done, in force from step `applied`."""

    label: str
    asked: int
    applied: int


def _nice_step(span: float, most: int) -> float:
    """1, 2 or 5 times a power of ten, such that at most `most` steps cover `span`."""
    if span <= 0:
        return 1.0
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * m for m in (1, 2, 5, 10) if power * m >= rough * (1 - 1e-9))


def _ticks(low: float, high: float, most: int) -> list[float]:
    step = _nice_step(high - low, most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def _svg(height: int, title: str, body: list[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(title)}">'
        + "".join(body)
        + "</svg>"
    )


def _text(x: float, y: float, text: str, css: str = "tick", anchor: str = "middle") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}">'
        f"{html.escape(text)}</text>"
    )


def _finite(series: Series) -> list[tuple[int, float]]:
    """Steps and values that can be drawn."""
    return [(i, v) for i, v in enumerate(series.values) if math.isfinite(v)]


def _x_of(step: float, last: int) -> float:
    return _LEFT + (WIDTH - _LEFT - _RIGHT) * (step / max(last, 1))


def _x_axis(last: int, y: float, label: str) -> list[str]:
    ticks = [t for t in _ticks(0, last, 12) if float(t).is_integer()]
    return [_text(_x_of(t, last), y + 15, f"{t:.0f}") for t in ticks] + [
        _text(WIDTH - _RIGHT, y + 28, label, "axis", "end")
    ]


def line_chart(series: Sequence[Series], title: str, height: int = 280) -> str:
    """Lines over steps with a linear axis."""
    values = [v for one in series for v in one.values if math.isfinite(v)]
    if not values:
        return ""
    low, high = min(values), max(values)
    margin = (high - low) * 0.08 or 1.0
    low, high = low - margin, high + margin
    last = max(len(one.values) for one in series) - 1
    bottom = height - _BOTTOM

    def y_of(value: float) -> float:
        return _TOP + (bottom - _TOP) * (high - value) / (high - low)

    body = []
    for tick in _ticks(low, high, 5):
        y = y_of(tick)
        body.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>')
        body.append(_text(_LEFT - 8, y + 4, f"{tick:g}", anchor="end"))
    for one in series:
        points = " ".join(f"{_x_of(i, last):.1f},{y_of(v):.1f}" for i, v in _finite(one))
        body.append(f'<polyline class="line {one.css}" points="{points}"/>')
    return _svg(height, title, [*body, *_x_axis(last, bottom, "step")])


def difference_chart(
    differences: Sequence[Series], limit: float, last: int, title: str, height: int = 190
) -> str:
    """Relative differences up to step `last` on a logarithmic axis; exact zeros lie on the floor."""
    positive = [v for one in differences for _, v in _finite(one) if v > 0]
    top = math.ceil(math.log10(max([limit, *positive]))) + 0.3
    floor = math.floor(math.log10(min([limit * 1e-3, *positive])))
    bottom = height - _BOTTOM

    def y_of(value: float) -> float:
        exponent = math.log10(value) if value > 0 else floor
        return _TOP + (bottom - _TOP) * (top - exponent) / (top - floor)

    stride = max(1, math.ceil((top - floor) / 5))
    body = []
    for exponent in range(floor, math.floor(top) + 1, stride):
        y = y_of(10.0**exponent)
        body.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>')
        body.append(_text(_LEFT - 8, y + 4, f"1e{exponent}", anchor="end"))
    y = y_of(limit)
    body.append(f'<path class="limit" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>')
    body.append(_text(WIDTH - _RIGHT, y - 5, f"limit {limit:g}", "limit-text", "end"))
    for one in differences:
        for step, value in _finite(one):
            shape = "dot" if value > 0 else "dot zero"
            # The live run's rings are wider, so that they do not hide equal fused values.
            radius = 5.5 if one.css == "live" else 3
            body.append(
                f'<circle class="{shape} {one.css}" cx="{_x_of(step, last):.1f}" '
                f'cy="{y_of(value):.1f}" r="{radius}"><title>step {step}: {value:.2e}</title></circle>'
            )
    return _svg(height, title, [*body, *_x_axis(last, bottom, "step")])


def pair_bars(native: float, fused: float, native_text: str, fused_text: str, title: str) -> str:
    """Two bars from zero: native above fused."""
    width, label, room = 300, 50, 84
    scale = (width - label - room) / max(native, fused, 1e-300)
    body = []
    for row, (name, value, text) in enumerate(
        (("native", native, native_text), ("fused", fused, fused_text))
    ):
        y = 4 + 34 * row
        body.append(_text(label - 8, y + 18, name, "axis", "end"))
        body.append(
            f'<rect class="bar {name}" x="{label}" y="{y}" rx="3" '
            f'width="{max(value * scale, 1):.1f}" height="26"/>'
        )
        body.append(_text(label + value * scale + 8, y + 18, text, "value", "start"))
    return (
        f'<svg viewBox="0 0 {width} 70" role="img" aria-label="{html.escape(title)}">'
        + "".join(body)
        + "</svg>"
    )


def spans_of(states: Sequence[str]) -> list[Span]:
    """Runs of equal states."""
    spans: list[Span] = []
    for step, state in enumerate(states):
        if spans and spans[-1].state == state:
            spans[-1] = dataclasses.replace(spans[-1], end=step + 1)
        else:
            spans.append(Span(step, step + 1, state))
    return spans


def timeline(lanes: Sequence[tuple[str, Sequence[str], Sequence[Mark]]], title: str) -> str:
    """What each operation ran as, step by step, and when it was switched.

    Args:
        lanes: Name, state of each step ("kernel", "composite", "native"), and switches.
        title: For screen readers.
    """
    left, row = 196, 74
    steps = max((len(states) for _, states, _ in lanes), default=0)
    scale = (WIDTH - left - _RIGHT) / max(steps, 1)
    body = []
    for number, (name, states, marks) in enumerate(lanes):
        y = 30 + number * row
        body.append(_text(left - 12, y + 17, name, "lane", "end"))
        for span in spans_of(states):
            x, width = left + span.begin * scale, (span.end - span.begin) * scale
            body.append(
                f'<rect class="span {html.escape(span.state)}" x="{x + 1:.1f}" y="{y}" rx="3" '
                f'width="{max(width - 2, 1):.1f}" height="26"/>'
            )
            if width > 62:
                body.append(_text(x + width / 2, y + 17, span.state, "span-text"))
        for mark in marks:
            asked, applied = left + mark.asked * scale, left + mark.applied * scale
            body.append(f'<path class="asked" d="M{asked:.1f} {y - 12}V{y}"/>')
            body.append(f'<path class="applied" d="M{applied:.1f} {y - 3}V{y + 30}"/>')
            body.append(_text(applied, y - 9, mark.label.split()[0], "mark"))
    bottom = 30 + len(lanes) * row - 34
    for tick in _ticks(0, steps, 12):
        if float(tick).is_integer():
            body.append(_text(left + tick * scale, bottom + 14, f"{tick:.0f}"))
    body.append(_text(WIDTH - _RIGHT, bottom + 28, "step", "axis", "end"))
    return _svg(bottom + 34, title, body)
