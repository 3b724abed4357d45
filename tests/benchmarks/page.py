"""The benchmark's page: a table per operation and a picture of the share of the limit."""

from __future__ import annotations

import math
import pathlib
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]


def own_version() -> str:
    """Version of this project, from CMakeLists.txt."""
    found = re.search(r"VERSION (\d+\.\d+\.\d+)", (ROOT / "CMakeLists.txt").read_text())
    return found.group(1) if found else "unknown"


def commit(root: pathlib.Path) -> str:
    """The checkout's commit, or "unknown"."""
    run = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],
        cwd=root,
        check=False,
        capture_output=True,
        text=True,
    )
    return run.stdout.strip() or "unknown"


Row = Mapping[str, Any]


def number(value: object, pattern: str) -> str:
    """`value` by `pattern`, or a dash where there is none."""
    return "–" if value is None else format(value, pattern)


def line(row: Row) -> str:
    """One row for the terminal."""
    return (
        f"  {row['impl']:20s} fwd {row['fwd_ms']:8.3f} ms ({row['share_of_limit_fwd']:4.0%})"
        f"  full {row['full_ms']:8.3f} ms ({row['share_of_limit_full']:4.0%})"
        f"  {number(row['launches'], '3d')} launches {number(row['peak_mib'], '7.0f')} MiB"
        f"  error {number(row['rel_error_vs_fp64'], '.2e')}"
    )


def table(rows: list[Row]) -> str:
    """Markdown table of one operation."""
    head = (
        "| shape | implementation | forward ms | of the limit | forward + backward ms "
        "| of the limit | launches | peak MiB | error vs float64 |\n|" + "---|" * 9 + "\n"
    )
    body = ""
    for row in rows:
        strong = "**" if str(row["impl"]).startswith("fuseboard") else ""
        body += (
            f"| {row['shape']} | {strong}{row['impl']} {row['impl_version']}{strong} "
            f"| {row['fwd_ms']:.3f} | {row['share_of_limit_fwd']:.0%} "
            f"| {row['full_ms']:.3f} | {row['share_of_limit_full']:.0%} "
            f"| {number(row['launches'], 'd')} | {number(row['peak_mib'], '.0f')} "
            f"| {number(row['rel_error_vs_fp64'], '.2e')} |\n"
        )
    return head + body


_COLOURS = {"fuseboard": "#0b6e4f", "liger": "#d1495b", "eager": "#9aa0a6", "quack": "#edae49"}
_COLOURS |= {"torch.compile": "#30638e", "F.rms_norm": "#8d6a9f", "cce": "#3bb273"}
_COLOURS |= {"liger cutedsl": "#f4845f", "F.linear_cross_entropy": "#8d6a9f"}


def style(name: str) -> dict[str, Any]:
    """How a picture draws an implementation; a variant, as "liger fp32 dW", is dashed or dotted."""
    line = "-" if name in _COLOURS else ":" if name.endswith("one chunk") else "--"
    return {
        "color": _COLOURS.get(name, _COLOURS.get(name.split(" ")[0])),
        "linestyle": line,
        "linewidth": 2.2 if name.startswith("fuseboard") else 1,
        "markersize": 5 if name.startswith("fuseboard") else 4,
        "zorder": 3 if name.startswith("fuseboard") else 2,
    }


def bars(operation: str, rows: list[Row], target: pathlib.Path) -> None:
    """Bars: share of the limit, forward and backward, by shape and implementation."""
    pyplot = _pyplot()
    shapes = list(dict.fromkeys(str(r["shape"]) for r in rows))
    names = list(dict.fromkeys(str(r["impl"]) for r in rows))
    figure, axes = pyplot.subplots(figsize=(1.6 + 1.5 * len(shapes), 3.6))
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        values = {
            str(r["shape"]): 100 * r["share_of_limit_full"] for r in rows if r["impl"] == name
        }
        axes.bar(
            [k + (i - (len(names) - 1) / 2) * width for k in range(len(shapes))],
            [values.get(s, 0) for s in shapes],
            width * 0.92,
            label=name,
            color=style(name)["color"],
        )
    axes.axhline(100, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(shapes)), [s.replace(" ", "\n", 1) for s in shapes], fontsize=8)
    axes.set_ylabel("share of the limit, %")
    axes.set_title(f"{operation}: forward + backward (higher is better)", fontsize=10)
    axes.legend(fontsize=7, ncols=2, loc="upper right", framealpha=0.9)
    axes.set_ylim(0, 130)
    _save(figure, target)


def by_size(rows: list[Row], target: pathlib.Path) -> None:
    """A panel for each operation: share of the limit against the size, by implementation."""
    pyplot = _pyplot()
    operations = list(dict.fromkeys(str(r["operation"]) for r in rows))
    figure, panels = pyplot.subplots(
        len(operations), 1, figsize=(10.5, 3.4 * len(operations)), squeeze=False
    )
    for panel, operation in zip(panels.flat, operations, strict=True):
        _panel(panel, [r for r in rows if r["operation"] == operation])
        panel.set_title(operation, fontsize=11, loc="left")
    figure.supylabel("share of the limit, forward + backward, %", fontsize=10)
    _save(figure, target)


