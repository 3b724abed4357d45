"""Cross entropy and divergences beside their peers."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from tests.benchmarks.case import Bench, Case, Forward, Tensors, computed

Tensor = torch.Tensor
_MEAN, _BATCHMEAN = 1, 3


def labels(bench: Bench, rows: int, vocab: int, seed: int, ignored: float) -> Tensor:
    """Random labels, a share of them ignored."""
    g = bench.generator(seed + 1)
    target = torch.randint(vocab, (rows,), generator=g, device=bench.device)
    if ignored:
        target[torch.rand(rows, generator=g, device=bench.device) < ignored] = -100
    return target


def _fused_cross_entropy(logits: Tensor, target: Tensor, kernel: int) -> Tensor:
    loss, _ = torch.ops.fuseboard.cross_entropy(
        logits, target, None, None, -100, 0.0, 0.0, 1.0, 0.0, False, _MEAN, kernel
    )
    return loss


def cross_entropy(bench: Bench, rows: int, vocab: int) -> Case:
    """Cross entropy on bf16 logits; native computes it from float() as transformers does."""

    def make(seed: int) -> Tensors:
        logits = bench.normal(bench.generator(seed), rows, vocab)
        return logits, labels(bench, rows, vocab, seed, 0)

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
    n = rows * vocab
    return Case("cross_entropy", f"{rows}x{vocab}", make, forwards, 2 * n, 4 * n)


def fused_linear_cross_entropy(
    bench: Bench, rows: int, hidden: int, vocab: int, ignored: float = 0.0
) -> Case:
    """The loss from hidden states and head weight, bf16."""

    def make(seed: int) -> Tensors:
        g = bench.generator(seed)
        x = bench.normal(g, rows, hidden)
        w = (bench.normal(g, vocab, hidden).detach() * hidden**-0.5).requires_grad_()
        return x, w, labels(bench, rows, vocab, seed, ignored)

    def eager(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(computed(F.linear(x, w)), t)

    kernel = bench.kernels["cross_entropy"]

    def fused(dweight_dtype: int) -> Forward:
        def call(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
            loss, _ = torch.ops.fuseboard.fused_linear_cross_entropy(
                x, w, None, t, None, None, -100, 0.0, 0.0, 1.0, 0.0, False, _MEAN,
                dweight_dtype, 0, kernel,
            )  # fmt: skip
            return loss

        return call

    forwards: dict[str, Forward] = {
        "eager": eager,
        "torch.compile": bench.compile(eager),
        "fuseboard": fused(1),
        "fuseboard fp32 dW": fused(2),
    }
    if "cce" in bench.peers:
        from cut_cross_entropy import linear_cross_entropy

        forwards["cce"] = linear_cross_entropy
    if "liger" in bench.peers:
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy as flce

        forwards["liger"] = lambda x, w, t: flce(x, w, t)
        forwards["liger fp32 dW"] = lambda x, w, t: flce(x, w, t, accum_dtype=torch.float32)
    valid = int(rows * (1 - ignored))
    shape = f"{rows}x{hidden}x{vocab}" + (f" {ignored:.0%} ignored" if ignored else "")
    products = [(valid, vocab, hidden), (valid, hidden, vocab), (vocab, hidden, valid)]
    return Case(
        "fused_linear_cross_entropy", shape, make, forwards, products=products,
        forward_products=products[:1], has_error=rows * vocab <= 2**31,
    )  # fmt: skip


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
    make = _distributions(bench, rows, vocab, torch.bfloat16, (torch.log_softmax, torch.softmax))
    n = rows * vocab
    return Case("kl_div", f"{rows}x{vocab}", make, forwards, 4 * n, 6 * n)


def _eager_jsd(x: Tensor, y: Tensor) -> Tensor:
    mean = torch.logaddexp(x, y) - math.log(2)
    both = F.kl_div(mean, y, reduction="sum", log_target=True)
    both = both + F.kl_div(mean, x, reduction="sum", log_target=True)
    return both / (2 * x.shape[0])


def jsd(bench: Bench, rows: int, vocab: int) -> Case:
    """Jensen-Shannon divergence of log-probabilities, beta 0.5, fp32."""
    kernel = bench.kernels["jsd"]
    forwards: dict[str, Forward] = {
        "eager": _eager_jsd,
        "torch.compile": bench.compile(_eager_jsd),
        "fuseboard": lambda x, y: torch.ops.fuseboard.jsd(
            x, y, None, 0.5, -100, _BATCHMEAN, kernel
        ),
    }
    if "liger" in bench.peers:
        from liger_kernel.transformers.functional import liger_jsd

        forwards["liger"] = lambda x, y: liger_jsd(x, y, beta=0.5)
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


def fused_linear_jsd(bench: Bench, rows: int, hidden: int, vocab: int) -> Case:
    """JSD of two models of one width from their hidden states, beta 0.5, bf16."""

    def make(seed: int) -> Tensors:
        g = bench.generator(seed)
        student, teacher = bench.normal(g, rows, hidden), bench.normal(g, rows, hidden)
        heads = (bench.normal(g, vocab, hidden).detach() * hidden**-0.5 for _ in range(2))
        student_head, teacher_head = heads
        return student, student_head.requires_grad_(), teacher.detach(), teacher_head

    def eager(x: Tensor, w: Tensor, y: Tensor, v: Tensor) -> Tensor:
        logs = (torch.log_softmax(computed(F.linear(h, head)), -1) for h, head in ((x, w), (y, v)))
        return _eager_jsd(*logs)

    kernel = bench.kernels["jsd"]

    def fused(dweight_dtype: int) -> Forward:
        return lambda x, w, y, v: torch.ops.fuseboard.fused_linear_jsd(
            x, w, None, y, v, None, None, 0.5, -100, 1.0, dweight_dtype, 0, kernel
        )

    forwards: dict[str, Forward] = {
        "eager": eager,
        "torch.compile": bench.compile(eager),
        "fuseboard": fused(1),
        "fuseboard fp32 dW": fused(2),
    }
    if "liger" in bench.peers:
        from liger_kernel.transformers.functional import liger_fused_linear_jsd as flj

        forwards["liger"] = lambda x, w, y, v: flj(x, w, y, v)
        forwards["liger fp32 dW"] = lambda x, w, y, v: flj(x, w, y, v, accum_dtype=torch.float32)
    logits = (rows, vocab, hidden)
    products = [logits, logits, (rows, hidden, vocab), (vocab, hidden, rows)]
    return Case(
        "fused_linear_jsd", f"{rows}x{hidden}x{vocab}", make, forwards, products=products,
        forward_products=products[:2], has_error=rows * vocab <= 2**28,
    )  # fmt: skip


def selected_log_probs(bench: Bench, rows: int, hidden: int, vocab: int) -> Case:
    """The log-probability of each label, bf16; Liger's is its scaled cross entropy with another sign."""

    def make(seed: int) -> Tensors:
        g = bench.generator(seed)
        x = bench.normal(g, rows, hidden)
        w = (bench.normal(g, vocab, hidden).detach() * hidden**-0.5).requires_grad_()
        return x, w, labels(bench, rows, vocab, seed, 0)

    def eager(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
        return torch.log_softmax(computed(F.linear(x, w)), -1).gather(1, t[:, None])[:, 0]

    def liger(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
        # Here, so that a Liger without it, or without what it needs, is named and left out.
        from liger_kernel.ops import LigerFusedLinearScaledCrossEntropyFunction

        loss: Tensor = LigerFusedLinearScaledCrossEntropyFunction.apply(x, w, t)
        return -loss

    kernel = bench.kernels["cross_entropy"]

    def fused(dweight_dtype: int) -> Forward:
        return lambda x, w, t: torch.ops.fuseboard.selected_log_probs(
            x, w, None, t, -100, 0.0, 1.0, 1.0, dweight_dtype, 0, kernel
        )

    forwards: dict[str, Forward] = {
        "eager": eager,
        "torch.compile": bench.compile(eager),
        "fuseboard": fused(1),
        "fuseboard fp32 dW": fused(2),
    }
    if "liger" in bench.peers:
        forwards["liger"] = liger
    products = [(rows, vocab, hidden), (rows, hidden, vocab), (vocab, hidden, rows)]
    return Case(
        "selected_log_probs", f"{rows}x{hidden}x{vocab}", make, forwards, products=products,
        forward_products=products[:1], has_error=rows * vocab <= 2**31,
    )  # fmt: skip
