"""Checks `patch(require=[...])` against what is in force."""

from __future__ import annotations

import contextlib
from typing import Any

from fuseboard import _messages
from fuseboard._channel import Connection
from fuseboard._errors import FuseboardError, KernelRejected, KernelUnavailable
from fuseboard._in_force import InForce
from fuseboard._options import Options
from fuseboard._plan import DecisionKind
from fuseboard._session import Session

_EXPLAIN_DEADLINE_S = 2.0


def check(session: Session, options: Options, connection: Connection | None, problem: str) -> None:
    """Checks that each required kernel runs somewhere in the model.

    Raises:
        KernelUnavailable: No daemon could be asked.
        KernelRejected: The daemon or this process refused it; `reasons` has them all.
    """
    in_force = session.in_force
    for name in options.require:
        if _runs(name, in_force, session):
            continue
        if problem:
            raise KernelUnavailable("NO_DAEMON", f"required kernel {name}: {problem}")
        reasons = _reasons(name, in_force)
        if connection is not None:
            reasons += _rejections(name, connection, session)
        reasons = list(dict.fromkeys(reasons)) or ["no module of the model computes it"]
        raise KernelRejected(
            "KERNEL_REJECTED", f"required kernel {name} does not run: {'; '.join(reasons)}", reasons
        )


def _runs(name: str, in_force: InForce, session: Session) -> bool:
    refused = {refusal.site_id: refusal.count for refusal in in_force.refusals}
    counts = {site.site_id: site.count for site in session.request.sites}
    return any(
        decision.kind is DecisionKind.KERNEL
        and decision.operation == name
        and refused.get(decision.site_id, 0) < counts[decision.site_id]
        for decision in in_force.plan.decisions
    )


def _reasons(name: str, in_force: InForce) -> list[str]:
    if in_force.error:
        return [in_force.error]
    mine = [d for d in in_force.plan.decisions if d.operation == name]
    ids = {decision.site_id for decision in mine}
    return [d.reason for d in mine if d.kind is not DecisionKind.KERNEL] + [
        refusal.reason for refusal in in_force.refusals if refusal.site_id in ids
    ]


def _rejections(name: str, connection: Connection, session: Session) -> list[str]:
    """Why the daemon did not take the kernel anywhere; empty if it does not say."""
    request = _messages.message("ExplainRequest")(
        request=_messages.request_to_wire(session.request)
    )
    candidates: list[Any] = []
    with contextlib.suppress(FuseboardError):
        reply = connection.call("Resolver/Explain", request, "ExplainResponse", _EXPLAIN_DEADLINE_S)
        candidates = [c for site in reply.sites for c in site.candidates]
    return [str(c.reason) for c in candidates if c.operation == name and not c.accepted]
