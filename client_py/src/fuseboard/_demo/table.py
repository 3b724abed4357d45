"""The demonstration's result as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from fuseboard._demo.result import DemoResult, Pair


def bytes_text(value: float) -> str:
    """A number of bytes for people."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if value >= size:
            return f"{value / size:,.2f} {unit}" if unit == "GiB" else f"{value / size:,.0f} {unit}"
    return f"{value:,.0f} B"


def ms_text(value: float) -> str:
    """A duration in milliseconds for people."""
    return f"{value:,.1f} ms" if value < 1000 else f"{value / 1000:,.2f} s"


def count_text(value: float) -> str:
    """A count for people."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def quantities(result: DemoResult) -> list[tuple[str, Pair, str, str, str]]:
    """The three pairs: name, pair, native and fused as text, and what is saved."""
    launches = "kernel launches per step"
    if result.config.device_type != "cuda":
        launches = "operations per step"
    rows = []
    for name, pair, text in (
        (launches, result.launches, count_text),
        ("peak memory", result.peak, bytes_text),
        ("step time", result.step_ms, ms_text),
    ):
        native = "not measured" if pair.native is None else text(pair.native)
        fused = "not measured" if pair.fused is None else text(pair.fused)
        saved = "" if pair.saved is None else f"{-pair.saved:+.1%}"
        rows.append((name, pair, native, fused, saved))
    return rows


def _shortened(text: str, most: int = 100) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _columns(rows: Sequence[tuple[str, ...]], right: tuple[int, ...] = ()) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def _loss_rows(result: DemoResult) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("step", "native", "fused", "relative difference")]
    pairs = list(zip(result.native.losses, result.fused.losses))
    shown = (
        range(len(pairs)) if len(pairs) <= 12 else [*range(0, len(pairs) - 1, 5), len(pairs) - 1]
    )
    for step in shown:
        native, fused = pairs[step]
        rows.append(
            (str(step), f"{native:.6f}", f"{fused:.6f}", f"{abs(native - fused) / native:.1e}")
        )
    return rows


def _setup(result: DemoResult) -> str:
    config = result.config
    return (
        f"Llama, {config.layers} layers, hidden {config.hidden}, vocabulary {config.vocab}, "
        f"{config.batch} x {config.length} tokens a step, {config.dtype}, on {result.device}"
    )


def render_table(result: DemoResult) -> str:
    """The whole table."""
    lines = [
        "",
        _setup(result),
        f"text: {result.corpus}",
        "",
        "Loss",
        *_columns(_loss_rows(result), right=(0, 1, 2, 3)),
        "",
        "Savings",
        *_columns(
            [("", "native", "fused", "change", "method")]
            + [(n, a, b, s, p.method_text) for n, p, a, b, s in quantities(result)],
            right=(1, 2, 3),
        ),
        "",
        "Switched while it ran",
        *_columns(
            [("what", "asked after step", "in force from step")]
            + [(s.what, str(s.requested_at - 1), str(s.applied_step)) for s in result.switches],
            right=(1, 2),
        ),
        "",
        "Decisions",
        *_columns(
            [("site", "modules", "runs", "why")]
            + [
                (s["site"], str(s["count"]), s["decision"], _shortened(s["reason"]))
                for s in result.fused.sites
            ],
            right=(1,),
        ),
        "",
        "Claims",
        *_columns(
            [
                ({True: "held", False: "FAILED", None: "-"}[c.held], c.text, c.found)
                for c in result.claims()
            ]
        ),
        *(f"  note: {note}" for note in result.notes),
        "",
    ]
    return "\n".join(lines)
