"""What is done with deferred logits without making them: a step recorded, or a loss computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fuseboard._deferred_nodes import Anchor, apply
from fuseboard._lazy_steps import LAZY_STEPS, Rows
from fuseboard._logits_source import LossRequest

if TYPE_CHECKING:
    from fuseboard._deferred import DeferredLogits


def try_lazily(
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
    interposed = [t for t in logits.ancestors() if t.is_interposed()]
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
            loss = apply(Anchor, loss, tensor)
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
