"""The benchmarked operations: inputs, implementations, least traffic, float64 reference.

A Case knows its shapes and makes, for each implementation, a forward callable of fresh leaf tensors.
Upstream gradients are never 1: a loss is multiplied by 0.5, an output gets a random gradient.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

Tensors = tuple[torch.Tensor, ...]
Forward = Callable[..., torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Case:
    """One operation at one shape.

    Attributes:
        operation: Stem, e.g. "rms_norm".
        shape: For people, e.g. "16384x4096".
        make: Seed to input tensors; floating ones that need a gradient have requires_grad set.
        forwards: Implementation to callable of those inputs; the result is a tensor.
        bytes_forward: Least bytes to move, forward; 0 where matrix products are the limit.
        bytes_full: The same for forward and backward.
        products: Matrix products (m, n, k) of forward and backward, where they are the limit.
        forward_products: Those of the forward alone.
        scalar: The output is a loss.
        has_error: Compare with float64 (needs the memory for it).
    """

    operation: str
    shape: str
    make: Callable[[int], Tensors]
    forwards: dict[str, Forward]
    bytes_forward: float = 0
    bytes_full: float = 0
    products: Sequence[tuple[int, int, int]] = ()
    forward_products: Sequence[tuple[int, int, int]] = ()
    scalar: bool = False
    has_error: bool = True


def versions() -> dict[str, str]:
    """Versions of the implementations that are installed."""
    found = {"eager": torch.__version__, "torch.compile": torch.__version__}
    try:
        found["liger"] = importlib.metadata.version("liger-kernel")
    except importlib.metadata.PackageNotFoundError:
        pass
    return found


def compiled(function: Forward) -> Forward:
    """`function` through torch.compile, each shape on its own."""
    return torch.compile(function, dynamic=False)


def eager_rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMSNorm as transformers' Llama writes it."""
    y = x.to(torch.float32) if x.dtype != torch.float64 else x
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * y.to(x.dtype)


def rms_norm(rows: int, hidden: int, kernel: int) -> Case:
    """RMSNorm with Llama's rounding, bf16."""

    def make(seed: int) -> Tensors:
        g = torch.Generator("cuda").manual_seed(seed)
        x = torch.randn(rows, hidden, generator=g, device="cuda", dtype=torch.bfloat16)
        w = torch.randn(hidden, generator=g, device="cuda", dtype=torch.bfloat16)
        return x.requires_grad_(), w.requires_grad_()

    forwards: dict[str, Forward] = {
        "eager": eager_rms_norm,
        "torch.compile": compiled(eager_rms_norm),
        "F.rms_norm": lambda x, w: F.rms_norm(x, (hidden,), w, 1e-6),
        "fuseboard": lambda x, w: torch.ops.fuseboard.rms_norm(x, w, 1e-6, 0.0, 0, kernel),
    }
    if "liger" in versions():
        from liger_kernel.transformers.functional import liger_rms_norm

        forwards["liger"] = lambda x, w: liger_rms_norm(x, w, 1e-6)
    n = rows * hidden
    return Case("rms_norm", f"{rows}x{hidden}", make, forwards, 4 * n, 10 * n)


