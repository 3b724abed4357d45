"""What a session did, as frozen dataclasses that print as a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from fuseboard._measure import METHOD_TEXT, Measurement, Window
from fuseboard._plan import DecisionKind, OperationCounter, Rule, Site
from fuseboard._session import Session
from fuseboard._version import __version__

NOT_PATCHED = "no model is patched"

# Quantities of a window: the field, what it is called, and its unit.
_QUANTITIES = (
    ("launches_per_step", "launches per step", ""),
    ("device_ms_per_step", "device time per step", "ms"),
    ("copies_per_step", "copies per step", ""),
    ("step_ms", "step time", "ms"),
    ("peak_bytes", "peak memory", "bytes"),
)


@dataclasses.dataclass(frozen=True)
class SiteReport:
    """What one group of like modules runs, and why.

    Attributes:
        refusals: Modules of the group that do not run what was decided, with why.
    """

    site_id: str
    qualified_name: str
    count: int
    kind: DecisionKind
    operation: str
    version: str
    rule: Rule
    reason: str
    refusals: tuple[str, ...] = ()

    @property
    def runs(self) -> str:
        """For people: "native", "rms_norm 0.1.0", "fused_linear_cross_entropy (composite)"."""
        if self.kind is DecisionKind.NATIVE:
            return "native"
        if self.kind is DecisionKind.COMPOSITE:
            return f"{self.operation} (composite)"
        return f"{self.operation} {self.version}".strip()


@dataclasses.dataclass(frozen=True)
class Report:
    """The state of one patched model.

    Attributes:
        problem: Why everything runs native or the daemon is not in touch, or empty.
        address: The daemon's, or empty.
        revision: Of the plan in force; 0: none came from a daemon.
        applied_step: The step before which it was applied.
        step: Completed steps.
    """

    problem: str = ""
    address: str = ""
    job: str = ""
    rank: int = 0
    world_size: int = 1
    revision: int = 0
    store_id: str = ""
    applied_step: int = 0
    step: int = 0
    sites: tuple[SiteReport, ...] = ()
    counters: tuple[OperationCounter, ...] = ()
    windows: tuple[Window, ...] = ()

    def __str__(self) -> str:
        """The report as a table for people."""
        return "\n".join(_lines(self))


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A kernel that was looked at for a site; fields as in `resolver.proto`."""

    catalog_entry: str
    operation: str
    version: str
    accepted: bool
    reason: str


@dataclasses.dataclass(frozen=True)
class SiteExplanation:
    """All that was looked at for one site."""

    site_id: str
    qualified_name: str
    count: int
    candidates: tuple[Candidate, ...]

    def __str__(self) -> str:
        """The explanation for people, one candidate a line."""
        lines = [f"{self.qualified_name} x {self.count} ({self.site_id})"]
        for candidate in self.candidates:
            verdict = "accepted" if candidate.accepted else "rejected"
            kernel = f"{candidate.operation} {candidate.version}".strip()
            lines.append(f"  {verdict}  {kernel}  {candidate.catalog_entry}: {candidate.reason}")
        return "\n".join(lines)


def describe(session: Session | None, problem: str) -> Report:
    """The report of a session; of none, with why there is none."""
    if session is None:
        return Report(problem=problem)
    now, request, uplink = session.in_force, session.request, session.uplink
    sites = {site.site_id: site for site in request.sites}
    return Report(
        problem=now.error or (uplink.problem if uplink is not None else session.problem),
        address=uplink.address if uplink is not None else "",
        job=request.job.name,
        rank=request.job.rank,
        world_size=request.job.world_size,
        revision=now.plan.revision,
        store_id=now.plan.store_id,
        applied_step=now.step,
        step=session.step,
        sites=tuple(
            SiteReport(
                site_id=d.site_id,
                qualified_name=sites[d.site_id].qualified_name if d.site_id in sites else "",
                count=sites[d.site_id].count if d.site_id in sites else 0,
                kind=d.kind,
                operation=d.operation,
                version=d.version,
                rule=d.rule,
                reason=d.reason,
                refusals=tuple(
                    f"{r.count}: {r.reason}"
                    for r in now.refusals + now.kept
                    if r.site_id == d.site_id
                ),
            )
            for d in now.plan.decisions
        ),
        counters=session.progress().counters,
        windows=session.windows,
    )


