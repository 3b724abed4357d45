"""Rotary position embedding, alone and after the norm of each head."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuseboard._libraries import kernel_handle
from fuseboard.ops._arguments import casting_number

Tensor = torch.Tensor


def rope(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    *,
    unsqueeze_dim: int = 1,
    rotary_dim: int | None = None,
    sections: Sequence[int] = (),
    interleaved: bool = False,
    round_products: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """q * cos + rotate_half(q) * sin, and k alike, in one launch and out of place.

    Args:
        q: [batch, heads, positions, dim], or without batch; any strides, so that the transposed view of
            a projection is not copied.
        k: As q with its own number of heads, or None.
        cos: [positions, width], [batch, positions, width] or [1, positions, width], in radians' cosine;
            with sections 3 streams in front. width is rotary_dim, or half of it for one factor a pair.
        sin: As cos.
        unsqueeze_dim: 1; or 2 if q and k are [batch, positions, heads, dim]. As in transformers.
        rotary_dim: Elements of a head that are rotated, an even number; the rest is copied. None: all
            that the tables have.
        sections: mrope_section of Qwen2-VL: how many pairs each of the 3 streams rotates.
        interleaved: Pairs are neighbours (Cohere, GLM), else a half apart (Llama, Qwen).
        round_products: Round both products to the dtype of q before they are added, as a model's own
            code does where the tables have the dtype of q.

    Returns:
        q and k rotated (None for a k that is None), in the shapes and dtypes given. No gradient for the
        tables.

    Raises:
        ValueError: `unsqueeze_dim` is neither 1 nor 2.
        RuntimeError: Shapes do not fit, or a table requires a gradient.

    Example:
        >>> q, k = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
        >>> cos, sin = torch.ones(3, 8), torch.zeros(3, 8)
        >>> torch.equal(ops.rope(q, k, cos, sin)[0], q)
        True
    """
    q, k = _heads_first(q, k, unsqueeze_dim)
    kernel = kernel_handle("rope")
    rotary_dim = cos.shape[-1] if rotary_dim is None else rotary_dim
    q_out, k_out = torch.ops.fuseboard.rope(
        q, k, cos, sin, rotary_dim, list(sections), interleaved, round_products, kernel
    )
    return _heads_first(q_out, None if k is None else k_out, unsqueeze_dim)


def qk_norm_rope(
    q: Tensor,
    k: Tensor | None,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    casting: str = "llama",
    all_heads: bool = False,
    unsqueeze_dim: int = 1,
    rotary_dim: int | None = None,
    sections: Sequence[int] = (),
    interleaved: bool = False,
    round_products: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """rope(rms_norm(q), rms_norm(k)) in one launch: Qwen3, Gemma 3, OLMo2.

    Args:
        q: As of rope.
        k: As of rope.
        q_weight: [dim], with all_heads [heads * dim], or None.
        k_weight: As q_weight, of k.
        cos: As of rope.
        sin: As of rope.
        eps: Added to the mean of squares.
        offset: As of rms_norm; Gemma 3 has 1.
        casting: As of rms_norm. Qwen3 "llama", Gemma 3 and OLMo2 "gemma".
        all_heads: The mean goes over all heads of a position (OLMo2), else over each head.
        unsqueeze_dim: As of rope.
        rotary_dim: As of rope.
        sections: As of rope.
        interleaved: As of rope.
        round_products: As of rope.

    Returns:
        As rope. With casting "llama" in the dtype that multiplying by the weight gives.

    Raises:
        ValueError: `casting` or `unsqueeze_dim` does not exist.
        RuntimeError: As rope.

    Example:
        >>> q, w = torch.randn(1, 4, 3, 8), torch.ones(8)
        >>> ops.qk_norm_rope(q, None, w, None, torch.ones(3, 8), torch.zeros(3, 8))[0].shape
        torch.Size([1, 4, 3, 8])
    """
    q, k = _heads_first(q, k, unsqueeze_dim)
    kernel = kernel_handle("qk_norm_rope")
    rotary_dim = cos.shape[-1] if rotary_dim is None else rotary_dim
    q_out, k_out = torch.ops.fuseboard.qk_norm_rope(
        q, k, q_weight, k_weight, cos, sin, eps, offset, casting_number(casting), all_heads,
        rotary_dim, list(sections), interleaved, round_products, kernel,
    )  # fmt: skip
    return _heads_first(q_out, None if k is None else k_out, unsqueeze_dim)


def _heads_first(q: Tensor, k: Tensor | None, unsqueeze_dim: int) -> tuple[Tensor, Tensor | None]:
    """Views as [..., heads, positions, dim]; the way back is the same."""
    if unsqueeze_dim == 1:
        return q, k
    if unsqueeze_dim != 2:
        raise ValueError(f"unsqueeze_dim is {unsqueeze_dim}, want 1 or 2")
    return q.transpose(-3, -2), None if k is None else k.transpose(-3, -2)
