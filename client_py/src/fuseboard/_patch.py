"""`patch` and what undoes or steers it: the package's public functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from fuseboard import _environment, _options, _report
from fuseboard._errors import DaemonUnreachable, FuseboardError
from fuseboard._patched import Patched, session_of
from fuseboard._registry import registry
from fuseboard._start import start

if TYPE_CHECKING:
    from torch import nn

    from fuseboard._session import Session

# All that patch() may wait for a daemon: finding, starting, asking.
_START_DEADLINE_S = 5.0


def patch(
    model: nn.Module,
    *,
    require: Iterable[str] = (),
    disable: Iterable[str] = (),
    deferred_logits: bool = True,
    live: bool = True,
    job: str | None = None,
    address: str | None = None,
    **unknown: NoReturn,
) -> Patched:
    """Lets the node's daemon choose fused kernels for `model`, now and while it trains.

    Call it once the model is built, on its device and, if it will be, wrapped; before or after the
    optimizer is made. Nothing outside `model` changes. Without a daemon, or with one that does not
    answer within 5 seconds, the model keeps its own code and a warning says why.

    Example:
        >>> import fuseboard, torch
        >>> model = torch.nn.Linear(4, 4)
        >>> with fuseboard.patch(model) as patched:
        ...     loss = model(torch.ones(1, 4)).sum()

    Args:
        model: The root module, as the training loop calls it.
        require: Kernels without which this must fail instead of running native.
        disable: Kernels that this process does not want; "*": none at all.
        deferred_logits: False leaves every output projection native.
        live: False freezes the plan for the run.
        job: Name of the job; default: FUSEBOARD_JOB, the scheduler's, or the script's.
        address: The daemon's job socket, "unix:/path"; default: FUSEBOARD_ADDRESS, the node's
            socket, or a private daemon.
        unknown: Anything else is an error that names the nearest option.

    Raises:
        TypeError: An unknown option, a value of the wrong type, or a model that is no torch module.
        KernelUnavailable, KernelRejected: A required kernel will not run; says why.
        FuseboardError: UNKNOWN_KERNEL, BAD_JOB, BAD_ADDRESS, ALREADY_PATCHED (with other options).
    """
    options = _options.check_options(
        require, disable, deferred_logits, live, job, address, list(unknown)
    )
    if _environment.switched_off():
        return Patched(None, "switched off by FUSEBOARD_DISABLE")
    _check_model(model)
    existing = registry.find(model)
    if existing is not None:
        session, earlier = existing
        if earlier != options:
            raise FuseboardError(
                "ALREADY_PATCHED",
                f"the model is patched with {earlier}, now asked for {options}: unpatch it first",
            )
        return Patched(session)
    return start(model, options, _START_DEADLINE_S)


def _check_model(model: Any) -> None:
    try:
        from torch import nn
    except ImportError as error:
        raise FuseboardError("NO_TORCH", f"patch() needs torch: {error}") from error
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is {type(model).__name__}, want a torch.nn.Module")


def _select(model: nn.Module | Patched | None) -> list[Session]:
    if model is None:
        return list(registry.sessions())
    if isinstance(model, Patched):
        session = session_of(model)
        return [] if session is None else [session]
    found = registry.find(model)
    return [found[0]] if found is not None else []


def unpatch(model: nn.Module | Patched | None = None) -> None:
    """Gives a model exactly its own code back. A model that is not patched is left as it is.

    Example:
        >>> import fuseboard
        >>> fuseboard.unpatch()

    Args:
        model: A model or handle; default: all patched models of this process.
    """
    for session in _select(model):
        registry.remove(session)


def step(model: nn.Module | Patched | None = None) -> None:
    """Says that a training step ends here, for loops whose steps cannot be seen from their optimizer.

    Example:
        >>> import fuseboard
        >>> fuseboard.step()

    Args:
        model: A model or handle; default: all patched models of this process.
    """
    for session in _select(model):
        session.mark()


def report(model: nn.Module | Patched | None = None) -> _report.Report:
    """What runs where and why, how often, and what was measured. Print it.

    Example:
        >>> import fuseboard
        >>> print(fuseboard.report())
        fuseboard 0.1.0: no model is patched

    Args:
        model: A model or handle; default: the model that was patched last.
    """
    if isinstance(model, Patched):
        return model.report()
    sessions = _select(model)
    return _report.describe(sessions[-1] if sessions else None, _report.NOT_PATCHED)


def state(model: nn.Module | Patched | None = None) -> dict[str, Any]:
    """The plan in force, as plain values to save with a checkpoint.

    Example:
        >>> import fuseboard
        >>> fuseboard.state()["decisions"]
        []

    Args:
        model: A model or handle; default: the model that was patched last.
    """
    if isinstance(model, Patched):
        return model.state()
    sessions = _select(model)
    return _report.state_of(sessions[-1] if sessions else None, _report.NOT_PATCHED)


def explain(model: nn.Module | Patched | None = None) -> tuple[_report.SiteExplanation, ...]:
    """Every kernel that the daemon looked at for a model, accepted or rejected and why.

    Asks the daemon and waits up to 5 seconds.

    Example:
        >>> import fuseboard
        >>> for site in fuseboard.explain():
        ...     print(site)

    Args:
        model: A model or handle; default: the model that was patched last.

    Raises:
        DaemonUnreachable: No daemon answers.
    """
    sessions = _select(model)
    if not sessions:
        return ()
    session = sessions[-1]
    if session.uplink is None:
        raise DaemonUnreachable("NO_DAEMON", "the model was patched without a daemon")
    return _report.explanations(session.uplink.explain(_START_DEADLINE_S), session.request.sites)
