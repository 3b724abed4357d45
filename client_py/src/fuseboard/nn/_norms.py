"""Norms and softmax."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from fuseboard import ops
from fuseboard.ops._arguments import casting_number

Tensor = torch.Tensor


class RMSNorm(nn.RMSNorm):
    """torch.nn.RMSNorm through ops.rms_norm.

    Args:
        normalized_shape: The last dimensions of the input.
        eps: Added to the mean of squares; None: as torch.nn.RMSNorm.
        elementwise_affine: Has a weight.
        device: Of the weight.
        dtype: Of the weight.
        offset: As of ops.rms_norm: Gemma's modules have 1, and weights that begin at 0.
        casting: As of ops.rms_norm: "llama", "gemma" or "none", torch's.

    Example:
        >>> nn.RMSNorm(8)(torch.randn(2, 8)).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        offset: float = 0.0,
        casting: str = "none",
    ) -> None:
        casting_number(casting)
        self.offset = offset  # Before the weight, which begins as it wants.
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)  # type: ignore[arg-type]
        self.offset = offset
        self.casting = casting

    def reset_parameters(self) -> None:
        """Sets the weight so that it changes nothing."""
        if self.elementwise_affine:
            nn.init.constant_(self.weight, 1.0 - self.offset)

    def forward(self, x: Tensor) -> Tensor:
        """The shape of `x`."""
        return ops.rms_norm(
            x,
            self.normalized_shape,
            self.weight,
            self.eps,
            offset=self.offset,
            casting=self.casting,
        )

    def extra_repr(self) -> str:
        """As torch's, and what differs from it."""
        more = f", offset={self.offset}" if self.offset else ""
        more += f", casting={self.casting!r}" if self.casting != "none" else ""
        return super().extra_repr() + more


class FusedAddRMSNorm(RMSNorm):
    """RMSNorm of a sum, through ops.fused_add_rms_norm; arguments and weight of RMSNorm.

    Example:
        >>> y, total = nn.FusedAddRMSNorm(8)(torch.ones(2, 8), torch.ones(2, 8))
    """

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The norm of x + residual, and x + residual."""
        return ops.fused_add_rms_norm(
            x,
            residual,
            self.normalized_shape,
            self.weight,
            self.eps,
            offset=self.offset,
            casting=self.casting,
        )


class ModulatedRMSNorm(RMSNorm):
    """(1 + scale) * RMSNorm(x) + shift, through ops.modulated_rms_norm; arguments of RMSNorm.

    Example:
        >>> s = torch.zeros(2, 8)
        >>> nn.ModulatedRMSNorm(8)(torch.randn(2, 3, 8), s, s).shape
        torch.Size([2, 3, 8])
    """

    def forward(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:  # type: ignore[override]
        """The shape of `x`."""
        return ops.modulated_rms_norm(
            x,
            self.normalized_shape,
            scale,
            shift,
            self.weight,
            self.eps,
            offset=self.offset,
            casting=self.casting,
        )


class LayerNorm(nn.LayerNorm):
    """torch.nn.LayerNorm, with its arguments, through ops.layer_norm.

    Example:
        >>> nn.LayerNorm(8)(torch.randn(2, 8)).shape
        torch.Size([2, 8])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Shape and dtype of `input`."""
        return ops.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class GroupNorm(nn.GroupNorm):
    """torch.nn.GroupNorm, with its arguments, through ops.group_norm.

    Example:
        >>> nn.GroupNorm(4, 8)(torch.randn(2, 8, 5)).shape
        torch.Size([2, 8, 5])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Shape and dtype of `input`."""
        return ops.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


class Softmax(nn.Softmax):
    """torch.nn.Softmax through ops.softmax.

    Args:
        dim: The dimension that is to add up to 1; None: the last, where torch's guesses.

    Example:
        >>> nn.Softmax(-1)(torch.zeros(1, 4)).tolist()
        [[0.25, 0.25, 0.25, 0.25]]
    """

    def forward(self, input: Tensor) -> Tensor:
        """The shape of `input`."""
        return ops.softmax(input, -1 if self.dim is None else self.dim)
