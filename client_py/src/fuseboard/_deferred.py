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
from typing import Any, Protocol

import torch
from torch.utils import _pytree as pytree

from fuseboard._lazy_steps import LAZY_STEPS, METADATA, Rows, is_in_place, step_name


@dataclasses.dataclass(frozen=True)
class LossRequest:
    """A cross entropy over some rows of the logits.

    Attributes:
        rows: Hidden states [rows, hidden].
        target: Class indices [rows].
        reduction: "none", "mean" or "sum".
    """

    rows: torch.Tensor
    target: torch.Tensor
    class_weight: torch.Tensor | None
    ignore_index: int
    label_smoothing: float
    softcap: float
    logit_scale: float
    reduction: str


class LogitsSource(Protocol):
    """Computes what DeferredLogits stands for. Both methods re-enter the projection's __call__.

    Errors: DeferredLogitsError if the weights or the hidden states changed meanwhile.
    """

    def logits(self) -> torch.Tensor:
        """All logits, with the modes (gradients, autocast) of the moment they were asked for.

        Without a graph, `gradients` is asked for theirs.
        """
        ...

    def loss(self, request: LossRequest) -> torch.Tensor | None:
        """The loss in float32 without the logits, or None if it cannot be had that way now."""
        ...

    def gradients(
        self, grad: torch.Tensor, needed: tuple[bool, ...]
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients of the `inputs` that `defer` was given, from that of the logits."""
        ...


@dataclasses.dataclass(eq=False)
class _Recipe:
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
    derived: list[weakref.ref[_Recipe]] = dataclasses.field(default_factory=list)

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

    recipe: _Recipe
    _link: Any
    _connected: torch.Tensor | None

    def materialised(self) -> torch.Tensor:
        """The real tensor; computed at the first call."""
        with torch._C.DisableTorchFunctionSubclass():
            if self._connected is None:
                values = self.recipe.materialise()
                cut_off = self.requires_grad and not values.requires_grad
                connect = cut_off or self._is_interposed()
                self._connected = self._connect(values) if connect else values
            return self._connected

    def _connect(self, values: torch.Tensor) -> torch.Tensor:
        """Makes the gradient also, or only, pass the node behind this tensor."""
        with torch.enable_grad():
            if self.recipe.has_graph and values.requires_grad:
                connected: torch.Tensor = _apply(_Anchor, values, self)
            else:
                connected = _apply(_Attach, values, self)
        return connected

    def _is_interposed(self) -> bool:
        """Whether an autograd function of someone else (DDP, checkpoint) returned this tensor."""
        return _grad_fn(self) is not self._link

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
        recipe = _Recipe(
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
                result = _try_lazily(first, name, func, args, kwargs)
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
    recipe = _Recipe(
        source=source,
        rows=rows,
        parent=None,
        replay=None,
        has_graph=torch.is_grad_enabled() and any(t.requires_grad for t in inputs),
        grad_enabled=torch.is_grad_enabled(),
    )
    return _link(recipe, rows, inputs)


def _try_lazily(
    logits: DeferredLogits, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Records a step or computes a loss; NotImplemented: materialise."""
    rows = logits.recipe.rows
    if rows is None:
        return NotImplemented
    if name == "cross_entropy":
        return _cross_entropy(logits, rows, *args[1:], **kwargs)
    if name == "register_hook":
        return _register_hook(logits, *args[1:], **kwargs)
    step = LAZY_STEPS.get(name)
    if step is None:
        return NotImplemented
    try:
        with torch._C.DisableTorchFunctionSubclass():
            after = step(rows, *args[1:], **kwargs)
    except (TypeError, ValueError, IndexError, RuntimeError):
        return NotImplemented  # The real tensor will raise what it raises.
    if after is None:
        return NotImplemented
    if after is rows:
        return logits
    rest = args[1:]
    return logits.derive(after, lambda t: func(t, *rest, **kwargs), copy=name == "clone")


def _cross_entropy(
    logits: DeferredLogits,
    rows: Rows,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """torch.nn.functional.cross_entropy on logits that need not exist."""
    if size_average is not None or reduce is not None or reduction not in ("none", "mean", "sum"):
        return NotImplemented
    if not _is_index(target) or target.shape != rows.target_shape() or target.device != rows.device:
        return NotImplemented
    if weight is not None and (weight.requires_grad or weight.shape != (rows.vocabulary,)):
        return NotImplemented
    interposed = [t for t in logits.ancestors() if t._is_interposed()]
    with torch._C.DisableTorchFunctionSubclass():
        grad = torch.is_grad_enabled() and logits.requires_grad
    if grad and not logits.recipe.has_graph:
        return NotImplemented  # The gradient has to pass somebody's node.
    request = LossRequest(
        rows=rows.hidden.reshape(-1, rows.hidden.shape[-1]),
        target=target.reshape(-1),
        class_weight=None if weight is None else weight.float(),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        softcap=rows.final_softcap(),
        logit_scale=rows.final_scale(),
        reduction=reduction,
    )
    with torch.set_grad_enabled(grad):
        loss = logits.recipe.source.loss(request)
        if loss is None:
            return NotImplemented
        for tensor in interposed if grad else ():
            loss = _apply(_Anchor, loss, tensor)
        # Autocast runs cross_entropy in float32.
        if not torch.is_autocast_enabled(rows.device.type):
            loss = loss.to(rows.dtype)
    return loss.view(target.shape) if reduction == "none" else loss


def _register_hook(logits: DeferredLogits, hook: Any) -> Any:
    """FSDP hooks its outputs to gather weights before their backward: it ignores the values."""
    module = getattr(getattr(hook, "func", hook), "__module__", "") or ""
    if not module.startswith("torch.distributed."):
        return NotImplemented
    with torch._C.DisableTorchFunctionSubclass():
        handle = logits.register_hook(hook)  # type: ignore[no-untyped-call]
        logits._link = None  # Counts as interposed from now on: the hook must fire.
    return handle


def _is_index(target: object) -> bool:
    return type(target) is torch.Tensor and target.dtype == torch.int64


def _grad_fn(tensor: torch.Tensor) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.grad_fn


def _values_only(logits: DeferredLogits) -> torch.Tensor:
    if logits.recipe.values is not None:
        return logits.recipe.values.detach()
    with torch.no_grad():
        if logits.recipe.parent is None:
            return logits.recipe.source.logits().detach()
        assert logits.recipe.replay is not None
        return logits.recipe.replay(_values_only(logits.recipe.parent))


def _link(recipe: _Recipe, rows: Rows, inputs: tuple[torch.Tensor, ...]) -> DeferredLogits:
    result: DeferredLogits = _apply(_Link, recipe, rows, *inputs)
    result._link = _grad_fn(result)
    return result


def _apply(function: type[torch.autograd.Function], *args: Any) -> Any:
    return function.apply(*args)  # type: ignore[no-untyped-call]


def _is_zero(grad: torch.Tensor | None) -> bool:
    """Whether a gradient only comes to wake nodes up (_Anchor)."""
    return grad is None or (grad.numel() > 1 and not any(grad.stride()))


class _Link(torch.autograd.Function):
    """Ties a deferred tensor to what it depends on, so that a walk over the graph finds it all.

    DistributedDataParallel walks so. Its backward is for who calls torch.autograd.backward on the
    logits themselves; a fused loss and materialised values have their own graph.
    """

    @staticmethod
    def forward(ctx: Any, recipe: _Recipe, rows: Rows, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.recipe = recipe
        ctx.count = len(inputs)
        with torch._C.DisableTorchFunctionSubclass():
            result = torch.Tensor._make_wrapper_subclass(
                DeferredLogits, rows.shape(), dtype=rows.dtype, device=rows.device
            )
        result.recipe = recipe
        result._link = None
        result._connected = None
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor | None) -> tuple[Any, ...]:
        if grad is None or _is_zero(grad):
            count: int = ctx.count
            return (None,) * (2 + count)
        recipe: _Recipe = ctx.recipe
        if recipe.parent is None:
            return (None, None, *recipe.source.gradients(grad, ctx.needs_input_grad[2:]))
        assert recipe.replay is not None
        with torch.enable_grad():
            before = recipe.parent.materialised().detach().requires_grad_()
            after = recipe.replay(before)
        (found,) = torch.autograd.grad(after, (before,), grad)
        return None, None, found


class _Anchor(torch.autograd.Function):
    """Identity whose backward also wakes the node behind `tensor`, with a gradient of zero."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, tensor: DeferredLogits) -> torch.Tensor:
        ctx.shape, ctx.dtype, ctx.device = tensor.shape, tensor.dtype, tensor.device
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # One element in memory, whatever the shape.
        return grad, torch.zeros((), dtype=ctx.dtype, device=ctx.device).expand(ctx.shape)


class _Attach(torch.autograd.Function):
    """Values whose gradient goes to the node behind `tensor`."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, tensor: DeferredLogits) -> torch.Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, grad
