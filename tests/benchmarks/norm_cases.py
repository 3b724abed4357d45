"""Norms and softmax beside their peers."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.benchmarks.case import Bench, Case, Forward, Tensors, computed
from tests.benchmarks.peers import liger_cutedsl, liger_dispatched, quack_layer_norm

Tensor = torch.Tensor


def eager_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm as transformers' Llama writes it."""
    y = computed(x)
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * y.to(x.dtype)


def rms_norm(bench: Bench, rows: int, hidden: int) -> Case:
    """RMSNorm with Llama's rounding, bf16."""

    def make(seed: int) -> Tensors:
        g = bench.generator(seed)
        return bench.normal(g, rows, hidden), bench.normal(g, hidden)

    kernel = bench.kernels["rms_norm"]
    forwards: dict[str, Forward] = {
        "eager": eager_rms_norm,
        "torch.compile": bench.compile(eager_rms_norm),
        "F.rms_norm": lambda x, w: F.rms_norm(x, (hidden,), w, 1e-6),
        "fuseboard": lambda x, w: torch.ops.fuseboard.rms_norm(x, w, 1e-6, 0.0, 0, kernel),
    }
    if "quack" in bench.peers:
        import quack

        forwards["quack"] = lambda x, w: quack.rmsnorm(x, w, eps=1e-6)
    if "liger" in bench.peers:
        from liger_kernel.transformers.functional import liger_rms_norm

        forwards["liger"] = lambda x, w: liger_rms_norm(x, w, 1e-6)
    if "liger cutedsl" in bench.peers:
        by_cutedsl = liger_cutedsl("LigerRMSNormFunction")
        forwards["liger cutedsl"] = lambda x, w: by_cutedsl(x, w, 1e-6)
    n = rows * hidden
    return Case("rms_norm", f"{rows}x{hidden}", make, forwards, 4 * n, 10 * n)


def fused_add_rms_norm(bench: Bench, rows: int, hidden: int) -> Case:
    """The sum and its RMSNorm with Llama's rounding, bf16."""

    def make(seed: int) -> Tensors:
        g = bench.generator(seed)
        return (
            bench.normal(g, rows, hidden),
            bench.normal(g, rows, hidden),
            bench.normal(g, hidden),
        )

    def eager(x: Tensor, residual: Tensor, w: Tensor) -> Tensors:
        total = x + residual
        return eager_rms_norm(total, w), total

    def native(x: Tensor, residual: Tensor, w: Tensor) -> Tensors:
        total = x + residual
        return F.rms_norm(total, (hidden,), w, 1e-6), total

    kernel = bench.kernels["fused_add_rms_norm"]
    forwards: dict[str, Forward] = {
        "eager": eager,
        "torch.compile": bench.compile(eager),
        "F.rms_norm": native,
        "fuseboard": lambda x, r, w: torch.ops.fuseboard.fused_add_rms_norm(
            x, r, w, 1e-6, 0.0, 0, kernel
        ),
    }
    if "quack" in bench.peers:
        import quack

        forwards["quack"] = lambda x, r, w: quack.rmsnorm(x, w, residual=r, eps=1e-6, prenorm=True)
    if "liger" in bench.peers:
        from liger_kernel.transformers.functional import liger_fused_add_rms_norm

        forwards["liger"] = lambda x, r, w: liger_fused_add_rms_norm(x, r, w, 1e-6)
    if "liger cutedsl" in bench.peers:
        by_cutedsl = liger_dispatched("fused_add_rms_norm")
        forwards["liger cutedsl"] = lambda x, r, w: by_cutedsl(x, r, w, 1e-6)
    n = rows * hidden
    return Case("fused_add_rms_norm", f"{rows}x{hidden}", make, forwards, 8 * n, 16 * n)


