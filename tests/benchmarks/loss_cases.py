"""Cross entropy and divergences beside their peers."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from tests.benchmarks.case import Bench, Case, Forward, Tensors, computed
from tests.benchmarks.peers import liger_cutedsl, liger_dispatched

Tensor = torch.Tensor
MEAN, _BATCHMEAN = 1, 3


def labels(bench: Bench, rows: int, vocab: int, seed: int, ignored: float) -> Tensor:
    """Random labels, a share of them ignored."""
    g = bench.generator(seed + 1)
    target = torch.randint(vocab, (rows,), generator=g, device=bench.device)
    if ignored:
        target[torch.rand(rows, generator=g, device=bench.device) < ignored] = -100
    return target


def percent_ignored(ignored: float) -> str:
    """What a shape's name ends in if labels are ignored."""
    return f" {ignored:.0%} ignored" if ignored else ""


def _fused_cross_entropy(logits: Tensor, target: Tensor, kernel: int) -> Tensor:
    loss, _ = torch.ops.fuseboard.cross_entropy(
        logits, target, None, None, -100, 0.0, 0.0, 1.0, 0.0, False, MEAN, kernel
    )
    return loss


def cross_entropy(bench: Bench, rows: int, vocab: int, ignored: float = 0.0) -> Case:
    """Cross entropy on bf16 logits; native computes it from float() as transformers does."""

    def make(seed: int) -> Tensors:
        logits = bench.normal(bench.generator(seed), rows, vocab)
        return logits, labels(bench, rows, vocab, seed, ignored)

    def eager(x: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(computed(x), t)

    kernel = bench.kernels["cross_entropy"]
    forwards: dict[str, Forward] = {
        "eager": eager,
        "torch.compile": bench.compile(eager),
        "fuseboard": lambda x, t: _fused_cross_entropy(x, t, kernel),
    }
    if "quack" in bench.peers:
        import quack

        forwards["quack"] = lambda x, t: quack.cross_entropy(x, t, reduction="mean")
    if "liger" in bench.peers:
        from liger_kernel.transformers.functional import liger_cross_entropy

        # Liger writes the gradient over the logits.
        forwards["liger"] = lambda x, t: liger_cross_entropy(x.view_as(x), t)
    if "liger cutedsl" in bench.peers:
        by_cutedsl = liger_cutedsl("LigerCrossEntropyFunction")
        forwards["liger cutedsl"] = lambda x, t: by_cutedsl(x.view_as(x), t, None)[0]
    n = rows * vocab
    # Rows that are ignored are not read; their gradient is written all the same.
    read = int(rows * (1 - ignored)) * vocab
    shape = f"{rows}x{vocab}{percent_ignored(ignored)}"
    return Case("cross_entropy", shape, make, forwards, 2 * read, 2 * read + 2 * n)


def _distributions(
    bench: Bench, rows: int, vocab: int, dtype: torch.dtype, of: tuple[Forward, Forward]
) -> Callable[[int], Tensors]:
    """Makes a student's leaf and a teacher's distribution from logits."""

    def make(seed: int) -> Tensors:
        g = bench.generator(seed)
        x, y = (
            function(torch.randn(rows, vocab, generator=g, device=bench.device), -1).to(dtype)
            for function in of
        )
        return x.requires_grad_(), y

    return make


def kl_div(bench: Bench, rows: int, vocab: int) -> Case:
    """KL divergence from a teacher's probabilities, bf16; eager is F.kl_div."""

    def eager(x: Tensor, y: Tensor) -> Tensor:
        return F.kl_div(x, y, reduction="batchmean")

    kernel = bench.kernels["kl_div"]
    forwards: dict[str, Forward] = {
        "eager": eager,
        "torch.compile": bench.compile(eager),
        "fuseboard": lambda x, y: torch.ops.fuseboard.kl_div(
            x, y, None, False, 0.0, -100, _BATCHMEAN, kernel
        ),
    }
    if "liger" in bench.peers:
        from liger_kernel.transformers.functional import liger_kl_div

        forwards["liger"] = lambda x, y: liger_kl_div(x, y, reduction="batchmean")
    if "liger cutedsl" in bench.peers:
        forwards["liger cutedsl"] = liger_dispatched("kl_div")
    make = _distributions(bench, rows, vocab, torch.bfloat16, (torch.log_softmax, torch.softmax))
    n = rows * vocab
    return Case("kl_div", f"{rows}x{vocab}", make, forwards, 4 * n, 6 * n)


def eager_jsd(x: Tensor, y: Tensor) -> Tensor:
    mean = torch.logaddexp(x, y) - math.log(2)
    both = F.kl_div(mean, y, reduction="sum", log_target=True)
    both = both + F.kl_div(mean, x, reduction="sum", log_target=True)
    return both / (2 * x.shape[0])


def jsd(bench: Bench, rows: int, vocab: int) -> Case:
    """Jensen-Shannon divergence of log-probabilities, beta 0.5, fp32."""
    kernel = bench.kernels["jsd"]
    forwards: dict[str, Forward] = {
        "eager": eager_jsd,
        "torch.compile": bench.compile(eager_jsd),
        "fuseboard": lambda x, y: torch.ops.fuseboard.jsd(
            x, y, None, 0.5, -100, _BATCHMEAN, kernel
        ),
    }
    if "liger" in bench.peers:
        from liger_kernel.transformers.functional import liger_jsd

        forwards["liger"] = lambda x, y: liger_jsd(x, y, beta=0.5)
    if "liger cutedsl" in bench.peers:
        by_cutedsl = liger_dispatched("jsd")
        forwards["liger cutedsl"] = lambda x, y: by_cutedsl(x, y, beta=0.5)
    log = torch.log_softmax
    make = _distributions(bench, rows, vocab, torch.float32, (log, log))
    n = rows * vocab
    return Case("jsd", f"{rows}x{vocab}", make, forwards, 8 * n, 12 * n)


def tvd(bench: Bench, rows: int, vocab: int) -> Case:
    """Total variation distance of probabilities, fp32."""

    def eager(x: Tensor, y: Tensor) -> Tensor:
        return (x - y).abs().sum() / (2 * x.shape[0])

    kernel = bench.kernels["tvd"]
    forwards: dict[str, Forward] = {
        "eager": eager,
        "torch.compile": bench.compile(eager),
        "fuseboard": lambda x, y: torch.ops.fuseboard.tvd(x, y, None, -100, _BATCHMEAN, kernel),
    }
    if "liger" in bench.peers:
        from liger_kernel.transformers.functional import liger_tvd

        forwards["liger"] = lambda x, y: liger_tvd(x, y, reduction="batchmean")
    make = _distributions(bench, rows, vocab, torch.float32, (torch.softmax, torch.softmax))
    n = rows * vocab
    return Case("tvd", f"{rows}x{vocab}", make, forwards, 8 * n, 12 * n)
