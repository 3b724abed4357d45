"""Makes and starts the session of a model. A fault here leaves the model native; training goes on."""

from __future__ import annotations

import logging
import weakref
from typing import Any

from fuseboard import _environment, _requirements, _uplink
from fuseboard._errors import FuseboardError, KernelUnavailable
from fuseboard._first_plan import FirstPlan
from fuseboard._messages import Request
from fuseboard._options import Options
from fuseboard._patched import Patched
from fuseboard._registry import registry
from fuseboard._session import Session

_log = logging.getLogger("fuseboard")


def _model_type(model: Any) -> str:
    return str(getattr(getattr(model, "config", None), "model_type", ""))


def _placement(model: Any) -> object:
    """Device and dtype of the model's first parameter: what a move changes."""
    first = next(model.parameters(), None) if model is not None else None
    return None if first is None else (first.device, first.dtype)


def _describe(
    reference: weakref.ref[Any], patcher: Any, job: _environment.Job, o: Options
) -> Request:
    model = reference()
    return Request(
        environment=_environment.describe_environment(model),
        job=job,
        sites=tuple(patcher.sites()),
        opt_out=o.disable,
        model_type=_model_type(model),
    )


def _new_session(model: Any, options: Options) -> Session:
    """A session that has asked nobody yet. It holds the model weakly, as its patcher does."""
    from fuseboard import _binding, _patcher

    reference = weakref.ref(model)
    job = _environment.describe_job(options.job)
    patcher = _patcher.ModelPatcher(model, deferred_logits=options.deferred_logits)
    return Session(
        patcher,
        lambda: _describe(reference, patcher, job, options),
        lambda: _placement(reference()),
        _binding.counters,
    )


def start(model: Any, options: Options, deadline_s: float) -> Patched:
    """From the model to a running session.

    Args:
        model: The root module.
        options: Checked.
        deadline_s: All that may be waited for a daemon.
    """
    asking = FirstPlan(options, deadline_s)
    session: Session | None = None
    try:
        session = _new_session(model, options)
        plan = asking.ask(session.request)
        session.begin(plan)
        _requirements.check(session, options, asking.connection, asking.problem)
        _go_on(model, session, options, asking)
    except BaseException as error:
        if session is not None:
            session.end(restore=True)
        asking.give_up()
        if not isinstance(error, Exception) or isinstance(error, (FuseboardError, TypeError)):
            raise
        problem = f"{type(error).__name__}: {error}"  # A fault of ours must not stop training.
        if options.require:
            raise KernelUnavailable("START_FAILED", f"everything runs native: {problem}") from error
        _log.warning("everything runs native: %s", problem, exc_info=True)
        return Patched(None, problem)
    return Patched(session, asking.problem)


def _go_on(model: Any, session: Session, options: Options, asking: FirstPlan) -> None:
    """Lets a session that has begun follow the daemon by itself."""
    from fuseboard import _steps

    uplink = None
    if asking.connection is not None:
        uplink = _uplink.Uplink(
            registry.connections, asking.connection, session, options.live, asking.liveness_s
        )
    session.problem = asking.problem
    session.attach(_steps.StepBoundary(model, session.on_boundary), uplink)
    registry.add(model, session, options)
    if uplink is not None:
        session.acknowledge_in_force()
        uplink.start()
