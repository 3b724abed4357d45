"""Problems of the rotary embedding, alone and after the norms of the heads."""

import torch

from tests.client_py.ops.norm_problems import (
    EPS,
    norm_options,
    rms_norm_formula,
    steepness,
    weight_of,
)
from tests.client_py.ops.problems import Problem
from tests.client_py.ops.reference import call_qk_norm_rope, call_rope, norm_heads
from tests.client_py.ops.reference import rope as rope_formula


def _heads_and_tables(source, length, dims):
    batch, counts = source.one_of([1, 2, 3]), source.one_of([(4, 2), (3, 3), (1, 1), (8, 1)])
    dim = source.width(dims)
    rotary = source.one_of([dim, dim, max(2, dim // 4 * 2)])
    interleaved, inside = source.maybe(), source.maybe()

    def heads(count):
        if inside:
            x = source.tensor(batch, length, count, dim).detach()
            return x.transpose(1, 2).requires_grad_()
        return source.tensor(batch, count, length, dim)

    q, k = heads(counts[0]), heads(counts[1])
    angle = source.randn(source.one_of([1, batch]), length, rotary // 2) * 3
    angle = angle.repeat_interleave(2, -1) if interleaved else torch.cat([angle, angle], -1)
    dtype = source.other_dtype()
    tables = [source.laid_out(f(angle).to(dtype)) for f in (torch.cos, torch.sin)]
    return q, k, tables, interleaved


def rope(source, length):
    """Both orders of pairs, partial, a table for each example or for all."""
    q, k, tables, interleaved = _heads_and_tables(source, length, [2, 6, 16, 64, 72, 80, 128])
    rounded = source.maybe()

    def call(t, kernel):
        return call_rope(
            *t,
            rotary_dim=t[2].shape[-1],
            interleaved=interleaved,
            round_products=rounded,
            kernel=kernel,
        )

    def formula(t):
        return tuple(rope_formula(x, t[2], t[3], interleaved).to(x.dtype) for x in t[:2])

    return Problem([q, k, *tables], call, formula, slack=2)


def qk_norm_rope(source, length):
    """As rope, after the norm of each head or of all heads of a position."""
    q, k, tables, interleaved = _heads_and_tables(source, length, [2, 6, 16, 64, 72, 128])
    options, all_heads = norm_options(source), source.maybe()
    dim = q.shape[-1]
    sizes = [x.shape[1] * dim if all_heads else dim for x in (q, k)]
    weights = [weight_of(source, size) for size in sizes]

    def call(t, kernel):
        return call_qk_norm_rope(
            t[0], t[1], t[4], t[5], t[2], t[3], EPS, **options, all_heads=all_heads,
            rotary_dim=t[2].shape[-1], interleaved=interleaved, kernel=kernel,
        )  # fmt: skip

    def formula(t):
        def one(x, weight):
            y = norm_heads(lambda a, w: rms_norm_formula(a, w, **options), x, weight, all_heads)
            return rope_formula(y, t[2], t[3], interleaved)

        return one(t[0], t[4]), one(t[1], t[5])

    return Problem(
        [q, k, *tables, *weights],
        call,
        formula,
        slack=3,
        terms=lambda t: max(steepness(t[0], t[4]), steepness(t[1], t[5])),
    )
