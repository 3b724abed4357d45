"""Gated activations and the squared rectifier."""

from __future__ import annotations

import torch

from fuseboard._libraries import kernel_handle
from fuseboard.ops._arguments import choice

Tensor = torch.Tensor
_APPROXIMATIONS = {"none": 0, "tanh": 1}


def swiglu(
    gate: Tensor,
    up: Tensor,
    *,
    round_activation: bool = True,
    gate_multiplier: float = 1.0,
    out_multiplier: float = 1.0,
    alpha: float = 1.0,
    limit: float = 0.0,
    up_offset: float = 0.0,
) -> Tensor:
    """silu(gate) * up, and the forms of GPT-OSS, Falcon-H1 and DeepSeek V4.

    With g = min(gate_multiplier * gate, limit) and u = clamp(up, -limit, limit) + up_offset the result is
    out_multiplier * g / (1 + exp(-alpha * g)) * u.

    Args:
        gate: [..., columns], any strides.
        up: Of the shape of `gate`.
        round_activation: Round the activation to its dtype before the product, as F.silu(gate) * up
            does; else all is computed in float32 and rounded once.
        gate_multiplier: Falcon-H1's.
        out_multiplier: Falcon-H1's multiplier of the down projection's input.
        alpha: Slope of the sigmoid; GPT-OSS has 1.702.
        limit: Bound of both; 0: none. GPT-OSS has 7.
        up_offset: Added to up; GPT-OSS has 1.

    Returns:
        The shape of `gate`.

    Raises:
        RuntimeError: `gate` and `up` differ in shape or device.

    Example:
        >>> ops.swiglu(torch.zeros(2, 8), torch.ones(2, 8)).sum().item()
        0.0
    """
    kernel = kernel_handle("swiglu")
    out: Tensor = torch.ops.fuseboard.swiglu(
        gate, up, round_activation, kernel, gate_multiplier, out_multiplier, alpha, limit, up_offset
    )
    return out


def swiglu_packed(
    gate_up: Tensor,
    *,
    interleaved: bool = False,
    round_activation: bool = True,
    gate_multiplier: float = 1.0,
    out_multiplier: float = 1.0,
    alpha: float = 1.0,
    limit: float = 0.0,
    up_offset: float = 0.0,
) -> Tensor:
    """swiglu of one tensor that holds gate and up, without a copy of either.

    Args:
        gate_up: [..., 2 * columns], any strides.
        interleaved: gate and up are the even and the odd columns (GPT-OSS), else the halves (Phi3, GLM).
        round_activation: As of swiglu.
        gate_multiplier: As of swiglu.
        out_multiplier: As of swiglu.
        alpha: As of swiglu.
        limit: As of swiglu.
        up_offset: As of swiglu.

    Returns:
        [..., columns].

    Raises:
        RuntimeError: The last dimension is odd.

    Example:
        >>> ops.swiglu_packed(torch.zeros(2, 16)).shape
        torch.Size([2, 8])
    """
    kernel = kernel_handle("swiglu")
    out: Tensor = torch.ops.fuseboard.swiglu_packed(
        gate_up, interleaved, round_activation, kernel,
        gate_multiplier, out_multiplier, alpha, limit, up_offset,
    )  # fmt: skip
    return out


def geglu(
    gate: Tensor, up: Tensor, *, approximate: str = "none", round_activation: bool = True
) -> Tensor:
    """gelu(gate) * up.

    Args:
        gate: [..., columns], any strides.
        up: Of the shape of `gate`.
        approximate: "none": by the normal distribution; "tanh": Gemma's form. As of F.gelu.
        round_activation: As of swiglu.

    Returns:
        The shape of `gate`.

    Raises:
        ValueError: `approximate` is neither.
        RuntimeError: `gate` and `up` differ in shape or device.

    Example:
        >>> ops.geglu(torch.zeros(2, 8), torch.ones(2, 8)).sum().item()
        0.0
    """
    by_tanh = bool(choice("approximate", approximate, _APPROXIMATIONS))
    kernel = kernel_handle("geglu")
    out: Tensor = torch.ops.fuseboard.geglu(gate, up, by_tanh, round_activation, kernel)
    return out


def geglu_packed(
    gate_up: Tensor,
    *,
    interleaved: bool = False,
    approximate: str = "none",
    round_activation: bool = True,
) -> Tensor:
    """geglu of one tensor that holds gate and up.

    Args:
        gate_up: [..., 2 * columns], any strides.
        interleaved: As of swiglu_packed; then the composite runs.
        approximate: As of geglu.
        round_activation: As of swiglu.

    Returns:
        [..., columns].

    Raises:
        ValueError: As geglu.
        RuntimeError: The last dimension is odd.

    Example:
        >>> ops.geglu_packed(torch.zeros(2, 16)).shape
        torch.Size([2, 8])
    """
    by_tanh = bool(choice("approximate", approximate, _APPROXIMATIONS))
    kernel = kernel_handle("geglu")
    out: Tensor = torch.ops.fuseboard.geglu_packed(
        gate_up, interleaved, by_tanh, round_activation, kernel
    )
    return out


def relu_squared(input: Tensor) -> Tensor:
    """max(input, 0)^2.

    Args:
        input: [..., columns], any strides; at least one dimension.

    Returns:
        Shape and dtype of `input`.

    Raises:
        RuntimeError: `input` has no dimensions, or is not of floating point.

    Example:
        >>> ops.relu_squared(torch.tensor([-1.0, 3.0])).tolist()
        [0.0, 9.0]
    """
    kernel = kernel_handle("relu_squared")
    out: Tensor = torch.ops.fuseboard.relu_squared(input, kernel)
    return out
