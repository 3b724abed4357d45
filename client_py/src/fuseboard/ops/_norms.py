"""Norms and softmax."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuseboard._libraries import kernel_handle
from fuseboard.ops._arguments import (
    as_shape,
    casting_number,
    check_normalized,
    epsilon,
    flat,
)

Tensor = torch.Tensor


def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    offset: float = 0.0,
    casting: str = "none",
) -> Tensor:
    """input / sqrt(mean(input^2) + eps) * (offset + weight) over the last dimensions.

    Args:
        input: [..., *normalized_shape], any strides; float32, float16, bfloat16 or float64.
        normalized_shape: The last dimensions of `input`, over which the mean is taken.
        weight: [*normalized_shape], of any floating dtype, or None: 1, without the offset.
        eps: Added to the mean; None: the epsilon of the dtype it is computed in, as in torch.
        offset: Added to the weight in float32; Gemma's weights want 1.
        casting: Where it rounds. "none" and "gemma": once, at the end, to the dtype of `input`. "llama":
            the normalised input is rounded before the weight, as transformers' Llama does, and the
            result has the dtype that the product with the weight has.

    Returns:
        The shape of `input`.

    Raises:
        ValueError: `normalized_shape`, the shape of `weight` or `casting` does not fit.

    Example:
        >>> ops.rms_norm(torch.randn(2, 8), 8, torch.ones(8), 1e-6).shape
        torch.Size([2, 8])
    """
    shape = as_shape(normalized_shape)
    check_normalized(input, shape, weight=weight)
    kernel = kernel_handle("rms_norm")
    y: Tensor = torch.ops.fuseboard.rms_norm(
        flat(input, len(shape)),
        flat(weight, len(shape)),
        epsilon(eps, input),
        offset,
        casting_number(casting),
        kernel,
    )
    return y if len(shape) == 1 else y.view(input.shape)


def fused_add_rms_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    offset: float = 0.0,
    casting: str = "none",
) -> tuple[Tensor, Tensor]:
    """sum = input + residual and rms_norm(sum), in one pass: the end of a residual block.

    Args:
        input: [..., *normalized_shape], any strides.
        residual: Of the shape and dtype of `input`; a mix of dtypes is promoted by the composite.
        normalized_shape: As of rms_norm.
        weight: As of rms_norm.
        eps: As of rms_norm.
        offset: As of rms_norm.
        casting: As of rms_norm.

    Returns:
        The norm and the sum, both differentiable, of the shape of `input`. The sum is rounded to its
        dtype before the norm reads it, as separate operations do.

    Raises:
        ValueError: As rms_norm.

    Example:
        >>> y, total = ops.fused_add_rms_norm(torch.ones(2, 8), torch.ones(2, 8), 8)
        >>> total[0, 0].item()
        2.0
    """
    shape = as_shape(normalized_shape)
    check_normalized(input, shape, weight=weight)
    kernel = kernel_handle("fused_add_rms_norm")
    y, total = torch.ops.fuseboard.fused_add_rms_norm(
        flat(input, len(shape)),
        flat(residual, len(shape)),
        flat(weight, len(shape)),
        epsilon(eps, input),
        offset,
        casting_number(casting),
        kernel,
    )
    return (y, total) if len(shape) == 1 else (y.view(input.shape), total.view(input.shape))


def modulated_rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    scale: Tensor,
    shift: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    offset: float = 0.0,
    casting: str = "none",
) -> Tensor:
    """(1 + scale) * rms_norm(input) + shift: the norm of a diffusion transformer's block.

    Args:
        input: [..., hidden], any strides.
        normalized_shape: hidden; one dimension only.
        scale: [batch, hidden] or [batch, 1, hidden] (a row per example of [batch, seq, hidden]), the
            shape of `input`, or that with 1 in dimensions that share a row. Any strides.
        shift: Of the shape of `scale`.
        weight: [hidden] or None.
        eps: As of rms_norm.
        offset: As of rms_norm.
        casting: As of rms_norm.

    Returns:
        The shape of `input`, in the dtype that the separate operations promote to.

    Raises:
        ValueError: As rms_norm.

    Example:
        >>> s = torch.zeros(2, 8)
        >>> ops.modulated_rms_norm(torch.randn(2, 3, 8), 8, s, s).shape
        torch.Size([2, 3, 8])
    """
    shape = as_shape(normalized_shape)
    if len(shape) != 1:
        raise ValueError(f"normalized_shape is {list(shape)}, want one dimension")
    check_normalized(input, shape, weight=weight)
    kernel = kernel_handle("modulated_rms_norm")
    y: Tensor = torch.ops.fuseboard.modulated_rms_norm(
        input, weight, scale, shift, epsilon(eps, input), offset, casting_number(casting), kernel
    )
    return y


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(input - mean) / sqrt(var + eps) * weight + bias over the last dimensions.

    Args:
        input: [..., *normalized_shape], any strides.
        normalized_shape: The last dimensions of `input`, over which mean and variance are taken.
        weight: [*normalized_shape], of any floating dtype, or None.
        bias: As `weight`.
        eps: Added to the variance, which is the biased one.

    Returns:
        Shape and dtype of `input`; under CUDA autocast float32, as torch's.

    Raises:
        ValueError: `normalized_shape`, or the shape of a parameter, does not fit.

    Example:
        >>> ops.layer_norm(torch.randn(2, 8), 8).shape
        torch.Size([2, 8])
    """
    shape = as_shape(normalized_shape)
    check_normalized(input, shape, weight=weight, bias=bias)
    kernel = kernel_handle("layer_norm")
    n = len(shape)
    y: Tensor = torch.ops.fuseboard.layer_norm(
        flat(input, n), flat(weight, n), flat(bias, n), eps, kernel
    )
    return y if n == 1 else y.view(input.shape)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(input - mean) / sqrt(var + eps) * weight + bias over each group of channels of each example.

    Args:
        input: [batch, channels, ...], any strides.
        num_groups: Groups of neighbouring channels; it divides their number.
        weight: [channels], of any floating dtype, or None.
        bias: As `weight`.
        eps: Added to the variance, which is the biased one.

    Returns:
        Shape and dtype of `input`.

    Raises:
        ValueError: `num_groups` does not divide the channels.
        RuntimeError: A parameter does not fit.

    Example:
        >>> ops.group_norm(torch.randn(2, 8, 5), 4).shape
        torch.Size([2, 8, 5])
    """
    if input.dim() < 2 or num_groups < 1 or input.shape[1] % num_groups:
        raise ValueError(
            f"num_groups is {num_groups}, want a divisor of the channels of input, which has shape "
            f"{list(input.shape)}"
        )
    kernel = kernel_handle("group_norm")
    y: Tensor = torch.ops.fuseboard.group_norm(input, num_groups, weight, bias, eps, kernel)
    return y


def softmax(input: Tensor, dim: int = -1, *, dtype: torch.dtype | None = None) -> Tensor:
    """exp(input - max) / sum(exp(input - max)) along one dimension.

    Args:
        input: Any shape and strides. A dimension other than the last costs a copy.
        dim: The dimension that is to add up to 1.
        dtype: `input` is cast to it first, in a pass of its own; None: its own dtype.

    Returns:
        The shape of `input`. Only -inf, or any NaN or +inf, along `dim` gives NaN.

    Raises:
        IndexError: `dim` is out of range.

    Example:
        >>> ops.softmax(torch.zeros(1, 4)).tolist()
        [[0.25, 0.25, 0.25, 0.25]]
    """
    if not -max(input.dim(), 1) <= dim < max(input.dim(), 1):
        raise IndexError(f"dim is {dim}, but input has {input.dim()} dimensions")
    kernel = kernel_handle("softmax")
    x = input if dtype is None else input.to(dtype)
    if input.dim() == 0:
        return torch.ops.fuseboard.softmax(x.unsqueeze(0), kernel).squeeze(0)  # type: ignore[no-any-return]
    y: Tensor = torch.ops.fuseboard.softmax(x.transpose(dim, -1), kernel)
    return y.transpose(dim, -1)
