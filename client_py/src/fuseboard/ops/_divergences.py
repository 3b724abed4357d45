"""Divergences of the model's distribution from a teacher's."""

from __future__ import annotations

import torch

from fuseboard._libraries import kernel_handle
from fuseboard.ops._arguments import divergence_reduction_number

Tensor = torch.Tensor


def kl_div(
    input: Tensor,
    target: Tensor,
    *,
    reduction: str = "mean",
    log_target: bool = False,
    eps: float = 0.0,
    label: Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    """The Kullback-Leibler divergence: target * (log(target) - input).

    Args:
        input: [..., classes], log-probabilities (natural logarithm), any strides.
        target: Of the shape of `input`: probabilities, or with log_target their logarithms. Gets no
            gradient.
        reduction: "none", "mean" (over all elements), "sum", "batchmean" (sum over input.shape[0], the
            mathematical one for matrices).
        log_target: What `target` is; then exp(target) * (target - input).
        eps: Least probability whose logarithm is taken; Liger takes 1e-10.
        label: [...], int64 or int32, or None: rows whose label is `ignore_index` count for nothing, and
            means are taken over the other rows.
        ignore_index: The label of rows to leave out.

    Returns:
        float32: the shape of `input` for "none", else a scalar.

    Raises:
        ValueError: `reduction` does not exist.
        RuntimeError: Shapes differ, or `target` requires a gradient.

    Example:
        >>> p = torch.full((2, 4), 0.25)
        >>> ops.kl_div(p.log(), p, reduction="batchmean").item()
        0.0
    """
    number = divergence_reduction_number(reduction)
    kernel = kernel_handle("kl_div")
    loss: Tensor = torch.ops.fuseboard.kl_div(
        input, target, label, log_target, eps, ignore_index, number, kernel
    )
    return loss


def jsd(
    input: Tensor,
    target: Tensor,
    *,
    beta: float = 0.5,
    reduction: str = "batchmean",
    label: Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    """The generalised Jensen-Shannon divergence, beta * KL(P || M) + (1 - beta) * KL(Q || M).

    P = exp(target), Q = exp(input), M = beta * P + (1 - beta) * Q. beta 0 is KL(P || Q) and beta 1 is
    KL(Q || P), as in Liger.

    Args:
        input: [..., classes], log-probabilities (natural logarithm), any strides.
        target: Of the shape of `input`, log-probabilities. Gets no gradient.
        beta: Weight of the teacher, 0 to 1.
        reduction: As of kl_div, but "batchmean" divides by the number of rows.
        label: As of kl_div.
        ignore_index: As of kl_div.

    Returns:
        As kl_div.

    Raises:
        ValueError: `reduction` does not exist.
        RuntimeError: As kl_div; or `beta` is not within 0 and 1.

    Example:
        >>> p = torch.full((2, 4), 0.25).log()
        >>> ops.jsd(p, p).item()
        0.0
    """
    number = divergence_reduction_number(reduction)
    kernel = kernel_handle("jsd")
    loss: Tensor = torch.ops.fuseboard.jsd(input, target, label, beta, ignore_index, number, kernel)
    return loss


def tvd(
    input: Tensor,
    target: Tensor,
    *,
    reduction: str = "batchmean",
    label: Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    """The total variation distance, |input - target| / 2.

    Args:
        input: [..., classes], probabilities, any strides.
        target: Of the shape of `input`, probabilities. Gets no gradient.
        reduction: As of jsd.
        label: As of kl_div.
        ignore_index: As of kl_div.

    Returns:
        As kl_div.

    Raises:
        ValueError: `reduction` does not exist.
        RuntimeError: As kl_div.

    Example:
        >>> ops.tvd(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])).item()
        1.0
    """
    number = divergence_reduction_number(reduction)
    kernel = kernel_handle("tvd")
    loss: Tensor = torch.ops.fuseboard.tvd(input, target, label, ignore_index, number, kernel)
    return loss
