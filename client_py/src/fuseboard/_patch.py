"""`patch` and what undoes or steers it: the package's public functions."""

from __future__ import annotations

import logging
import time
import types
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from fuseboard import _daemon, _environment, _options, _report, _requirements, _uplink
from fuseboard._channel import Connection
from fuseboard._errors import DaemonUnreachable, FuseboardError, KernelUnavailable
from fuseboard._messages import Request
from fuseboard._options import Options
from fuseboard._plan import Plan, native_plan
from fuseboard._registry import registry
from fuseboard._session import Session

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import Self

    from fuseboard._measure import Window

_log = logging.getLogger("fuseboard")
# All that patch() may wait for a daemon: finding, starting, asking.
_START_DEADLINE_S = 5.0


class Patched:
    """A handle on a patched model; a context manager that unpatches at its end.

    Attributes:
        problem: Why everything runs native, or empty.
    """

    def __init__(self, session: Session | None, problem: str = "") -> None:
        self._session = session
        self.problem = problem

    def unpatch(self) -> None:
        """Gives the model its own code back. May be called twice."""
        if self._session is not None:
            registry.remove(self._session)

    def report(self) -> _report.Report:
        """As `fuseboard.report`, of this model."""
        return _report.describe(self._session, self.problem)

    def state(self) -> dict[str, Any]:
        """As `fuseboard.state`, of this model."""
        return _report.state_of(self._session, self.problem)

    def step(self) -> None:
        """As `fuseboard.step`, of this model."""
        if self._session is not None:
            self._session.mark()

    def window(self, steps: int = 5, *, warmup: int = 3) -> None:
        """Measures the steps to come; the window then stands in `report` and at the daemon.

        Args:
            steps: Steps in which launches (GPU) or operators (CPU) are counted; they run slower.
            warmup: Steps before them, without instruments, whose time is taken.

        Raises:
            ValueError: A number of steps that is out of range.
        """
        if self._session is not None:
            self._session.measure(steps, warmup)

    def add_window(self, window: Window, device_name: str) -> None:
        """Takes a window that was measured elsewhere into `report` and to the daemon."""
        if self._session is not None:
            self._session.add_window(window, device_name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.unpatch()


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
    return _start(model, options)


def _check_model(model: Any) -> None:
    try:
        from torch import nn
    except ImportError as error:
        raise FuseboardError("NO_TORCH", f"patch() needs torch: {error}") from error
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is {type(model).__name__}, want a torch.nn.Module")


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


def _start(model: Any, options: Options) -> Patched:
    """From the model to a running session."""
    start = _Start(options)
    session: Session | None = None
    try:
        session = _new_session(model, options)
        plan = start.ask(session.request)
        session.begin(plan)
        _requirements.check(session, options, start.connection, start.problem)
        _go_on(model, session, options, start)
    except BaseException as error:
        if session is not None:
            session.end(restore=True)
        start.give_up()
        if not isinstance(error, Exception) or isinstance(error, (FuseboardError, TypeError)):
            raise
        problem = f"{type(error).__name__}: {error}"  # A fault of ours must not stop training.
        if options.require:
            raise KernelUnavailable("START_FAILED", f"everything runs native: {problem}") from error
        _log.warning("everything runs native: %s", problem, exc_info=True)
        return Patched(None, problem)
    return Patched(session, start.problem)


def _go_on(model: Any, session: Session, options: Options, start: _Start) -> None:
    """Lets a session that has begun follow the daemon by itself."""
    from fuseboard import _steps

    uplink = None
    if start.connection is not None:
        uplink = _uplink.Uplink(
            registry.connections, start.connection, session, options.live, start.liveness_s
        )
    session.problem = start.problem
    session.attach(_steps.StepBoundary(model, session.on_boundary), uplink)
    registry.add(model, session, options)
    if uplink is not None:
        session.acknowledge_in_force()
        uplink.start()


class _Start:
    """The calls to the daemon that `patch` waits for, under one deadline.

    Attributes:
        connection: To the daemon, also where it did not answer: it may do so later. None: there is
            no daemon to hope for.
        liveness_s: The daemon's liveness window.
        problem: Why the daemon could not be asked, or empty.
    """

    def __init__(self, options: Options) -> None:
        self.connection: Connection | None = None
        self.liveness_s = _uplink.DEFAULT_LIVENESS_S
        self.problem = ""
        self._options = options
        self._deadline = time.monotonic() + _START_DEADLINE_S

    def ask(self, request: Request) -> Plan:
        """The daemon's plan for `request`, or the native one with `problem` set.

        Raises:
            FuseboardError: The caller's mistake: UNKNOWN_KERNEL, or BAD_ADDRESS in `address`.
        """
        if registry.forked:
            return self._native(request, "forked from a process that uses Fuseboard: use spawn")
        try:
            self._connect()
            self._check_names()
            assert self.connection is not None
            plan, self.liveness_s = _uplink.resolve(self.connection, request, self._left_s())
        except FuseboardError as error:
            if error.code == "UNKNOWN_KERNEL" or (error.code == "BAD_ADDRESS" and self._named()):
                raise
            return self._native(request, str(error))
        return plan

    def give_up(self) -> None:
        """Lets go of the connection."""
        if self.connection is not None:
            registry.connections.release(self.connection)
            self.connection = None

    def _connect(self) -> None:
        found = _daemon.find_daemon(self._options.address, self._left_s())
        self.connection = registry.connections.acquire(found.address)

    def _check_names(self) -> None:
        if self._options.require or self._options.disable:
            assert self.connection is not None
            known = _uplink.operations(self.connection, self._left_s())
            _options.check_kernel_names(self._options, known)

    def _named(self) -> bool:
        return self._options.address is not None

    def _left_s(self) -> float:
        return max(self._deadline - time.monotonic(), 0.1)

    def _native(self, request: Request, problem: str) -> Plan:
        self.problem = problem
        _log.warning("everything runs native: %s", problem)
        return native_plan(request.sites, problem)


def _select(model: nn.Module | Patched | None) -> list[Session]:
    if model is None:
        return list(registry.sessions())
    if isinstance(model, Patched):
        return [] if model._session is None else [model._session]
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