def state_of(session: Session | None, problem: str) -> dict[str, Any]:
    """The plan in force as JSON values: what a checkpoint should remember."""
    report = describe(session, problem)
    decisions = session.in_force.plan.decisions if session is not None else ()
    artifacts = session.in_force.plan.artifacts if session is not None else ()
    return {
        "fuseboard": __version__,
        "problem": report.problem,
        "job": report.job,
        "revision": report.revision,
        "store_id": report.store_id,
        "applied_step": report.applied_step,
        "step": report.step,
        "decisions": [
            {
                **dataclasses.asdict(decision),
                "kind": decision.kind.name,
                "rule": decision.rule.name,
                "parameters": dict(decision.parameters),
            }
            for decision in decisions
        ],
        "artifacts": [
            {**dataclasses.asdict(artifact), "kind": artifact.kind.name} for artifact in artifacts
        ],
    }


def explanations(reply: Any, sites: Iterable[Site]) -> tuple[SiteExplanation, ...]:
    """What an ExplainResponse says about `sites`."""
    known = {site.site_id: site for site in sites}
    return tuple(
        SiteExplanation(
            site_id=wire.site_id,
            qualified_name=known[wire.site_id].qualified_name,
            count=known[wire.site_id].count,
            candidates=tuple(
                Candidate(c.catalog_entry, c.operation, c.version, c.accepted, c.reason)
                for c in wire.candidates
            ),
        )
        for wire in reply.sites
        if wire.site_id in known
    )


def _lines(report: Report) -> list[str]:
    head = f"fuseboard {__version__}: "
    if not report.sites and not report.job:
        return [head + report.problem]
    lines = [
        f"{head}job {report.job}, rank {report.rank} of {report.world_size}, step {report.step}",
        f"plan: revision {report.revision}, in force since step {report.applied_step}"
        + (f", from {report.address}" if report.address else ""),
    ]
    if report.problem:
        lines.append(f"problem: {report.problem}")
    lines += _table(
        ("module", "count", "runs", "why"),
        [
            (s.qualified_name.rpartition(".")[2], str(s.count), s.runs, s.reason)
            for s in report.sites
        ],
    )
    lines += [f"  {s.site_id}: {refusal}" for s in report.sites for refusal in s.refusals]
    if report.counters:
        lines += _table(
            ("operation", "fused", "fallback", "because"), _counter_rows(report.counters)
        )
    for window in report.windows:
        lines += _window_lines(window)
    return lines


def _counter_rows(counters: Iterable[OperationCounter]) -> list[tuple[str, ...]]:
    return [
        (
            counter.operation,
            str(counter.fused_calls),
            str(sum(counter.fallback_calls.values())),
            "; ".join(f"{reason} ({n})" for reason, n in sorted(counter.fallback_calls.items())),
        )
        for counter in counters
    ]


def _window_lines(window: Window) -> list[str]:
    last = window.first_step + window.steps - 1
    lines = [f"measured {window.variant.name.lower()}, steps {window.first_step} to {last}:"]
    if window.error:
        lines.append(f"  incomplete: {window.error}")
    for field, name, unit in _QUANTITIES:
        measured: Measurement | None = getattr(window, field)
        if measured is not None:
            number = f"{measured.value:,.3f}".rstrip("0").rstrip(".")
            lines.append(
                f"  {name}: {number} {unit}".rstrip()
                + f" ({METHOD_TEXT[measured.method]}, {measured.samples} samples)"
            )
    return lines


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Rows under a head, all columns but the last padded to their widest entry."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head) - 1)]
    return [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths)), row[-1]]).rstrip()
        for row in [head, *rows]
    ]