def _panel(panel: Any, rows: list[Row]) -> None:
    """One operation: its shapes by the time of the limit, which stands below each."""
    floors = {str(r["shape"]): r["floor_full_ms"] for r in rows}
    shapes = sorted(floors, key=floors.__getitem__)
    for name in dict.fromkeys(str(r["impl"]) for r in rows):
        mine = {str(r["shape"]): 100 * r["share_of_limit_full"] for r in rows if r["impl"] == name}
        # No line leads over a shape that was not measured.
        values = [mine.get(shape, math.nan) for shape in shapes]
        panel.plot(
            range(len(shapes)),
            values,
            marker="o",
            label=name,
            **style(name),
        )
    panel.axhline(100, color="black", linewidth=0.8, linestyle=":")
    labels = [f"{s}\n{_duration(floors[s])}" for s in shapes]
    panel.set_xticks(range(len(shapes)), labels, fontsize=7, rotation=35, ha="right")
    panel.set_xlim(-0.4, len(shapes) - 0.6)
    highest = max(100 * r["share_of_limit_full"] for r in rows)
    panel.set_ylim(0, max(119, 1.05 * highest))
    panel.grid(axis="y", linewidth=0.4, alpha=0.6)
    panel.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.005, 1.0), frameon=False)


def _duration(ms: float) -> str:
    return f"{ms:.3g} ms" if ms >= 0.1 else f"{ms * 1e3:.2g} µs"


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "fuseboard"  # The same rows make the same file.
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, target: pathlib.Path) -> None:
    figure.tight_layout()
    figure.savefig(target, format="svg", metadata={"Date": None})
    _pyplot().close(figure)


def about(context: Mapping[str, Any]) -> str:
    """The head of the page: what was measured on what, and how."""
    peers = ", ".join(f"{name} {version}" for name, version in context["versions"].items())
    return (
        f"# Benchmarks on {context['gpu']}\n\n"
        f"Commit {context['commit']}, {context['date']}; torch {context['torch']}, "
        f"CUDA {context['cuda']}; driver, SM and memory clock: {context['driver_and_clocks']}; "
        f"peers: {peers}.\n\n"
        "Made by `./dev bench`. Device time, median, implementations interleaved, in another order "
        "in each round, buffers rotated; the limit is the least traffic at the copy rate measured in the same run "
        f"({context['copy_bytes_per_s'] / 1e12:.2f} TB/s), or the matrix products alone, timed in "
        "the same run. The upstream gradient of a loss is 1, as loss.backward() gives it, unless "
        "the shape names another; other results get random ones. Errors are the largest of output "
        "and gradients. Raw numbers with spreads: the JSON beside this page.\n\n"
        "Liger's RoPE has the copies of q and k that it would overwrite; its losses and, by the CuTe "
        "DSL, its SwiGLU write gradients over their inputs and are timed so. Cut Cross Entropy "
        'leaves small gradients out, "cce exact" does not. "one chunk" has all logits at once.\n'
        + _not_here(context.get("absent", {}))
    )


def _not_here(absent: Mapping[str, str]) -> str:
    """A line for the peers that the run was without."""
    if not absent:
        return ""
    return "\nNot compared with: " + "; ".join(f"{n} ({why})" for n, why in absent.items()) + ".\n"


def left_out(lines: Sequence[str]) -> str:
    """What could not be measured, if anything."""
    if not lines:
        return ""
    return "\n## Left out\n\n" + "".join(f"- {line}\n" for line in lines)


def host_table(rows: list[Row]) -> str:
    """Host time per call, where it was measured; else nothing."""
    chosen = [r for r in rows if r.get("host_us_fwd") is not None]
    if not chosen:
        return ""
    text = "\n## Host time per call\n\n| operation | shape | implementation | forward µs "
    text += "| forward + backward µs |\n|---|---|---|---|---|\n"
    for row in chosen:
        text += (
            f"| {row['operation']} | {row['shape']} | {row['impl']} | {row['host_us_fwd']:.1f} "
            f"| {row['host_us_full']:.1f} |\n"
        )
    return text


def write(
    result: Mapping[str, Any], target: pathlib.Path, groups: Mapping[str, Sequence[str]]
) -> None:
    """Writes the page and its pictures beside it; without matplotlib, without pictures.

    Args:
        result: What the JSON holds.
        target: The page.
        groups: Operations that share a picture, by its name; those in no group have their own.
    """
    rows: list[Row] = result["rows"]
    text = about(result["context"])
    grouped = {operation: group for group, names in groups.items() for operation in names}
    drawn: set[str] = set()
    order = dict.fromkeys([*grouped, *(str(r["operation"]) for r in rows)])
    for operation in order:
        chosen = [r for r in rows if r["operation"] == operation]
        if not chosen:
            continue
        group = grouped.get(operation, operation)
        picture = target.with_name(f"{target.stem}-{group}.svg")
        if group not in drawn:
            drawn.add(group)
            members = [r for r in rows if grouped.get(str(r["operation"])) == group]
            text += f"\n## {group}\n\n" + _picture(operation, chosen, members, picture)
        text += f"### {operation}\n\n" if group != operation else ""
        text += table(chosen) + ("\n" if group != operation else "")
    end = host_table(rows) + left_out(result.get("left_out", ()))
    target.write_text(text.rstrip("\n") + "\n" + end)


def _picture(operation: str, own: list[Row], members: list[Row], target: pathlib.Path) -> str:
    """The picture of a group, or of an operation that is in none; the words that show it."""
    try:
        if members:
            by_size(members, target)
        else:
            bars(operation, own, target)
    except ImportError:
        return ""
    return f"![share of the limit]({target.name})\n\n"