def modulated_rms_norm(bench: Bench, rows: int, hidden: int) -> Case:
    """RMSNorm with a scale and a shift per example, bf16; up to 16 examples."""
    batch = min(16, rows)

    def make(seed: int) -> Tensors:
        g = bench.generator(seed)
        return (
            bench.normal(g, batch, rows // batch, hidden),
            bench.normal(g, hidden),
            bench.normal(g, batch, hidden),
            bench.normal(g, batch, hidden),
        )

    def eager(x: Tensor, w: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return eager_rms_norm(x, w) * (1 + scale[:, None]) + shift[:, None]

    kernel = bench.kernels["modulated_rms_norm"]
    forwards: dict[str, Forward] = {
        "eager": eager,
        "torch.compile": bench.compile(eager),
        "fuseboard": lambda x, w, a, b: torch.ops.fuseboard.modulated_rms_norm(
            x, w, a, b, 1e-6, 0.0, 0, kernel
        ),
    }
    if "liger" in bench.peers:
        from liger_kernel.transformers.functional import liger_modulated_rms_norm

        forwards["liger"] = lambda x, w, a, b: liger_modulated_rms_norm(x, w, a, b, 1e-6)
    n = batch * (rows // batch) * hidden
    shape = f"{batch}x{rows // batch}x{hidden}"
    return Case("modulated_rms_norm", shape, make, forwards, 4 * n, 10 * n)


def layer_norm(bench: Bench, rows: int, hidden: int) -> Case:
    """LayerNorm with weight and bias, bf16; eager is F.layer_norm."""

    def make(seed: int) -> Tensors:
        g = bench.generator(seed)
        return bench.normal(g, rows, hidden), bench.normal(g, hidden), bench.normal(g, hidden)

    def eager(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(x, (hidden,), w, b, 1e-5)

    kernel = bench.kernels["layer_norm"]
    forwards: dict[str, Forward] = {
        "eager": eager,
        "torch.compile": bench.compile(eager),
        "fuseboard": lambda x, w, b: torch.ops.fuseboard.layer_norm(x, w, b, 1e-5, kernel),
    }
    if "quack" in bench.peers:
        forwards["quack"] = quack_layer_norm(1e-5)
    if "liger" in bench.peers:
        from liger_kernel.transformers.functional import liger_layer_norm

        forwards["liger"] = lambda x, w, b: liger_layer_norm(x, w, b, 1e-5)
    if "liger cutedsl" in bench.peers:
        by_cutedsl = liger_dispatched("layer_norm")
        forwards["liger cutedsl"] = lambda x, w, b: by_cutedsl(x, w, b, 1e-5)
    n = rows * hidden
    return Case("layer_norm", f"{rows}x{hidden}", make, forwards, 4 * n, 10 * n)


def group_norm(bench: Bench, batch: int, channels: int, pixels: int, groups: int) -> Case:
    """GroupNorm of [batch, channels, pixels], bf16; eager is F.group_norm."""

    def make(seed: int) -> Tensors:
        g = bench.generator(seed)
        x = bench.normal(g, batch, channels, pixels)
        return x, bench.normal(g, channels), bench.normal(g, channels)

    def eager(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.group_norm(x, groups, w, b, 1e-5)

    kernel = bench.kernels["group_norm"]
    forwards: dict[str, Forward] = {
        "eager": eager,
        "torch.compile": bench.compile(eager),
        "fuseboard": lambda x, w, b: torch.ops.fuseboard.group_norm(x, groups, w, b, 1e-5, kernel),
    }
    if "liger" in bench.peers:
        from liger_kernel.transformers.functional import liger_group_norm

        forwards["liger"] = lambda x, w, b: liger_group_norm(x, w, b, channels, groups, 1e-5)
    n = batch * channels * pixels
    shape = f"{batch}x{channels}x{pixels} groups {groups}"
    return Case("group_norm", shape, make, forwards, 4 * n, 10 * n)


def softmax(bench: Bench, rows: int, cols: int) -> Case:
    """Softmax over the last dimension, bf16; eager is F.softmax."""

    def make(seed: int) -> Tensors:
        return (bench.normal(bench.generator(seed), rows, cols),)

    def eager(x: Tensor) -> Tensor:
        return F.softmax(x, -1)

    kernel = bench.kernels["softmax"]
    forwards: dict[str, Forward] = {
        "eager": eager,
        "torch.compile": bench.compile(eager),
        "fuseboard": lambda x: torch.ops.fuseboard.softmax(x, kernel),
    }
    if "quack" in bench.peers:
        import quack

        forwards["quack"] = lambda x: quack.softmax(x)
    if "liger" in bench.peers:
        from liger_kernel.transformers.functional import liger_softmax

        forwards["liger"] = liger_softmax
    if "liger cutedsl" in bench.peers:
        forwards["liger cutedsl"] = liger_dispatched("softmax")
    n = rows * cols
    return Case("softmax", f"{rows}x{cols}", make, forwards, 4 * n, 10 * n)
