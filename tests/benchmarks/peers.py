"""The implementations to compare with: which of them are here, in which version, and if not, why.

They are imported only by the functions that return them, so that a run needs none of them.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

Forward = Callable[..., Any]
_PACKAGES = {"liger": "liger-kernel", "quack": "quack-kernels", "cce": "cut-cross-entropy"}
_MODULES = {
    "liger": "liger_kernel.transformers.functional",
    "liger cutedsl": "liger_kernel.ops.cutedsl.ops",
    "quack": "quack",
    "cce": "cut_cross_entropy",
}
TORCH_LINEAR_CROSS_ENTROPY = "F.linear_cross_entropy"


def find(triton: bool) -> tuple[frozenset[str], dict[str, str]]:
    """The peers that can be imported, and the others with the reason.

    Args:
        triton: Whether kernels in Triton run here; without, no package's do.
    """
    present, absent = set(), {}
    for name, module in _MODULES.items():
        package = _PACKAGES[name.split(" ")[0]]
        if not triton:
            absent[name] = "needs a GPU"
            continue
        try:
            importlib.metadata.version(package)
            importlib.import_module(module)
        except importlib.metadata.PackageNotFoundError:  # An ImportError too.
            absent[name] = f"{package} is not installed"
        except (ImportError, AttributeError, OSError, RuntimeError) as error:
            reason = f"{error}.".splitlines()[0].split(". ")[0].rstrip(".")
            absent[name] = f"{package} cannot be imported: {reason}"
        else:
            present.add(name)
    if hasattr(torch.nn.functional, "linear_cross_entropy"):
        present.add(TORCH_LINEAR_CROSS_ENTROPY)
    else:
        absent[TORCH_LINEAR_CROSS_ENTROPY] = f"torch {torch.__version__} has none"
    return frozenset(present), absent


def versions() -> dict[str, str]:
    """Versions of the implementations that are installed."""
    found = {"eager": torch.__version__, "torch.compile": torch.__version__}
    for name, package in {**_PACKAGES, "cutlass dsl": "nvidia-cutlass-dsl"}.items():
        try:
            found[name] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def version_of(implementation: str, own: str) -> str:
    """The version of an implementation, e.g. of "liger fp32 dW" or "F.rms_norm"."""
    if implementation.startswith("F."):
        return torch.__version__
    return versions().get(implementation.split(" ")[0], own)


def liger_cutedsl(name: str) -> Forward:
    """Liger's autograd function `name` of the operators that LIGER_KERNEL_IMPL=cutedsl selects."""
    from liger_kernel.ops.cutedsl import ops

    apply: Forward = getattr(ops, name).apply
    return apply


def liger_dispatched(name: str) -> Forward:
    """Liger's function `name` by its dispatcher, which has CuTe DSL versions of more operators."""
    from liger_kernel import functional

    return functools.partial(getattr(functional, name), impl="nvidia-cutedsl")


def quack_layer_norm(eps: float) -> Forward:
    """QuACK's two LayerNorm kernels behind autograd, which it leaves to the caller; its weights are fp32."""
    # By its name: in the package itself the function of that name hides the module.
    quack = importlib.import_module("quack.rmsnorm")

    class LayerNorm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            weight, bias = w.float(), b.float()
            y, rstd, mean = quack.layernorm_fwd(x, weight, bias, eps, True, True)
            ctx.save_for_backward(x, weight, rstd, mean)
            ctx.dtype = w.dtype
            return y

        @staticmethod
        def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
            dx, dw, db = quack.layernorm_bwd(ctx.saved_tensors[0], ctx.saved_tensors[1], dy, *ctx.saved_tensors[2:])  # fmt: skip
            return dx, dw.to(ctx.dtype), db.to(ctx.dtype)

    apply: Forward = LayerNorm.apply
    return apply


def quack_rope(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    """QuACK's rotation of q and of k [batch, heads, positions, dim] by one table for all examples."""
    from quack.rotary import apply_rotary_emb

    half = (cos[0, :, : cos.shape[-1] // 2], sin[0, :, : sin.shape[-1] // 2])
    return tuple(apply_rotary_emb(x.transpose(1, 2), *half).transpose(1, 2) for x in (q, k))
