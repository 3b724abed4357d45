"""Rotary position embedding beside its peers, alone and after the norm of each head."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.benchmarks.case import Bench, Case, Forward, Tensors
from tests.benchmarks.norm_cases import eager_rms_norm
from tests.benchmarks.peers import liger_cutedsl, quack_rope

Tensor = torch.Tensor


def _rotate_half(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def eager_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Tensors:
    """transformers' apply_rotary_pos_emb."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return (q * cos) + (_rotate_half(q) * sin), (k * cos) + (_rotate_half(k) * sin)


def _heads(bench: Bench, g: torch.Generator, *shape: int) -> Tensor:
    """A leaf [batch, heads, positions, dim] that is a view of a projection."""
    return bench.normal(g, *shape).detach().transpose(1, 2).requires_grad_()


def _inputs(
    bench: Bench, seed: int, batch: int, positions: int, heads: tuple[int, int], dim: int
) -> Tensors:
    g = bench.generator(seed)
    q, k = (_heads(bench, g, batch, positions, h, dim) for h in heads)
    frequencies = 1e4 ** -(torch.arange(0, dim, 2, device=bench.device) / dim)
    angles = torch.arange(positions, device=bench.device)[:, None] * frequencies
    angles = torch.cat((angles, angles), -1)[None]
    return q, k, angles.cos().to(q.dtype), angles.sin().to(q.dtype)


def _shape(batch: int, positions: int, heads: tuple[int, int], dim: int) -> str:
    return f"B{batch} S{positions} heads {heads[0]}/{heads[1]} d{dim}"


def rope(bench: Bench, batch: int, positions: int, heads: tuple[int, int], dim: int) -> Case:
    """q and k by one table, bf16."""

    def make(seed: int) -> Tensors:
        return _inputs(bench, seed, batch, positions, heads, dim)

    kernel = bench.kernels["rope"]
    forwards: dict[str, Forward] = {
        "eager": eager_rope,
        "torch.compile": bench.compile(eager_rope),
        "fuseboard": lambda q, k, c, s: torch.ops.fuseboard.rope(
            q, k, c, s, dim, [], False, True, kernel
        ),
    }
    if "liger" in bench.peers:
        from liger_kernel.transformers.functional import liger_rope

        # Liger overwrites q and k: each call needs its own, as an op out of place.
        forwards["liger"] = lambda q, k, c, s: liger_rope(q.clone(), k.clone(), c, s)
    if "liger cutedsl" in bench.peers:
        by_cutedsl = liger_cutedsl("LigerRopeFunction")
        forwards["liger cutedsl"] = lambda q, k, c, s: by_cutedsl(q.clone(), k.clone(), c, s)
    if "quack" in bench.peers:
        forwards["quack"] = quack_rope
    n = batch * positions * sum(heads) * dim
    return Case("rope", _shape(batch, positions, heads, dim), make, forwards, 4 * n, 8 * n)


def qk_norm_rope(
    bench: Bench, batch: int, positions: int, heads: tuple[int, int], dim: int
) -> Case:
    """The norms of q's and k's heads and their rotation, as in Qwen3, bf16."""

    def make(seed: int) -> Tensors:
        g = bench.generator(seed + 100)
        weights = bench.normal(g, dim), bench.normal(g, dim)
        return *_inputs(bench, seed, batch, positions, heads, dim), *weights

    def with_norm(norm: Forward, rope_of: Forward) -> Forward:
        def forward(
            q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, q_weight: Tensor, k_weight: Tensor
        ) -> Tensors:
            # A model's norm comes before the view: its rows lie one after the other.
            q = norm(q.transpose(1, 2), q_weight).transpose(1, 2)
            k = norm(k.transpose(1, 2), k_weight).transpose(1, 2)
            result: Tensors = rope_of(q, k, cos, sin)
            return result

        return forward

    eager = with_norm(eager_rms_norm, eager_rope)
    kernel = bench.kernels["qk_norm_rope"]
    forwards: dict[str, Forward] = {
        "eager": eager,
        "torch.compile": bench.compile(eager),
        "F.rms_norm": with_norm(lambda x, w: F.rms_norm(x, (dim,), w, 1e-6), eager_rope),
        "fuseboard": lambda q, k, c, s, a, b: torch.ops.fuseboard.qk_norm_rope(
            q, k, a, b, c, s, 1e-6, 0.0, 0, False, dim, [], False, True, kernel
        ),
    }
    if "liger" in bench.peers:
        from liger_kernel.transformers.functional import liger_rms_norm, liger_rope

        forwards["liger"] = with_norm(lambda x, w: liger_rms_norm(x, w, 1e-6), liger_rope)
    if "quack" in bench.peers:
        import quack

        forwards["quack"] = with_norm(lambda x, w: quack.rmsnorm(x, w, eps=1e-6), quack_rope)
    n = batch * positions * sum(heads) * dim
    return Case("qk_norm_rope", _shape(batch, positions, heads, dim), make, forwards, 4 * n, 10 * n)
