"""Logits that have not been computed: a tensor that remembers how.

Between a model's output projection and its loss stand few steps: a cast, a scale, a soft cap, a shift,
a view. DeferredLogits records them. If a cross entropy with class indices reads it, the loss is
computed from the hidden states and the logits never exist. If anything else reads it, it
materialises: the projection's own code runs, once, and every later read gets those values. Either
way losses and gradients are those of the model's own code.

Used on the training thread. Knows nothing of modules and kernels: a LogitsSource does.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fuseboard._deferred_nodes import Anchor, Attach, Link, apply, grad_fn
from fuseboard._lazy_loss import try_lazily
from fuseboard._lazy_steps import METADATA, PRINTED, Rows, is_in_place, step_name
from fuseboard._logits_source import LogitsSource


@dataclasses.dataclass(eq=False)
class Recipe:
    """How to make the values.

    Attributes:
        rows: What a fused loss needs, or None if no fused loss is possible any more.
        parent: What the last step was applied to; None: the source's own logits.
        replay: The last step.
        has_graph: Whether the values, once made, lead back to the parameters.
        grad_enabled: Grad mode of the last step.
    """

    source: LogitsSource
    rows: Rows | None
    parent: DeferredLogits | None
    replay: Callable[[torch.Tensor], torch.Tensor] | None
    has_graph: bool
    grad_enabled: bool
    values: torch.Tensor | None = None
    derived: list[weakref.ref[Recipe]] = dataclasses.field(default_factory=list)

    def materialise(self) -> torch.Tensor:
        if self.values is None:
            if self.parent is None:
                self.values = self.source.logits()
            else:
                assert self.replay is not None
                before = self.parent.materialised()
                with torch.set_grad_enabled(self.grad_enabled):
                    self.values = self.replay(before)
        return self.values

    def was_read(self) -> bool:
        if self.values is not None:
            return True
        return self.parent is not None and self.parent.recipe.was_read()


class DeferredLogits(torch.Tensor):
    """See the module's text. Built by `defer` only."""

    recipe: Recipe
    _link: Any
    _connected: torch.Tensor | None

    def materialised(self) -> torch.Tensor:
        """The real tensor; computed at the first call."""
        with torch._C.DisableTorchFunctionSubclass():
            if self._connected is None:
                values = self.recipe.materialise()
                cut_off = self.requires_grad and not values.requires_grad
                connect = cut_off or self.is_interposed()
                self._connected = self._connect(values) if connect else values
            return self._connected

    def _connect(self, values: torch.Tensor) -> torch.Tensor:
        """Makes the gradient also, or only, pass the node behind this tensor."""
        with torch.enable_grad():
            if self.recipe.has_graph and values.requires_grad:
                connected: torch.Tensor = apply(Anchor, values, self)
            else:
                connected = apply(Attach, values, self)
        return connected

    def is_interposed(self) -> bool:
        """Whether an autograd function of someone else (DDP, checkpoint) returned this tensor."""
        return grad_fn(self) is not self._link

    def described(self) -> str:
        """What printing shows where the values cannot be had: a log line must end no training."""
        with torch._C.DisableTorchFunctionSubclass():
            shape = tuple(self.shape)
            return f"tensor(<not computed>, size={shape}, dtype={self.dtype})"

    def ancestors(self) -> Iterator[DeferredLogits]:
        """This tensor and all it was made from, newest first."""
        current: DeferredLogits | None = self
        while current is not None:
            yield current
            current = current.recipe.parent

    def derive(
        self, rows: Rows | None, replay: Callable[[torch.Tensor], torch.Tensor], *, copy: bool
    ) -> DeferredLogits:
        """A deferred tensor that is one step further.

        Args:
            rows: What a fused loss needs after the step. Its shape and dtype are the result's.
            replay: The step, for the real tensor.
            copy: The step is a copy: it keeps its way to the parameters whatever the grad mode,
                because DistributedDataParallel clones outputs inside an autograd function.
        """
        assert rows is not None
        mode = self.recipe.grad_enabled if copy else torch.is_grad_enabled()
        recipe = Recipe(
            source=self.recipe.source,
            rows=rows,
            parent=self,
            replay=replay,
            has_graph=self.recipe.has_graph and mode,
            grad_enabled=mode,
        )
        self.recipe.derived.append(weakref.ref(recipe))
        return _link(recipe, rows, (self,))

    def settle(self) -> None:
        """Materialises all that share this tensor's values, before they are changed in place."""
        *_, root = self.ancestors()
        pending = [root.recipe]
        root.materialised()
        while pending:
            for reference in pending.pop().derived:
                recipe = reference()
                if recipe is not None:
                    recipe.materialise()
                    pending.append(recipe)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = step_name(func)
        first = args[0] if args else kwargs.get("input")
        if isinstance(first, DeferredLogits):
            if name in METADATA:
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **kwargs)
            if not first.recipe.was_read():
                if name in PRINTED and first.recipe.source.obstacle():
                    return first.described()
                result = try_lazily(first, name, func, args, kwargs)
                if result is not NotImplemented:
                    return result
        if is_in_place(name, kwargs):
            pytree.tree_map_only(DeferredLogits, DeferredLogits.settle, (args, kwargs))
        args, kwargs = pytree.tree_map_only(
            DeferredLogits, DeferredLogits.materialised, (args, kwargs)
        )
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # Reached only from C++ (collectives, the autograd engine), below autograd: the values made
        # there must not be kept, for they have no graph.
        args, kwargs = pytree.tree_map_only(DeferredLogits, _values_only, (args, kwargs or {}))
        return func(*args, **kwargs)


def defer(
    source: LogitsSource,
    hidden: torch.Tensor,
    inputs: tuple[torch.Tensor, ...],
    vocabulary: int,
    dtype: torch.dtype,
) -> DeferredLogits:
    """Logits [..., vocabulary] of `hidden` [..., hidden], not computed.

    Args:
        source: Computes them if need be.
        hidden: The hidden states.
        inputs: All tensors that the logits depend on.
        vocabulary: Size of the last dimension.
        dtype: What the projection would return.
    """
    rows = Rows(hidden, vocabulary, dtype)
    recipe = Recipe(
        source=source,
        rows=rows,
        parent=None,
        replay=None,
        has_graph=torch.is_grad_enabled() and any(t.requires_grad for t in inputs),
        grad_enabled=torch.is_grad_enabled(),
    )
    return _link(recipe, rows, inputs)


def _values_only(logits: DeferredLogits) -> torch.Tensor:
    if logits.recipe.values is not None:
        return logits.recipe.values.detach()
    with torch.no_grad():
        if logits.recipe.parent is None:
            return logits.recipe.source.logits().detach()
        assert logits.recipe.replay is not None
        return logits.recipe.replay(_values_only(logits.recipe.parent))


def _link(recipe: Recipe, rows: Rows, inputs: tuple[torch.Tensor, ...]) -> DeferredLogits:
    """A tensor without values, tied to `inputs`."""

    def make() -> DeferredLogits:
        with torch._C.DisableTorchFunctionSubclass():
            made: DeferredLogits = torch.Tensor._make_wrapper_subclass(
                DeferredLogits, rows.shape(), dtype=rows.dtype, device=rows.device
            )
        made.recipe = recipe
        made._link = None
        made._connected = None
        return made

    result: DeferredLogits = apply(Link, make, recipe, *inputs)
    result._link = grad_fn(result)
    return result
