"""The norm of the heads and their rotation."""

from __future__ import annotations

import torch
from torch import nn

from fuseboard import ops
from fuseboard.nn._norms import RMSNorm
from fuseboard.ops._arguments import casting_number

Tensor = torch.Tensor


class QKNormRope(nn.Module):
    """The q_norm, k_norm and rotation of an attention, through ops.qk_norm_rope.

    The keys are those of the two norms in a model: `q_norm.weight` and `k_norm.weight`.

    Args:
        head_dim: Elements of a head; with all_heads pass a pair: heads times head_dim of q and of k.
        eps: Added to the mean of squares.
        device: Of the weights.
        dtype: Of the weights.
        offset: As of ops.rms_norm; Gemma 3 has 1.
        casting: As of ops.rms_norm.
        all_heads: As of ops.qk_norm_rope.
        interleaved: As of ops.rope.
        round_products: As of ops.rope.

    Example:
        >>> q, k = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
        >>> q, k = nn.QKNormRope(8)(q, k, torch.ones(3, 8), torch.zeros(3, 8))
    """

    def __init__(
        self,
        head_dim: int | tuple[int, int],
        eps: float = 1e-6,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        offset: float = 0.0,
        casting: str = "llama",
        all_heads: bool = False,
        interleaved: bool = False,
        round_products: bool = True,
    ) -> None:
        super().__init__()
        casting_number(casting)
        if isinstance(head_dim, tuple) != all_heads:
            wanted = "a pair with all_heads" if all_heads else "a number without all_heads"
            raise ValueError(f"head_dim is {head_dim}, want {wanted}")
        sizes = head_dim if isinstance(head_dim, tuple) else (head_dim, head_dim)
        self.q_norm, self.k_norm = (
            RMSNorm(size, eps, device=device, dtype=dtype, offset=offset, casting=casting)
            for size in sizes
        )
        self.eps = eps
        self.offset = offset
        self.casting = casting
        self.all_heads = all_heads
        self.interleaved = interleaved
        self.round_products = round_products

    def forward(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor | None]:
        """q and k, normalised and rotated."""
        return ops.qk_norm_rope(
            q,
            k,
            self.q_norm.weight,
            self.k_norm.weight,
            cos,
            sin,
            self.eps,
            offset=self.offset,
            casting=self.casting,
            all_heads=self.all_heads,
            unsqueeze_dim=unsqueeze_dim,
            interleaved=self.interleaved,
            round_products=self.round_products,
        )
