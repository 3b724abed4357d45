"""Binds what a plan decides to the modules of one model, and undoes it.

The owner calls `sites`, sends them to the daemon, calls `prepare` with each plan that comes back (any
thread) and `apply` with the result (training thread, between two steps: `StepBoundary`). Nothing
outside the given model changes.
"""

from __future__ import annotations

import collections
import dataclasses
import weakref
from collections.abc import Mapping

import torch
from torch import nn

from fuseboard._adapters import Adapter, find_adapter
from fuseboard._binding import COMPOSITE, Binding, find, process_binding
from fuseboard._bound import BoundForward, Operation
from fuseboard._errors import ArtifactError, KernelRejected
from fuseboard._first_use import FirstUse
from fuseboard._plan import ArtifactKind, Decision, DecisionKind, Plan, Site, SiteRefusal
from fuseboard._sites import LM_HEAD, Group, Member, discover


@dataclasses.dataclass(frozen=True)
class PreparedPlan:
    """A plan whose libraries are open, verified and loaded on the model's devices.

    Attributes:
        plan: The plan.
        handles: Kernel handle of each decision that is not native, by site.
    """

    plan: Plan
    handles: Mapping[str, int]


class ModelPatcher:
    """Switches the sites of one model between its own code and the daemon's kernels."""

    def __init__(
        self, model: nn.Module, *, deferred_logits: bool = True, binding: Binding | None = None
    ) -> None:
        """Changes nothing yet.

        Args:
            model: The root. Held weakly: the patcher does not keep a model alive.
            deferred_logits: False leaves every output projection native.
            binding: Where operators and kernels come from; the process's own by default.
        """
        self._model = weakref.ref(model)
        self._deferred_logits = deferred_logits
        self._binding = process_binding() if binding is None else binding
        self._groups: dict[str, Group] = {}
        self._bound: weakref.WeakKeyDictionary[nn.Module, BoundForward] = (
            weakref.WeakKeyDictionary()
        )
        self._refusals: tuple[SiteRefusal, ...] = ()
        self._first_uses: dict[tuple[str, int, str], FirstUse] = {}
        self._in_force: dict[str, FirstUse] = {}

    def sites(self) -> tuple[Site, ...]:
        """What to ask the daemon about: the groups of like modules, in order of appearance.

        Discovers anew at each call; `apply` binds what the last call found.
        """
        model = self._model()
        groups = () if model is None else discover(model)
        self._groups = {group.site.site_id: group for group in groups}
        return tuple(group.site for group in groups)

    def prepare(self, plan: Plan) -> PreparedPlan:
        """Opens, verifies and loads everything that `plan` needs. Callable from any thread.

        Raises:
            ArtifactError: A library is missing, differs from its digest, or does not load. Nothing
                changed.
        """
        wanted = [d for d in plan.decisions if d.kind != DecisionKind.NATIVE]
        if wanted:
            self._load_binding(plan)
        handles = {decision.site_id: self._handle(plan, decision) for decision in wanted}
        devices = self._devices()
        for handle in sorted(set(handles.values()) - {COMPOSITE}):
            for device in devices:
                self._binding.prepare_kernel(handle, device)
        return PreparedPlan(plan, handles)

    def apply(self, prepared: PreparedPlan) -> tuple[SiteRefusal, ...]:
        """Puts the plan in force: all of it, or (if this raises) nothing.

        Call it on the training thread, between two steps.

        Returns:
            Sites, or parts of them, that could not be bound as decided and run native, with why.
        """
        wanted: dict[nn.Module, Operation] = {}
        refused: list[SiteRefusal] = []
        in_force: dict[str, FirstUse] = {}
        for decision in prepared.plan.decisions:
            group = self._groups.get(decision.site_id)
            if decision.kind == DecisionKind.NATIVE:
                continue
            if group is None:
                refused.append(SiteRefusal(decision.site_id, 1, "the model has no such site"))
                continue
            operations, refusals = self._operations(group, decision, prepared.handles)
            wanted.update(operations)
            refused.extend(refusals)
            if operations:
                in_force[decision.site_id] = self._first_use(decision, prepared.handles)
        self._rebind(wanted)
        self._refusals, self._in_force = tuple(refused), in_force
        return self.refusals()

    def refusals(self) -> tuple[SiteRefusal, ...]:
        """What `apply` returned last, and what the comparison at first use turned native since."""
        failed = [
            SiteRefusal(site_id, self._groups[site_id].site.count, first_use.failure)
            for site_id, first_use in self._in_force.items()
            if first_use.failure and site_id in self._groups
        ]
        return (*self._refusals, *failed)

    def restore(self) -> None:
        """Gives every module exactly the forward it had. May be called twice."""
        for bound in list(self._bound.values()):
            bound.unbind()
        self._bound.clear()
        self._refusals, self._in_force = (), {}

    def _load_binding(self, plan: Plan) -> None:
        artifact = find(plan.artifacts, ArtifactKind.BINDING)
        if artifact is not None:
            self._binding.load(artifact)
        elif self._binding.operators is None:
            raise ArtifactError("NO_BINDING", "the plan wants operations but names no binding")

    def _handle(self, plan: Plan, decision: Decision) -> int:
        if decision.kind == DecisionKind.COMPOSITE:
            return COMPOSITE
        artifact = find(plan.artifacts, ArtifactKind.KERNEL, decision.sha256)
        if artifact is None or not decision.sha256:
            raise ArtifactError(
                "ARTIFACT_MISSING",
                f"site {decision.site_id} wants {decision.operation} {decision.sha256[:12]}, "
                "which is not among the plan's artifacts",
            )
        return self._binding.load_kernel(artifact)

    def _devices(self) -> list[torch.device]:
        """Devices of the model's parameters, in order of appearance; never "meta"."""
        model = self._model()
        parameters = () if model is None else model.parameters()
        found = dict.fromkeys(p.device for p in parameters)
        return [device for device in found if device.type != "meta"]

    def _operations(
        self, group: Group, decision: Decision, handles: Mapping[str, int]
    ) -> tuple[dict[nn.Module, Operation], list[SiteRefusal]]:
        """What to bind to each module of a site, and what cannot be bound, by reason."""
        adapter = find_adapter(decision.adapter)
        reasons: collections.Counter[str] = collections.Counter()
        operations: dict[nn.Module, Operation] = {}
        shared: Operation | None = None
        for member in group.members:
            module = member.module()
            if module is None:
                continue
            reason = self._refusal(adapter, group, member, module, decision)
            if not reason and shared is None:
                assert adapter is not None and self._binding.operators is not None
                try:
                    shared = adapter.operation(
                        self._binding.operators,
                        handles[decision.site_id],
                        decision.parameters,
                        self._first_use(decision, handles),
                    )
                except KernelRejected as error:
                    reason = str(error)
            if reason:
                reasons[reason] += 1
            elif shared is not None:
                operations[module] = shared
        site_id = group.site.site_id
        return operations, [SiteRefusal(site_id, n, reason) for reason, n in reasons.items()]

    def _refusal(
        self,
        adapter: Adapter | None,
        group: Group,
        member: Member,
        module: nn.Module,
        decision: Decision,
    ) -> str:
        if adapter is None:
            return f"adapter {decision.adapter!r} is unknown to this client"
        if group.site.role == LM_HEAD and not self._deferred_logits:
            return "deferred_logits=False"
        if not member.unchanged():
            return "forward was replaced after the model was examined"
        return adapter.refusal(module, decision.parameters)

    def _first_use(self, decision: Decision, handles: Mapping[str, int]) -> FirstUse:
        """One per site, kernel and parameters: a plan that comes again compares nothing again."""
        handle = handles[decision.site_id]
        key = (decision.site_id, handle, repr(sorted(decision.parameters.items())))
        return self._first_uses.setdefault(key, FirstUse(decision.operation))

    def _rebind(self, wanted: Mapping[nn.Module, Operation]) -> None:
        """Binds `wanted` and nothing else. Prepared first, so that the second half cannot fail."""
        fresh = {
            module: BoundForward(module, operation)
            for module, operation in wanted.items()
            if module not in self._bound
        }
        for module, bound in list(self._bound.items()):
            if module in wanted:
                bound.operation = wanted[module]
            else:
                bound.unbind()
                if not bound.is_wrapped(module):
                    del self._bound[module]
        for module, bound in fresh.items():
            bound.bind()
            self._bound[module] = bound
