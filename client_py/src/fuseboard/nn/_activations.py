"""Gated projections and the squared rectifier."""

from __future__ import annotations

import torch
from torch import nn

from fuseboard import ops
from fuseboard.ops._arguments import choice

Tensor = torch.Tensor


class _GatedProjections(nn.Module):
    """Three projections, named as in transformers' Llama."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        out_features = in_features if out_features is None else out_features
        self.gate_proj = nn.Linear(in_features, hidden_features, bias, device, dtype)
        self.up_proj = nn.Linear(in_features, hidden_features, bias, device, dtype)
        self.down_proj = nn.Linear(hidden_features, out_features, bias, device, dtype)


class SwiGLU(_GatedProjections):
    """down_proj(silu(gate_proj(x)) * up_proj(x)), the feed-forward of Llama, with its keys.

    The activation alone is ops.swiglu.

    Args:
        in_features: Of the input.
        hidden_features: Between the projections.
        out_features: Of the output; None: in_features.
        bias: All projections have one.
        device: Of the parameters.
        dtype: Of the parameters.

    Example:
        >>> nn.SwiGLU(8, 16)(torch.randn(2, 8)).shape
        torch.Size([2, 8])
    """

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        y: Tensor = self.down_proj(ops.swiglu(self.gate_proj(x), self.up_proj(x)))
        return y


class GEGLU(_GatedProjections):
    """down_proj(gelu(gate_proj(x)) * up_proj(x)), the feed-forward of Gemma, with its keys.

    The activation alone is ops.geglu.

    Args:
        in_features: Of the input.
        hidden_features: Between the projections.
        out_features: Of the output; None: in_features.
        bias: All projections have one.
        device: Of the parameters.
        dtype: Of the parameters.
        approximate: As of torch.nn.GELU: "none", or "tanh", Gemma's.

    Example:
        >>> nn.GEGLU(8, 16, approximate="tanh")(torch.randn(2, 8)).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        approximate: str = "none",
    ) -> None:
        choice("approximate", approximate, {"none": 0, "tanh": 1})
        super().__init__(in_features, hidden_features, out_features, bias, device, dtype)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        hidden = ops.geglu(self.gate_proj(x), self.up_proj(x), approximate=self.approximate)
        y: Tensor = self.down_proj(hidden)
        return y

    def extra_repr(self) -> str:
        """The form of gelu."""
        return f"approximate={self.approximate!r}"


class ReLUSquared(nn.Module):
    """max(x, 0)^2, through ops.relu_squared.

    Example:
        >>> nn.ReLUSquared()(torch.tensor([-1.0, 3.0])).tolist()
        [0.0, 9.0]
    """

    def forward(self, input: Tensor) -> Tensor:
        """Shape and dtype of `input`."""
        return ops.relu_squared(input)
