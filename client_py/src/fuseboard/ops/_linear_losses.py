"""What is made of a head's logits row by row, from hidden states and without the logits."""

from __future__ import annotations

import torch

from fuseboard._libraries import kernel_handle
from fuseboard.ops._arguments import accumulation_number, check_per_row, check_target

Tensor = torch.Tensor


def selected_log_probs(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None = None,
    *,
    temperature: float = 1.0,
    ignore_index: int = -100,
    softcap: float = 0.0,
    logit_scale: float = 1.0,
    accumulate: str = "auto",
    chunk_bytes: int = 0,
) -> Tensor:
    """log_softmax(F.linear(input, linear_weight, linear_bias) / temperature)[target] of each row.

    Args:
        input: [..., in_features]: hidden states.
        linear_weight: [classes, in_features], of the dtype of `input`.
        target: [...]: int64 or int32 class numbers.
        linear_bias: [classes] or None.
        temperature: Divides the logits, after the cap.
        ignore_index: Rows with this target give 0 and take part in no matrix product.
        softcap: As of cross_entropy.
        logit_scale: As of cross_entropy.
        accumulate: As of fused_linear_cross_entropy.
        chunk_bytes: As of fused_linear_cross_entropy.

    Returns:
        float32, the shape of `target`.

    Raises:
        TypeError: `target` is of floating point.
        ValueError: `accumulate` does not exist, or `target` does not fit `input`.
        RuntimeError: Other shapes or dtypes do not fit.

    Example:
        >>> h, w = torch.zeros(2, 3), torch.zeros(4, 3)
        >>> round(ops.selected_log_probs(h, w, torch.tensor([0, 3]))[1].item(), 4)
        -1.3863
    """
    check_target(input, target)
    number = accumulation_number(accumulate)
    kernel = kernel_handle("selected_log_probs")
    values: Tensor = torch.ops.fuseboard.selected_log_probs(
        input.reshape(-1, input.shape[-1]), linear_weight, linear_bias, target.reshape(-1),
        ignore_index, softcap, logit_scale, temperature, number, chunk_bytes, kernel,
    )  # fmt: skip
    return values.view(target.shape)


def fused_linear_scaled_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None = None,
    *,
    temperature: float = 1.0,
    return_entropy: bool = True,
    ignore_index: int = -100,
    softcap: float = 0.0,
    logit_scale: float = 1.0,
    accumulate: str = "auto",
    chunk_bytes: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """-log(p[target]) and -sum(p * log(p)) of each row, p = softmax(logits / temperature).

    Args:
        input: As of selected_log_probs.
        linear_weight: As of selected_log_probs.
        target: As of selected_log_probs.
        linear_bias: As of selected_log_probs.
        temperature: As of selected_log_probs.
        return_entropy: Without it the entropy is None, and costs nothing.
        ignore_index: As of selected_log_probs.
        softcap: As of cross_entropy.
        logit_scale: As of cross_entropy.
        accumulate: As of fused_linear_cross_entropy.
        chunk_bytes: As of fused_linear_cross_entropy.

    Returns:
        Cross entropy and entropy in nats, float32, the shape of `target`; both are differentiable.

    Raises:
        TypeError: As selected_log_probs.
        ValueError: As selected_log_probs.
        RuntimeError: As selected_log_probs.

    Example:
        >>> h, w = torch.zeros(2, 3), torch.zeros(4, 3)
        >>> _, entropy = ops.fused_linear_scaled_cross_entropy(h, w, torch.tensor([0, 3]))
        >>> round(entropy[0].item(), 4)
        1.3863
    """
    check_target(input, target)
    number = accumulation_number(accumulate)
    kernel = kernel_handle("fused_linear_scaled_cross_entropy")
    nll, entropy = torch.ops.fuseboard.fused_linear_scaled_cross_entropy(
        input.reshape(-1, input.shape[-1]), linear_weight, linear_bias, target.reshape(-1),
        ignore_index, softcap, logit_scale, temperature, return_entropy, number, chunk_bytes, kernel,
    )  # fmt: skip
    return nll.view(target.shape), entropy.view(target.shape) if return_entropy else None


def fused_linear_jsd(
    input: Tensor,
    linear_weight: Tensor,
    teacher_input: Tensor,
    teacher_weight: Tensor,
    linear_bias: Tensor | None = None,
    teacher_bias: Tensor | None = None,
    *,
    beta: float = 0.5,
    temperature: float = 1.0,
    label: Tensor | None = None,
    ignore_index: int = -100,
    accumulate: str = "auto",
    chunk_bytes: int = 0,
) -> Tensor:
    """jsd(log_softmax(student's logits / temperature), log_softmax(teacher's logits / temperature)).

    Args:
        input: [..., in_features]: the student's hidden states.
        linear_weight: [classes, in_features], of the dtype of `input`: the student's head.
        teacher_input: [..., teacher_features], of any dtype. The teacher gets no gradient.
        teacher_weight: [classes, teacher_features], of the dtype of `teacher_input`.
        linear_bias: [classes] or None.
        teacher_bias: [classes] or None.
        beta: As of jsd.
        temperature: Divides both models' logits.
        label: [...], int64 or int32, or None: rows whose label is `ignore_index` count for nothing.
        ignore_index: The label of rows to leave out.
        accumulate: As of fused_linear_cross_entropy.
        chunk_bytes: Budget in bytes of both buffers of logits; 0: 512 MiB.

    Returns:
        float32, a scalar: the sum over classes, averaged over the rows that count.

    Raises:
        ValueError: `accumulate` does not exist, or `label` or the rows of `teacher_input` do not fit `input`.
        RuntimeError: Other shapes or dtypes do not fit, a tensor of the teacher requires a gradient, or
            `beta` or `temperature` is out of range.

    Example:
        >>> h, w = torch.zeros(2, 3), torch.zeros(4, 3)
        >>> ops.fused_linear_jsd(h, w, h, w).item()
        0.0
    """
    if label is not None:
        check_per_row(input, "label", label)
    if teacher_input.shape[:-1] != input.shape[:-1]:
        raise ValueError(
            f"teacher_input has shape {list(teacher_input.shape)}, but input has shape "
            f"{list(input.shape)}, want the same but for the last dimension"
        )
    number = accumulation_number(accumulate)
    kernel = kernel_handle("fused_linear_jsd")
    loss: Tensor = torch.ops.fuseboard.fused_linear_jsd(
        input.reshape(-1, input.shape[-1]), linear_weight, linear_bias,
        teacher_input.reshape(-1, teacher_input.shape[-1]), teacher_weight, teacher_bias,
        None if label is None else label.reshape(-1), beta, ignore_index, temperature, number,
        chunk_bytes, kernel,
    )  # fmt: skip
    return loss
