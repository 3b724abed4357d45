"""Which part of a new plan a job of several ranks may take while it runs.

Ranks cross their step boundaries at different moments. Until enabling is agreed between them, a
distributed job keeps its start-up plan; only kills apply, on each rank at its next boundary.
"""

from __future__ import annotations

import dataclasses

from fuseboard._messages import Request
from fuseboard._plan import Decision, DecisionKind, Plan, Rule, SiteRefusal


def allowed(sent: Plan, in_force: Plan, request: Request) -> tuple[Plan, tuple[SiteRefusal, ...]]:
    """What of `sent` may be applied over `in_force`, and the sites that keep what they run.

    REQUIRES: both plans are complete for the sites of `request`.
    """
    if request.job.world_size == 1:
        return sent, ()
    running = {decision.site_id: decision for decision in in_force.decisions}
    counts = {site.site_id: site.count for site in request.sites}
    decisions: list[Decision] = []
    kept: list[SiteRefusal] = []
    for new in sent.decisions:
        old = running[new.site_id]
        if _kills(new, old) or _runs_the_same(new, old):
            decisions.append(new)
            continue
        decisions.append(old)
        reason = (
            f"keeps {_names(old)} instead of {_names(new)}: a job of "
            f"{request.job.world_size} ranks takes only kills while it runs"
        )
        kept.append(SiteRefusal(new.site_id, counts[new.site_id], reason))
    # A kill needs no library that the plan in force does not have.
    plan = dataclasses.replace(
        sent, decisions=tuple(decisions), artifacts=in_force.artifacts or sent.artifacts
    )
    return plan, tuple(kept)


def _kills(new: Decision, old: Decision) -> bool:
    return (
        new.rule is Rule.KILL
        and new.kind is not DecisionKind.KERNEL
        and old.kind is DecisionKind.KERNEL
    )


def _runs_the_same(one: Decision, other: Decision) -> bool:
    """Whether two decisions differ in words only."""
    if one.kind is DecisionKind.NATIVE and other.kind is DecisionKind.NATIVE:
        return True
    words = {"reason": "", "rule": Rule.NATIVE, "catalog_entry": ""}
    return dataclasses.replace(one, **words) == dataclasses.replace(other, **words)  # type: ignore[arg-type]


def _names(decision: Decision) -> str:
    kind = decision.kind.name.lower()
    return kind if decision.kind is DecisionKind.NATIVE else f"{kind} {decision.operation}"
