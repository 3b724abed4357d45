"""One patched model: the plan in force, the plan to come, and the switch between them.

Three threads meet here. The training thread crosses step boundaries (`_on_boundary`), the watching
thread brings new plans ready to apply (`receive`), the reporting thread reads where training is. They
share a few fields under one lock that is never held across a call to torch or to the daemon.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import Any

from fuseboard import _messages, _rank_policy
from fuseboard._errors import FuseboardError
from fuseboard._in_force import InForce, Offer, have_same_effect, now_us
from fuseboard._measure import Variant, Window
from fuseboard._messages import Request
from fuseboard._plan import DecisionKind, OperationCounter, Plan, Rule, native_plan
from fuseboard._reporter import Acknowledgement, Progress
from fuseboard._session_windows import SessionWindows

_log = logging.getLogger("fuseboard")


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
        self._windows = SessionWindows(lambda: self.in_force.plan.revision, self._report_window)
        self._ended = False
        self.problem = ""

    # ---- Training thread ----

    def begin(self, plan: Plan) -> None:
        """Puts the first plan in force, before the first step; if that fails, the model is native."""
        try:
            refusals = tuple(self._patcher.apply(self._patcher.prepare(plan)))
            self._in_force = InForce(plan, 0, now_us(), refusals)
        except Exception as error:  # noqa: BLE001
            why = _text(error)
            _log.warning("everything runs native: %s", why)
            native = native_plan(self._request.sites, why, Rule.INCOMPATIBLE)
            native = dataclasses.replace(native, revision=plan.revision, store_id=plan.store_id)
            self._in_force = InForce(native, 0, now_us(), error=why)

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
        self._windows.boundary(step)

    def measure(self, steps: int, warmup: int) -> None:
        """Has a window over the next steps measured; one that is open already ends unfinished.

        Raises:
            ValueError: A number of steps that is out of range.
        """
        kinds = {decision.kind for decision in self.in_force.plan.decisions}
        self._windows.measure(
            steps,
            warmup,
            Variant.NATIVE if kinds <= {DecisionKind.NATIVE} else Variant.PLAN,
            self._request.environment,
        )

    def mark(self) -> None:
        """Ends a step explicitly."""
        if self._boundary is not None and not self._ended:
            self._boundary.mark()

    def end(self, restore: bool) -> None:
        """Stops switching; with `restore` also gives the model its own code back. May be repeated."""
        self._ended = True
        self._windows.close()
        if self._boundary is not None:
            self._boundary.close()
        if restore:
            self._patcher.restore()
            native = native_plan(self._request.sites, "unpatched", Rule.OPT_OUT)
            with self._lock:
                self._in_force = InForce(native, self.step, now_us())

    def _switch(self, step: int) -> None:
        with self._lock:
            offer, self._offer = self._offer, None
            before = self._in_force
        if offer is None:
            return
        refusals = before.refusals
        if not have_same_effect(offer.plan, before.plan):
            try:
                refusals = tuple(self._patcher.apply(offer.prepared))
            except Exception as error:  # noqa: BLE001
                self._refuse(offer.plan, step, _text(error))
                return
        with self._lock:
            self._in_force = InForce(offer.plan, step, now_us(), refusals, offer.kept)
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
        return self._windows.finished

    def add_window(self, window: Window, device_name: str) -> None:
        """Takes a finished measuring window and has it reported. Returns at once."""
        self._windows.add(window, device_name)

    def _report_window(self, window: Window, device_name: str) -> None:
        if self._uplink is not None:
            self._uplink.report_window(window, device_name)

    def forget_daemon(self) -> None:
        """In a forked child: nobody is told anything, no plan arrives."""
        self._lock = threading.RLock()
        self._windows.after_fork()
        self._uplink = None
        self._offer = None

    def _newest(self) -> Plan:
        return self._offer.plan if self._offer is not None else self._in_force.plan

    def _refuse(self, plan: Plan, step: int, why: str) -> None:
        _log.warning("plan %d refused, the plan in force stays: %s", plan.revision, why)
        if self._uplink is not None:
            self._uplink.acknowledge(
                Acknowledgement(plan.revision, plan.store_id, step, now_us(), error=why)
            )


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, FuseboardError) else f"{type(error).__name__}: {error}"
