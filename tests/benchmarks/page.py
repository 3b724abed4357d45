"""The benchmark's page: a table per operation and a picture of the share of the limit."""

from __future__ import annotations

import pathlib
import re
import subprocess
from collections.abc import Mapping
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


def number(value: object, pattern: str) -> str:
    """`value` by `pattern`, or a dash where there is none."""
    return "–" if value is None else format(value, pattern)


def line(row: Mapping[str, Any]) -> str:
    """One row for the terminal."""
    return (
        f"  {row['impl']:20s} fwd {row['fwd_ms']:8.3f} ms ({row['share_of_limit_fwd']:4.0%})"
        f"  full {row['full_ms']:8.3f} ms ({row['share_of_limit_full']:4.0%})"
        f"  {row['launches']:3d} launches {row['peak_mib']:7.0f} MiB"
        f"  error {number(row['rel_error_vs_fp64'], '.2e')}"
    )


def table(rows: list[Mapping[str, Any]]) -> str:
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
            f"| {row['launches']} | {row['peak_mib']:.0f} "
            f"| {number(row['rel_error_vs_fp64'], '.2e')} |\n"
        )
    return head + body


def picture(operation: str, rows: list[Mapping[str, Any]], target: pathlib.Path) -> None:
    """Bars: share of the limit, forward and backward, by shape and implementation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shapes = list(dict.fromkeys(str(r["shape"]) for r in rows))
    names = list(dict.fromkeys(str(r["impl"]) for r in rows))
    colours = {"fuseboard": "#0b6e4f", "liger": "#d1495b", "eager": "#9aa0a6"}
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
            color=colours.get(name),
        )
    axes.axhline(100, color="black", linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(shapes)), [s.replace(" ", "\n", 1) for s in shapes], fontsize=8)
    axes.set_ylabel("share of the limit, %")
    axes.set_title(f"{operation}: forward + backward (higher is better)", fontsize=10)
    axes.legend(fontsize=7, ncols=2, loc="upper right", framealpha=0.9)
    axes.set_ylim(0, 130)
    figure.tight_layout()
    figure.savefig(target, format="svg")
    pyplot.close(figure)


def write(result: Mapping[str, Any], target: pathlib.Path) -> None:
    """Writes the page and its pictures beside it; without matplotlib, without pictures."""
    about = result["context"]
    rows = result["rows"]
    text = (
        f"# Benchmarks on {about['gpu']}\n\n"
        f"Commit {about['commit']}, {about['date']}; torch {about['torch']}, CUDA {about['cuda']}; "
        f"driver, SM and memory clock: {about['driver_and_clocks']}; peers: "
        + ", ".join(f"{k} {v}" for k, v in about["versions"].items())
        + f".\n\nMade by `./dev bench`. Device time, median, implementations interleaved, buffers "
        f"rotated; the limit is the least traffic at the copy rate measured in the same run "
        f"({about['copy_bytes_per_s'] / 1e12:.2f} TB/s), or the matrix products alone, timed in the "
        "same run. Upstream gradients are not 1. Raw numbers with spreads: the JSON beside this "
        "page.\n"
    )
    for operation in dict.fromkeys(str(r["operation"]) for r in rows):
        chosen = [r for r in rows if r["operation"] == operation]
        text += f"\n## {operation}\n\n"
        try:
            name = f"{target.stem}-{operation}.svg"
            picture(operation, chosen, target.with_name(name))
            text += f"![share of the limit]({name})\n\n"
        except ImportError:
            pass
        text += table(chosen)
    text += "\n## Host time per call, 64 x 2048\n\n| operation | implementation | forward µs "
    text += "| forward + backward µs |\n|---|---|---|---|\n"
    for row in result["host"]:
        text += (
            f"| {row['operation']} | {row['impl']} | {row['host_us_fwd']:.1f} "
            f"| {row['host_us_full']:.1f} |\n"
        )
    target.write_text(text)
