"""The autograd nodes of deferred logits: how gradients find their way through a tensor without values."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from fuseboard._deferred import Recipe


def apply(function: type[torch.autograd.Function], *args: Any) -> Any:
    """`function.apply`, which has no types."""
    return function.apply(*args)  # type: ignore[no-untyped-call]


def grad_fn(tensor: torch.Tensor) -> Any:
    """The node behind a deferred tensor, without reading it."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.grad_fn


# Marks a gradient that only comes to wake nodes up. Not by its values: reading them would wait for the
# GPU. A mark that gets lost on the way costs a computation of zeros, never a gradient.
_WAKES = "_fuseboard_wakes"


class Link(torch.autograd.Function):
    """Ties a deferred tensor to what it depends on, so that a walk over the graph finds it all.

    DistributedDataParallel walks so. Its backward is for who calls torch.autograd.backward on the
    logits themselves; a fused loss and materialised values have their own graph.
    """

    @staticmethod
    def forward(
        ctx: Any, make: Callable[[], torch.Tensor], recipe: Recipe, *inputs: torch.Tensor
    ) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.recipe = recipe
        ctx.count = len(inputs)
        return make()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor | None) -> tuple[Any, ...]:
        if grad is None or hasattr(grad, _WAKES):
            count: int = ctx.count
            return (None,) * (2 + count)
        recipe: Recipe = ctx.recipe
        if recipe.parent is None:
            return (None, None, *recipe.source.gradients(grad, ctx.needs_input_grad[2:]))
        assert recipe.replay is not None
        with torch.enable_grad():
            before = recipe.parent.materialised().detach().requires_grad_()
            after = recipe.replay(before)
        (found,) = torch.autograd.grad(after, (before,), grad)
        return None, None, found


class Anchor(torch.autograd.Function):
    """Identity whose backward also wakes the node behind `tensor`, with a gradient of zero."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        ctx.shape, ctx.dtype, ctx.device = tensor.shape, tensor.dtype, tensor.device
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # One element in memory, whatever the shape.
        zero = torch.zeros((), dtype=ctx.dtype, device=ctx.device).expand(ctx.shape)
        setattr(zero, _WAKES, True)
        return grad, zero


class Attach(torch.autograd.Function):
    """Values whose gradient goes to the node behind `tensor`."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, grad
