"""The bound forward of an output projection: defers its logits, or computes what it is re-entered for."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from fuseboard._autocast import Autocast
from fuseboard._bound import BoundForward
from fuseboard._deferred import defer
from fuseboard._fingerprint import own_class
from fuseboard._head_source import HeadSource, take_entry
from fuseboard._loss_operation import LossOperation
from fuseboard._sharding import UnknownSharding, shards_of

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_PLAIN = (torch.Tensor, nn.Parameter)
# Hooks that only move weights. Any other would see a loss where it expects logits.
_SHARDING_HOOKS = ("torch.distributed.",)


def head_refusal(head: nn.Module) -> str:
    """Why the logits of `head` cannot be deferred, or ""."""
    cls = own_class(head)
    if cls is not nn.Linear:
        return f"the head is a {cls.__module__}.{cls.__qualname__}, not a Linear"
    if head.weight.dtype not in _DTYPES:
        return f"the head's weight is {head.weight.dtype}"
    return _unknown_partition(head)


def _unknown_partition(head: nn.Module) -> str:
    """Why nobody but its own code may touch the weights of `head`, or ""."""
    for name, parameter in head._parameters.items():
        if hasattr(parameter, "ds_id") or hasattr(parameter, "ds_status"):
            return f"the head's {name} is partitioned by DeepSpeed ZeRO-3, which is not supported"
    hook = head.__dict__.get("_hf_hook")
    if any(getattr(h, "offload", False) for h in getattr(hook, "hooks", (hook,))):
        return "the head's weights are offloaded by accelerate"
    try:
        shards_of(head)
    except UnknownSharding as error:
        return f"the head is sharded by {error}"
    return ""


@dataclasses.dataclass(frozen=True)
class HeadOperation:
    """What the head runs instead of its own code."""

    loss: LossOperation

    def __call__(
        self, bound: BoundForward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        hidden = bound.only_argument(args, kwargs)
        if torch.compiler.is_compiling():
            return bound.native(hidden)
        entry = take_entry(module)
        if entry is not None:
            return entry.compute(bound, hidden)
        if not isinstance(module, nn.Linear) or not _may_defer(module, hidden):
            return bound.native(hidden)
        # It may have been partitioned since the plan was applied.
        refusal = _unknown_partition(module)
        if refusal:
            self.loss.first_use.refuse(refusal)
            return bound.native(hidden)
        autocast = Autocast.current(hidden.device.type)
        dtype = autocast.dtype if autocast.enabled else hidden.dtype
        bias = module.bias
        inputs = (hidden, module.weight) if bias is None else (hidden, module.weight, bias)
        source = HeadSource(self.loss, module, inputs, autocast, shards_of(module))
        return defer(source, hidden, inputs, module.weight.shape[0], dtype)


def _may_defer(head: nn.Linear, hidden: Any) -> bool:
    weight = head.weight
    if type(hidden) not in _PLAIN or type(weight) not in _PLAIN:
        return False  # DTensor, fake, functional, quantised
    if hidden.dim() == 0 or hidden.numel() == 0 or hidden.device != weight.device:
        return False
    if hidden.shape[-1] != weight.shape[1] or hidden.dtype not in _DTYPES:
        return False
    if hidden.dtype != weight.dtype and not torch.is_autocast_enabled(hidden.device.type):
        return False
    return not _is_traced() and not _is_hooked(head)


def _is_traced() -> bool:
    """jit tracing, functorch transforms, forward-mode gradients."""
    return (
        torch._C._is_tracing()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def _is_hooked(head: nn.Module) -> bool:
    """Whether someone watches the head's inputs, outputs or gradients."""
    if head._backward_hooks or head._backward_pre_hooks:
        return True
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return True
    hooks = (*head._forward_hooks.values(), *head._forward_pre_hooks.values())
    return not all(_hook_module(hook).startswith(_SHARDING_HOOKS) for hook in hooks)


def _hook_module(hook: Any) -> str:
    return getattr(getattr(hook, "func", hook), "__module__", "") or ""
