"""Cross entropy, of logits and of hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict, overload

import torch

from fuseboard._libraries import kernel_handle
from fuseboard.ops._arguments import (
    accumulation_number,
    check_class_numbers,
    check_target,
    reduction_number,
)

Tensor = torch.Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _Options(TypedDict, total=False):
    """What both losses take, for the checker of types alone."""

    ignore_index: int
    reduction: str
    label_smoothing: float
    softcap: float
    logit_scale: float
    z_loss_scale: float
    z_loss_in_loss: bool
    divisor: Tensor | None


class _LinearOptions(_Options, total=False):
    """What the fused one takes besides."""

    weight: Tensor | None
    accumulate: str
    chunk_bytes: int


@overload
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = ...,
    *,
    return_z_loss: Literal[True],
    **options: Unpack[_Options],
) -> tuple[Tensor, Tensor]: ...


@overload
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = ...,
    *,
    return_z_loss: Literal[False] = ...,
    **options: Unpack[_Options],
) -> Tensor: ...


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float = 0.0,
    logit_scale: float = 1.0,
    z_loss_scale: float = 0.0,
    z_loss_in_loss: bool = True,
    return_z_loss: bool = False,
    divisor: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """-log(softmax(z)[target]) of z = softcap * tanh(logit_scale * input / softcap).

    Args:
        input: [classes], [rows, classes] or [rows, classes, ...]: logits, any strides. More than two
            dimensions cost a copy.
        target: [], [rows] or [rows, ...]: int64 or int32 class numbers. Class probabilities are not
            supported.
        weight: [classes], of any floating dtype, or None.
        ignore_index: Rows with this target count for nothing.
        reduction: "none", "mean" (over the rows that count, by weight), "sum".
        label_smoothing: Share of the target that all classes have in equal parts, 0 to 1.
        softcap: Bound of the logits; 0: none. Gemma 2 has 30.
        logit_scale: Factor of the logits; Cohere and Granite have one.
        z_loss_scale: Factor of the square of the log-sum-exp.
        z_loss_in_loss: Add the z-loss to the loss.
        return_z_loss: Return it beside the loss; it carries no gradient of its own.
        divisor: What "mean" divides by instead, a tensor without dimensions on any device: the number of
            rows of all micro-batches.

    Returns:
        float32 whatever the dtype of `input`: the shape of `target` for "none", else a scalar. If no row
        counts, 0. With return_z_loss a pair.

    Raises:
        TypeError: `target` is of floating point.
        ValueError: `reduction` does not exist, or the shapes of `input` and `target` do not fit.
        IndexError: On the CPU: a target out of range. On CUDA its row is NaN.

    Example:
        >>> round(ops.cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3])).item(), 4)
        1.3863
    """
    check_class_numbers(target)
    rows_shape = input.shape[:1] + input.shape[2:] if input.dim() > 1 else input.shape[1:]
    if input.dim() == 0 or target.shape != rows_shape:
        raise ValueError(
            f"target has shape {list(target.shape)}, but input has shape {list(input.shape)}, "
            "want [rows, ...] of [rows, classes, ...]"
        )
    rows = input if input.dim() == 2 else _rows(input)
    number = reduction_number(reduction)
    kernel = kernel_handle("cross_entropy")
    loss, z_loss = torch.ops.fuseboard.cross_entropy(
        rows, target.reshape(-1), weight, divisor, ignore_index, label_smoothing, softcap,
        logit_scale, z_loss_scale, z_loss_in_loss, number, kernel,
    )  # fmt: skip
    if reduction == "none":
        loss, z_loss = loss.view(target.shape), z_loss.view(target.shape)
    return (loss, z_loss) if return_z_loss else loss


@overload
def fused_linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None = ...,
    *,
    return_z_loss: Literal[True],
    **options: Unpack[_LinearOptions],
) -> tuple[Tensor, Tensor]: ...


@overload
def fused_linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None = ...,
    *,
    return_z_loss: Literal[False] = ...,
    **options: Unpack[_LinearOptions],
) -> Tensor: ...


def fused_linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    softcap: float = 0.0,
    logit_scale: float = 1.0,
    z_loss_scale: float = 0.0,
    z_loss_in_loss: bool = True,
    return_z_loss: bool = False,
    divisor: Tensor | None = None,
    accumulate: str = "auto",
    chunk_bytes: int = 0,
) -> Tensor | tuple[Tensor, Tensor]:
    """cross_entropy(F.linear(input, linear_weight, linear_bias), target) without all of the logits.

    Args:
        input: [..., in_features]: hidden states.
        linear_weight: [classes, in_features], of the dtype of `input`.
        target: [...]: as of cross_entropy.
        linear_bias: [classes] or None.
        weight: As of cross_entropy: a weight per class.
        ignore_index: As of cross_entropy; such rows take part in no matrix product.
        reduction: As of cross_entropy.
        label_smoothing: As of cross_entropy.
        softcap: As of cross_entropy.
        logit_scale: As of cross_entropy.
        z_loss_scale: As of cross_entropy.
        z_loss_in_loss: As of cross_entropy.
        return_z_loss: As of cross_entropy.
        divisor: As of cross_entropy.
        accumulate: How the gradient of linear_weight is added up over chunks of rows: "weight", in its
            dtype; "float32"; "auto", by the shapes.
        chunk_bytes: Budget in bytes of the buffer of logits; 0: 512 MiB.

    Returns:
        As cross_entropy.

    Raises:
        TypeError: `target` is of floating point.
        ValueError: `reduction` or `accumulate` does not exist, or `target` does not fit `input`.
        RuntimeError: Other shapes or dtypes do not fit.

    Example:
        >>> h, w = torch.zeros(2, 3), torch.zeros(4, 3)
        >>> round(ops.fused_linear_cross_entropy(h, w, torch.tensor([0, 3])).item(), 4)
        1.3863
    """
    check_target(input, target)
    numbers = reduction_number(reduction), accumulation_number(accumulate)
    kernel = kernel_handle("fused_linear_cross_entropy")
    loss, z_loss = torch.ops.fuseboard.fused_linear_cross_entropy(
        input.reshape(-1, input.shape[-1]), linear_weight, linear_bias, target.reshape(-1), weight,
        divisor, ignore_index, label_smoothing, softcap, logit_scale, z_loss_scale, z_loss_in_loss,
        *numbers, chunk_bytes, kernel,
    )  # fmt: skip
    if reduction == "none":
        loss, z_loss = loss.view(target.shape), z_loss.view(target.shape)
    return (loss, z_loss) if return_z_loss else loss


def _rows(input: Tensor) -> Tensor:
    """[classes] or [rows, classes, ...] as a matrix whose rows are logits."""
    if input.dim() == 1:
        return input.unsqueeze(0)
    return input.movedim(1, -1).reshape(-1, input.shape[1])
