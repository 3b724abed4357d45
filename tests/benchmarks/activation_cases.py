"""Gated activations and the squared rectifier beside their peers."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from tests.benchmarks.case import Bench, Case, Forward, Tensors
from tests.benchmarks.peers import liger_cutedsl, liger_dispatched

Tensor = torch.Tensor


def _gate_and_up(bench: Bench, rows: int, cols: int, seed: int) -> Tensors:
    g = bench.generator(seed)
    return bench.normal(g, rows, cols), bench.normal(g, rows, cols)


def swiglu(bench: Bench, rows: int, cols: int) -> Case:
    """SwiGLU, bf16."""

    def eager(gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up

    kernel = bench.kernels["swiglu"]
    forwards: dict[str, Forward] = {
        "eager": eager,
        "torch.compile": bench.compile(eager),
        "fuseboard": lambda a, b: torch.ops.fuseboard.swiglu(a, b, True, kernel),
    }
    if "liger" in bench.peers:
        from liger_kernel.transformers.functional import liger_swiglu

        forwards["liger"] = liger_swiglu
    if "liger cutedsl" in bench.peers:
        # It writes the gradients over gate and up, which no caller's tensor survives.
        forwards["liger cutedsl"] = liger_cutedsl("LigerSiLUMulFunction")
    make = functools.partial(_gate_and_up, bench, rows, cols)
    n = rows * cols
    return Case("swiglu", f"{rows}x{cols}", make, forwards, 6 * n, 16 * n)


def geglu(bench: Bench, rows: int, cols: int, approximate: str) -> Case:
    """GeGLU in either form, bf16. Liger has the one by tanh only."""

    def eager(gate: Tensor, up: Tensor) -> Tensor:
        return F.gelu(gate, approximate=approximate) * up

    kernel = bench.kernels["geglu"]
    by_tanh = approximate == "tanh"
    forwards: dict[str, Forward] = {
        "eager": eager,
        "torch.compile": bench.compile(eager),
        "fuseboard": lambda a, b: torch.ops.fuseboard.geglu(a, b, by_tanh, True, kernel),
    }
    if "liger" in bench.peers and by_tanh:
        from liger_kernel.transformers.functional import liger_geglu

        forwards["liger"] = liger_geglu
    if "liger cutedsl" in bench.peers and by_tanh:
        forwards["liger cutedsl"] = liger_dispatched("geglu")
    make = functools.partial(_gate_and_up, bench, rows, cols)
    n = rows * cols
    operation = "geglu_tanh" if by_tanh else "geglu_exact"
    return Case(operation, f"{rows}x{cols}", make, forwards, 6 * n, 16 * n)


def relu_squared(bench: Bench, rows: int, cols: int) -> Case:
    """max(x, 0)^2, bf16."""

    def make(seed: int) -> Tensors:
        return (bench.normal(bench.generator(seed), rows, cols),)

    def eager(x: Tensor) -> Tensor:
        return F.relu(x).square()

    kernel = bench.kernels["relu_squared"]
    forwards: dict[str, Forward] = {
        "eager": eager,
        "torch.compile": bench.compile(eager),
        "fuseboard": lambda x: torch.ops.fuseboard.relu_squared(x, kernel),
    }
    if "liger" in bench.peers:
        from liger_kernel.transformers.functional import liger_relu_squared

        forwards["liger"] = liger_relu_squared
    n = rows * cols
    return Case("relu_squared", f"{rows}x{cols}", make, forwards, 4 * n, 10 * n)
