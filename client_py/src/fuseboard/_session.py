"""One patched model: the plan in force, the plan to come, and the switch between them.

Three threads meet here. The training thread crosses step boundaries (`_on_boundary`), the watching
thread brings new plans ready to apply (`receive`), the reporting thread reads where training is. They
share a few fields under one lock that is never held across a call to torch or to the daemon.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from fuseboard import _messages, _rank_policy
from fuseboard._errors import FuseboardError
from fuseboard._measure import Variant, Window
from fuseboard._messages import Request
from fuseboard._plan import DecisionKind, OperationCounter, Plan, Rule, SiteRefusal, native_plan
from fuseboard._reporter import Acknowledgement, Progress

_log = logging.getLogger("fuseboard")
_MOST_WINDOWS = 64


@dataclasses.dataclass(frozen=True)
class InForce:
    """The plan that the model runs, and since when.

    Attributes:
        plan: What is bound. Its revision is the daemon's newest that was dealt with.
        step: The step before which it was applied.
        at_us: Wall-clock time of that, microseconds since the Unix epoch.
        refusals: Sites that could not be bound as decided and run native, with why.
        kept: Sites that keep what they ran before although the daemon decided otherwise, with why.
        error: Why the daemon's plan could not be applied at all, or empty.
    """

    plan: Plan
    step: int = 0
    at_us: int = 0
    refusals: tuple[SiteRefusal, ...] = ()
    kept: tuple[SiteRefusal, ...] = ()
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Offer:
    """A plan that is prepared and waits for the next step boundary."""

    plan: Plan
    prepared: Any
    kept: tuple[SiteRefusal, ...] = ()


class Session:
    """Ties a patcher and a step boundary to what the daemon says.

    Args:
        patcher: A `_patcher.ModelPatcher`.
        describe: Makes the request of the moment, e.g. again after the model moved to a GPU.
        placement: Where the model is; when it changes, the daemon is asked anew.
        counters: Reads the operations' counters.

    Attributes:
        problem: Why there is no daemon to follow, or empty.
    """

    def __init__(
        self,
        patcher: Any,
        describe: Callable[[], Request],
        placement: Callable[[], object],
        counters: Callable[[], tuple[OperationCounter, ...]],
    ) -> None:
        self._patcher = patcher
        self._describe = describe
        self._placement = placement
        self._placed = placement()
        self._counters = counters
        self._request = describe()
        self._request_is_new = False
        # Re-entrant: a garbage collection inside a guarded block may end another session.
        self._lock = threading.RLock()
        self._in_force = InForce(native_plan(self._request.sites, "no plan yet"))
        self._offer: Offer | None = None
        self._boundary: Any = None
        self._uplink: Any = None
        self._windows: tuple[Window, ...] = ()
        self._measuring: Any = None
        self._ended = False
        self.problem = ""

    # ---- Training thread ----

    def begin(self, plan: Plan) -> None:
        """Puts the first plan in force, before the first step; if that fails, the model is native."""
        try:
            refusals = tuple(self._patcher.apply(self._patcher.prepare(plan)))
            self._in_force = InForce(plan, 0, _now_us(), refusals)
        except Exception as error:  # noqa: BLE001
            why = _text(error)
            _log.warning("everything runs native: %s", why)
            native = native_plan(self._request.sites, why, Rule.INCOMPATIBLE)
            native = dataclasses.replace(native, revision=plan.revision, store_id=plan.store_id)
            self._in_force = InForce(native, 0, _now_us(), error=why)

    def attach(self, boundary: Any, uplink: Any) -> None:
        """Takes the step boundary that calls `on_boundary`, and who is told what happened here."""
        self._boundary = boundary
        self._uplink = uplink

    def on_boundary(self, step: int) -> None:
        """Applies the plan that waits, if any. Never raises and never waits for the daemon."""
        try:
            self._notice_move()
            if self._offer is not None and not self._ended:
                self._switch(step)
        except Exception as error:  # noqa: BLE001
            _log.warning("step %d goes on unchanged: %s", step, _text(error))
        if self._measuring is not None:
            self._measuring.boundary(step)
            if self._measuring.finished:
                self._measuring = None

    def measure(self, steps: int, warmup: int) -> None:
        """Has a window over the next steps measured; one that is open already ends unfinished.

        Raises:
            ValueError: A number of steps that is out of range.
        """
        from fuseboard._profile import StepWindows
        from fuseboard._schedule import Schedule

        schedule = Schedule(active=steps, warmup=warmup)
        environment = self._request.environment
        kinds = {decision.kind for decision in self.in_force.plan.decisions}
        self._end_window()
        self._measuring = StepWindows(
            schedule,
            Variant.NATIVE if kinds <= {DecisionKind.NATIVE} else Variant.PLAN,
            device_type=environment.device_type,
            revision=lambda: self.in_force.plan.revision,
            on_window=lambda w: self.add_window(w, environment.gpu_name or "cpu"),
        )

    def _end_window(self) -> None:
        measuring, self._measuring = self._measuring, None
        if measuring is not None:
            measuring.close()

    def mark(self) -> None:
        """Ends a step explicitly."""
        if self._boundary is not None and not self._ended:
            self._boundary.mark()

    def end(self, restore: bool) -> None:
        """Stops switching; with `restore` also gives the model its own code back. May be repeated."""
        self._ended = True
        self._end_window()
        if self._boundary is not None:
            self._boundary.close()
        if restore:
            self._patcher.restore()
            native = native_plan(self._request.sites, "unpatched", Rule.OPT_OUT)
            with self._lock:
                self._in_force = InForce(native, self.step, _now_us())

    def _switch(self, step: int) -> None:
        with self._lock:
            offer, self._offer = self._offer, None
            before = self._in_force
        if offer is None:
            return
        refusals = before.refusals
        if not _same_effect(offer.plan, before.plan):
            try:
                refusals = tuple(self._patcher.apply(offer.prepared))
            except Exception as error:  # noqa: BLE001
                self._refuse(offer.plan, step, _text(error))
                return
        with self._lock:
            self._in_force = InForce(offer.plan, step, _now_us(), refusals, offer.kept)
        self.acknowledge_in_force()

    def _notice_move(self) -> None:
        """Asks the daemon anew, in the background, if the model moved or changed its dtype."""
        if self._uplink is None or not self._uplink.live:
            return
        placed = self._placement()
        if placed == self._placed:
            return
        self._placed = placed
        if self._request.job.world_size > 1:
            _log.warning(
                "the model moved to %s after patch(); a job of several ranks keeps its start-up "
                "plan: call patch() after moving it",
                placed,
            )
            return
        request = self._describe()
        with self._lock:
            self._request = request
            self._request_is_new = True
            self._offer = None
        self._uplink.ask_again()

    # ---- Watching thread ----

    def watch_request(self) -> Any:
        """The WatchPlanRequest of the moment: it names the newest plan that this process has."""
        with self._lock:
            known = self._newest()
            request, is_new = self._request, self._request_is_new
        return _messages.message("WatchPlanRequest")(
            request=_messages.request_to_wire(request),
            known_revision=0 if is_new else known.revision,
            known_store_id="" if is_new else known.store_id,
        )

    def receive(self, reply: Any) -> None:
        """Prepares the plan in a WatchPlanResponse and offers it to the training thread.

        Raises:
            FuseboardError: BAD_PLAN: the reply cannot be used at all.
        """
        with self._lock:
            request, is_new = self._request, self._request_is_new
            newest, in_force = self._newest(), self._in_force
        sent = _messages.plan_from_wire(reply.plan, request.sites)
        overtaken = sent.store_id == newest.store_id and sent.revision < newest.revision
        if overtaken and not is_new:
            return
        plan, kept = _rank_policy.allowed(sent, in_force.plan, request)
        if kept and kept != in_force.kept:
            _log.warning("revision %d, %d sites: %s", plan.revision, len(kept), kept[0].reason)
        try:
            prepared = self._patcher.prepare(plan)
        except Exception as error:  # noqa: BLE001
            self._refuse(sent, self.step, _text(error))
            return
        with self._lock:
            if request is self._request:  # Else the model has moved meanwhile: ask again.
                # NOTE: an offer that still waits is dropped: this one is newer and complete.
                self._offer = Offer(plan, prepared, kept)
                self._request_is_new = False

    # ---- Any thread ----

    @property
    def request(self) -> Request:
        """What the daemon was asked last."""
        with self._lock:
            return self._request

    @property
    def in_force(self) -> InForce:
        """The plan that the model runs now."""
        with self._lock:
            return self._in_force

    @property
    def step(self) -> int:
        """Completed steps."""
        return int(self._boundary.step) if self._boundary is not None else 0

    @property
    def uplink(self) -> Any:
        """The connection to the daemon, or None."""
        return self._uplink

    def acknowledge_in_force(self) -> None:
        """Leaves a note for the daemon which plan is in force."""
        now = self.in_force
        if self._uplink is not None and now.plan.store_id:
            self._uplink.acknowledge(
                Acknowledgement(
                    revision=now.plan.revision,
                    store_id=now.plan.store_id,
                    applied_step=now.step,
                    applied_at_us=now.at_us,
                    error=now.error,
                    refusals=now.refusals + now.kept,
                )
            )

    def progress(self) -> Progress:
        """Where training is. Also notices sites that turned native since the plan was applied."""
        before = self.in_force
        refusals = tuple(self._patcher.refusals())
        if refusals != before.refusals and not self._ended:
            with self._lock:
                if self._in_force is before:
                    self._in_force = dataclasses.replace(before, refusals=refusals)
            self.acknowledge_in_force()
        return Progress(self.step, self._counters())

    @property
    def windows(self) -> tuple[Window, ...]:
        """Measuring windows of this model, oldest first."""
        return self._windows

    def add_window(self, window: Window, device_name: str) -> None:
        """Takes a finished measuring window and has it reported. Returns at once."""
        with self._lock:
            self._windows = (*self._windows, window)[-_MOST_WINDOWS:]
        if self._uplink is not None:
            self._uplink.report_window(window, device_name)

    def forget_daemon(self) -> None:
        """In a forked child: nobody is told anything, no plan arrives."""
        self._lock = threading.RLock()
        self._uplink = None
        self._offer = None

    def _newest(self) -> Plan:
        return self._offer.plan if self._offer is not None else self._in_force.plan

    def _refuse(self, plan: Plan, step: int, why: str) -> None:
        _log.warning("plan %d refused, the plan in force stays: %s", plan.revision, why)
        if self._uplink is not None:
            self._uplink.acknowledge(
                Acknowledgement(plan.revision, plan.store_id, step, _now_us(), error=why)
            )


def _now_us() -> int:
    return time.time_ns() // 1000


def _same_effect(one: Plan, other: Plan) -> bool:
    return one.decisions == other.decisions and one.artifacts == other.artifacts


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, FuseboardError) else f"{type(error).__name__}: {error}"