def eager_swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The gated activation as models write it."""
    return F.silu(gate) * up


def swiglu(rows: int, cols: int, kernel: int) -> Case:
    """SwiGLU, bf16."""

    def make(seed: int) -> Tensors:
        g = torch.Generator("cuda").manual_seed(seed)
        return tuple(
            torch.randn(
                rows, cols, generator=g, device="cuda", dtype=torch.bfloat16
            ).requires_grad_()
            for _ in range(2)
        )

    forwards: dict[str, Forward] = {
        "eager": eager_swiglu,
        "torch.compile": compiled(eager_swiglu),
        "fuseboard": lambda a, b: torch.ops.fuseboard.swiglu(a, b, True, kernel),
    }
    if "liger" in versions():
        from liger_kernel.transformers.functional import liger_swiglu

        forwards["liger"] = liger_swiglu
    n = rows * cols
    return Case("swiglu", f"{rows}x{cols}", make, forwards, 6 * n, 16 * n)


def labels(rows: int, vocab: int, seed: int, ignored: float) -> torch.Tensor:
    """Random labels, a share of them ignored."""
    g = torch.Generator("cuda").manual_seed(seed + 1)
    target = torch.randint(vocab, (rows,), generator=g, device="cuda")
    if ignored:
        target[torch.rand(rows, generator=g, device="cuda") < ignored] = -100
    return target


def fuseboard_cross_entropy(
    logits: torch.Tensor, target: torch.Tensor, kernel: int
) -> torch.Tensor:
    """Mean cross entropy through the fused operator."""
    loss, _ = torch.ops.fuseboard.cross_entropy(
        logits, target, None, None, -100, 0.0, 0.0, 1.0, 0.0, False, 1, kernel
    )
    return loss


def cross_entropy(rows: int, vocab: int, kernel: int) -> Case:
    """Cross entropy on bf16 logits; native computes it from float() as transformers does."""

    def make(seed: int) -> Tensors:
        g = torch.Generator("cuda").manual_seed(seed)
        logits = torch.randn(rows, vocab, generator=g, device="cuda", dtype=torch.bfloat16)
        return logits.requires_grad_(), labels(rows, vocab, seed, 0)

    def eager(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x if x.dtype == torch.float64 else x.float(), t)

    forwards: dict[str, Forward] = {
        "eager": eager,
        "torch.compile": compiled(eager),
        "fuseboard": lambda x, t: fuseboard_cross_entropy(x, t, kernel),
    }
    if "liger" in versions():
        from liger_kernel.transformers.functional import liger_cross_entropy

        # Liger writes the gradient over the logits: each call needs its own, as training has.
        forwards["liger"] = lambda x, t: liger_cross_entropy(x.view_as(x), t)
    n = rows * vocab
    return Case("cross_entropy", f"{rows}x{vocab}", make, forwards, 2 * n, 4 * n, scalar=True)


def fused_linear_cross_entropy(
    rows: int, hidden: int, vocab: int, kernel: int, ignored: float = 0.0
) -> Case:
    """The loss from hidden states and head weight, bf16."""

    def make(seed: int) -> Tensors:
        g = torch.Generator("cuda").manual_seed(seed)
        x = torch.randn(rows, hidden, generator=g, device="cuda", dtype=torch.bfloat16)
        w = torch.randn(vocab, hidden, generator=g, device="cuda", dtype=torch.bfloat16)
        w = w * hidden**-0.5
        return x.requires_grad_(), w.requires_grad_(), labels(rows, vocab, seed, ignored)

    def eager(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        logits = F.linear(x, w)
        return F.cross_entropy(logits if x.dtype == torch.float64 else logits.float(), t)

    def fused(dweight_dtype: int) -> Forward:
        def call(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            loss, _ = torch.ops.fuseboard.fused_linear_cross_entropy(
                x, w, None, t, None, None, -100, 0.0, 0.0, 1.0, 0.0, False, 1,
                dweight_dtype, 0, kernel,
            )  # fmt: skip
            return loss

        return call

    forwards: dict[str, Forward] = {
        "eager": eager,
        "torch.compile": compiled(eager),
        "fuseboard": fused(1),
        "fuseboard fp32 dW": fused(2),
    }
    if "liger" in versions():
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy as flce

        forwards["liger"] = lambda x, w, t: flce(x, w, t)
        forwards["liger fp32 dW"] = lambda x, w, t: flce(x, w, t, accum_dtype=torch.float32)
    valid = int(rows * (1 - ignored))
    shape = f"{rows}x{hidden}x{vocab}" + (f" {ignored:.0%} ignored" if ignored else "")
    products = [(valid, vocab, hidden), (valid, hidden, vocab), (vocab, hidden, valid)]
    return Case(
        "fused_linear_cross_entropy", shape, make, forwards, products=products,
        forward_products=products[:1], scalar=True, has_error=rows * vocab <= 2**31,
    )  # fmt: skip


def all_cases(kernels: dict[str, int], quick: bool) -> list[Case]:
    """Every case, small ones and odd ones among them.

    Args:
        kernels: Handle of each loaded kernel library.
        quick: Only the shapes that decide.
    """
    norm, act, loss = kernels["rms_norm"], kernels["swiglu"], kernels["cross_entropy"]
    cases = [
        rms_norm(16384, 4096, norm),
        rms_norm(16384, 8192, norm),
        rms_norm(4096, 2048, norm),
        swiglu(8192, 14336, act),
        cross_entropy(8192, 32000, loss),
        cross_entropy(8192, 128256, loss),
        fused_linear_cross_entropy(1024, 4096, 128256, loss),
        fused_linear_cross_entropy(8192, 4096, 128256, loss),
        fused_linear_cross_entropy(8192, 4096, 128256, loss, ignored=0.5),
    ]
    if quick:
        return cases
    return cases + [
        rms_norm(64, 2048, norm),
        rms_norm(16384, 1024, norm),
        rms_norm(16384, 2880, norm),
        rms_norm(16384, 5120, norm),
        rms_norm(4096, 16384, norm),
        rms_norm(1024, 65536, norm),
        swiglu(64, 2048, act),
        swiglu(8192, 8192, act),
        cross_entropy(1024, 128256, loss),
        cross_entropy(8192, 50257, loss),
        cross_entropy(4096, 262144, loss),
        fused_linear_cross_entropy(16384, 4096, 128256, loss),
        fused_linear_cross_entropy(8192, 2048, 151936, loss),
        fused_linear_cross_entropy(8192, 4096, 32000, loss),
    ]
