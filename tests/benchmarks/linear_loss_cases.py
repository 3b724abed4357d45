"""Losses of a linear layer's rows beside their peers: logits are never held whole."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from tests.benchmarks.case import Bench, Case, Forward, Tensors, computed
from tests.benchmarks.loss_cases import MEAN, eager_jsd, labels, percent_ignored
from tests.benchmarks.peers import TORCH_LINEAR_CROSS_ENTROPY, liger_cutedsl, liger_dispatched

Tensor = torch.Tensor
Shape = tuple[int, int, int]
_CHUNK_BYTES = 2**29  # Of the logits, by default.


def _products(rows: int, hidden: int, vocab: int) -> list[Shape]:
    """Logits, gradient of the hidden states, gradient of the weight.

    Of the next multiple of 16 bytes of classes: with one too many cuBLAS takes several times as long.
    """
    vocab = -(-vocab // 8) * 8
    return [(rows, vocab, hidden), (rows, hidden, vocab), (vocab, hidden, rows)]


def _head(bench: Bench, rows: int, hidden: int, vocab: int, seed: int, ignored: float) -> Tensors:
    """Hidden states, a weight whose logits are of order 1, labels."""
    g = bench.generator(seed)
    x = bench.normal(g, rows, hidden)
    w = (bench.normal(g, vocab, hidden).detach() * hidden**-0.5).requires_grad_()
    return x, w, labels(bench, rows, vocab, seed, ignored)


def _ours(fused: Callable[..., Forward], rows: int, vocab: int) -> dict[str, Forward]:
    """What `fused(dweight_dtype, chunk_bytes)` makes: as by default, and with all logits at once if it cuts them."""
    found = {"fuseboard": fused(1, 0), "fuseboard fp32 dW": fused(2, 0)}
    whole = rows * -(-vocab // 64) * 64 * 2
    if whole > _CHUNK_BYTES:
        found["fuseboard one chunk"] = fused(1, whole)
    return found


def _linear_cross_entropy_peers(bench: Bench) -> dict[str, Forward]:
    found: dict[str, Forward] = {}
    if TORCH_LINEAR_CROSS_ENTROPY in bench.peers:
        found[TORCH_LINEAR_CROSS_ENTROPY] = F.linear_cross_entropy  # type: ignore[attr-defined]
    if "quack" in bench.peers:
        # Without the tuning of its products, which takes minutes; the path it has for this GPU needs none.
        def quack(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
            from quack.linear_cross_entropy import chunked_linear_cross_entropy

            loss: Tensor = chunked_linear_cross_entropy(x, w, t, tuned=False)
            return loss

        found["quack"] = quack
    if "cce" in bench.peers:
        from cut_cross_entropy import linear_cross_entropy

        found["cce"] = linear_cross_entropy  # It leaves small gradients out.
        found["cce exact"] = lambda x, w, t: linear_cross_entropy(x, w, t, filter_eps=None)
    if "liger" in bench.peers:
        from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy as flce

        found["liger"] = lambda x, w, t: flce(x, w, t)
        found["liger fp32 dW"] = lambda x, w, t: flce(x, w, t, accum_dtype=torch.float32)
    if "liger cutedsl" in bench.peers:
        by_cutedsl = liger_cutedsl("LigerFusedLinearCrossEntropyFunction")
        found["liger cutedsl"] = lambda x, w, t: by_cutedsl(x, w, t)[0]
    return found


def fused_linear_cross_entropy(
    bench: Bench, rows: int, hidden: int, vocab: int, ignored: float = 0.0
) -> Case:
    """The loss from hidden states and head weight, bf16."""

    def make(seed: int) -> Tensors:
        return _head(bench, rows, hidden, vocab, seed, ignored)

    def eager(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(computed(F.linear(x, w)), t)

    kernel = bench.kernels["cross_entropy"]

    def fused(dweight_dtype: int, chunk_bytes: int) -> Forward:
        def call(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
            loss, _ = torch.ops.fuseboard.fused_linear_cross_entropy(
                x, w, None, t, None, None, -100, 0.0, 0.0, 1.0, 0.0, False, MEAN,
                dweight_dtype, chunk_bytes, kernel,
            )  # fmt: skip
            return loss

        return call

    forwards: dict[str, Forward] = {"eager": eager, "torch.compile": bench.compile(eager)}
    forwards |= _ours(fused, rows, vocab) | _linear_cross_entropy_peers(bench)
    products = _products(int(rows * (1 - ignored)), hidden, vocab)
    shape = f"{rows}x{hidden}x{vocab}{percent_ignored(ignored)}"
    return Case(
        "fused_linear_cross_entropy", shape, make, forwards, products=products,
        forward_products=products[:1], has_error=rows * vocab <= 2**31,
    )  # fmt: skip


def selected_log_probs(bench: Bench, rows: int, hidden: int, vocab: int) -> Case:
    """The log-probability of each label, bf16; Liger's is its scaled cross entropy with another sign."""

    def make(seed: int) -> Tensors:
        return _head(bench, rows, hidden, vocab, seed, 0.0)

    def eager(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
        return torch.log_softmax(computed(F.linear(x, w)), -1).gather(1, t[:, None])[:, 0]

    def liger(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
        # Here, so that a Liger without it, or without what it needs, is named and left out.
        from liger_kernel.ops import LigerFusedLinearScaledCrossEntropyFunction

        loss: Tensor = LigerFusedLinearScaledCrossEntropyFunction.apply(x, w, t)
        return -loss

    kernel = bench.kernels["cross_entropy"]

    def fused(dweight_dtype: int, chunk_bytes: int) -> Forward:
        return lambda x, w, t: torch.ops.fuseboard.selected_log_probs(
            x, w, None, t, -100, 0.0, 1.0, 1.0, dweight_dtype, chunk_bytes, kernel
        )

    forwards: dict[str, Forward] = {"eager": eager, "torch.compile": bench.compile(eager)}
    forwards |= _ours(fused, rows, vocab)
    if "liger" in bench.peers:
        forwards["liger"] = liger
    if "liger cutedsl" in bench.peers:
        by_cutedsl = liger_cutedsl("LigerFusedScaledCrossEntropySM90Function")
        forwards["liger cutedsl"] = lambda x, w, t: -by_cutedsl(x, w, t)
    products = _products(rows, hidden, vocab)
    return Case(
        "selected_log_probs", f"{rows}x{hidden}x{vocab}", make, forwards, products=products,
        forward_products=products[:1], has_error=rows * vocab <= 2**31,
    )  # fmt: skip


def fused_linear_scaled_cross_entropy(bench: Bench, rows: int, hidden: int, vocab: int) -> Case:
    """Cross entropy and entropy of each row, both with a gradient, bf16."""

    def make(seed: int) -> Tensors:
        return _head(bench, rows, hidden, vocab, seed, 0.0)

    def eager(x: Tensor, w: Tensor, t: Tensor) -> Tensors:
        logp = torch.log_softmax(computed(F.linear(x, w)), -1)
        return -logp.gather(1, t[:, None])[:, 0], -(logp.exp() * logp).sum(-1)

    def liger(x: Tensor, w: Tensor, t: Tensor) -> Tensors:
        from liger_kernel.ops import LigerFusedLinearScaledCrossEntropyFunction as Loss

        return tuple(Loss.apply(x, w, t, 1.0, -100, 1, True))

    kernel = bench.kernels["cross_entropy"]

    def fused(dweight_dtype: int, chunk_bytes: int) -> Forward:
        return lambda x, w, t: torch.ops.fuseboard.fused_linear_scaled_cross_entropy(
            x, w, None, t, -100, 0.0, 1.0, 1.0, True, dweight_dtype, chunk_bytes, kernel
        )

    forwards: dict[str, Forward] = {"eager": eager, "torch.compile": bench.compile(eager)}
    forwards |= _ours(fused, rows, vocab)
    if "liger" in bench.peers:
        forwards["liger"] = liger
    if "liger cutedsl" in bench.peers:
        by_cutedsl = liger_cutedsl("LigerFusedScaledCrossEntropySM90Function")
        forwards["liger cutedsl"] = lambda x, w, t: tuple(by_cutedsl(x, w, t, 1.0, -100, 1, True))
    products = _products(rows, hidden, vocab)
    return Case(
        "fused_linear_scaled_cross_entropy", f"{rows}x{hidden}x{vocab}", make, forwards,
        products=products, forward_products=products[:1], has_error=rows * vocab <= 2**28,
    )  # fmt: skip


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
        return eager_jsd(*logs)

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
    if "liger cutedsl" in bench.peers:
        forwards["liger cutedsl"] = liger_dispatched("fused_linear_jsd")
    logits = (rows, vocab, hidden)
    products = [logits, logits, (rows, hidden, vocab), (vocab, hidden, rows)]
    return Case(
        "fused_linear_jsd", f"{rows}x{hidden}x{vocab}", make, forwards, products=products,
        forward_products=products[:2], has_error=rows * vocab <= 2**28,
    )  # fmt: skip
