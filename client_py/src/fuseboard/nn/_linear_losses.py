"""A head and its loss in one module, without the logits."""

from __future__ import annotations

import math

import torch
from torch import nn

from fuseboard import ops
from fuseboard.ops._arguments import accumulation_number, reduction_number

Tensor = torch.Tensor


class _Head(nn.Module):
    """The parameters of torch.nn.Linear(in_features, num_classes, bias), under its keys."""

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.num_classes = num_classes
        self.weight = nn.Parameter(
            torch.empty((num_classes, in_features), device=device, dtype=dtype)
        )
        self.bias = (
            nn.Parameter(torch.empty(num_classes, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch.nn.Linear."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = self.in_features**-0.5 if self.in_features else 0.0
            nn.init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        """The head's sizes."""
        return (
            f"in_features={self.in_features}, num_classes={self.num_classes}, "
            f"bias={self.bias is not None}"
        )


class LinearCrossEntropyLoss(_Head):
    """A head and its cross entropy without the logits, through ops.fused_linear_cross_entropy.

    It stands for torch.nn.Linear(in_features, num_classes, bias) followed by CrossEntropyLoss; its keys
    are those of the Linear.

    Args:
        in_features: Of the hidden states.
        num_classes: Of the head.
        bias: The head has one.
        device: Of the parameters.
        dtype: Of the parameters.
        class_weight: [num_classes] or None; a buffer that is not in the state.
        ignore_index: As of CrossEntropyLoss.
        reduction: As of CrossEntropyLoss.
        label_smoothing: As of CrossEntropyLoss.
        softcap: As of ops.cross_entropy.
        logit_scale: As of ops.cross_entropy.
        z_loss_scale: As of ops.cross_entropy; added to the loss.
        accumulate: As of ops.fused_linear_cross_entropy.
        chunk_bytes: As of ops.fused_linear_cross_entropy.

    Example:
        >>> loss = nn.LinearCrossEntropyLoss(8, 32)
        >>> loss(torch.randn(4, 8), torch.arange(4)).shape
        torch.Size([])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        class_weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        softcap: float = 0.0,
        logit_scale: float = 1.0,
        z_loss_scale: float = 0.0,
        accumulate: str = "auto",
        chunk_bytes: int = 0,
    ) -> None:
        reduction_number(reduction)
        accumulation_number(accumulate)
        super().__init__(in_features, num_classes, bias, device, dtype)
        self.class_weight: Tensor | None
        self.register_buffer("class_weight", class_weight, persistent=False)
        self.ignore_index = ignore_index
        self.reduction = reduction
        self.label_smoothing = label_smoothing
        self.softcap = softcap
        self.logit_scale = logit_scale
        self.z_loss_scale = z_loss_scale
        self.accumulate = accumulate
        self.chunk_bytes = chunk_bytes

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """float32, a scalar unless reduction is "none"."""
        return ops.fused_linear_cross_entropy(
            input,
            self.weight,
            target,
            self.bias,
            weight=self.class_weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            softcap=self.softcap,
            logit_scale=self.logit_scale,
            z_loss_scale=self.z_loss_scale,
            accumulate=self.accumulate,
            chunk_bytes=self.chunk_bytes,
        )


class LinearJSDLoss(_Head):
    """A head and its divergence from a teacher's without the logits, through ops.fused_linear_jsd.

    It stands for torch.nn.Linear(in_features, num_classes, bias) followed by log-softmax and JSDLoss; its
    keys are those of the Linear. The teacher's head is an argument of the call.

    Args:
        in_features: Of the student's hidden states.
        num_classes: Of both heads.
        bias: The student's head has one.
        device: Of the parameters.
        dtype: Of the parameters.
        beta: Weight of the teacher, 0 to 1.
        temperature: What both models' logits are divided by.
        ignore_index: Of labels, if the call has some.
        accumulate: As of ops.fused_linear_cross_entropy.
        chunk_bytes: As of ops.fused_linear_jsd.

    Example:
        >>> loss = nn.LinearJSDLoss(8, 32)
        >>> loss(torch.randn(4, 8), torch.randn(4, 16), torch.randn(32, 16)).shape
        torch.Size([])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        beta: float = 0.5,
        temperature: float = 1.0,
        ignore_index: int = -100,
        accumulate: str = "auto",
        chunk_bytes: int = 0,
    ) -> None:
        accumulation_number(accumulate)
        if not 0 <= beta <= 1:
            raise ValueError(f"beta is {beta}, want 0 to 1")
        if not temperature > 0:
            raise ValueError(f"temperature is {temperature}, want more than 0")
        super().__init__(in_features, num_classes, bias, device, dtype)
        self.beta = beta
        self.temperature = temperature
        self.ignore_index = ignore_index
        self.accumulate = accumulate
        self.chunk_bytes = chunk_bytes

    def forward(
        self,
        input: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        teacher_bias: Tensor | None = None,
        label: Tensor | None = None,
    ) -> Tensor:
        """float32, a scalar. The teacher's parameters are read without their gradients."""
        return ops.fused_linear_jsd(
            input,
            self.weight,
            teacher_input.detach(),
            teacher_weight.detach(),
            self.bias,
            None if teacher_bias is None else teacher_bias.detach(),
            beta=self.beta,
            temperature=self.temperature,
            label=label,
            ignore_index=self.ignore_index,
            accumulate=self.accumulate,
            chunk_bytes=self.chunk_bytes,
        )
