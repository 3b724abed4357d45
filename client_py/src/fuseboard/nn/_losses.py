"""Losses."""

from __future__ import annotations

import math

import torch
from torch import nn

from fuseboard import ops
from fuseboard.ops._arguments import divergence_reduction_number, reduction_number

Tensor = torch.Tensor


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss of class numbers, through ops.cross_entropy; the loss is float32.

    Args:
        weight: [classes] or None; a buffer, as torch's.
        ignore_index: Rows with this target count for nothing.
        reduction: "none", "mean", "sum".
        label_smoothing: Share of the target that all classes have in equal parts.
        softcap: As of ops.cross_entropy.
        logit_scale: As of ops.cross_entropy.
        z_loss_scale: As of ops.cross_entropy; added to the loss.

    Example:
        >>> round(nn.CrossEntropyLoss()(torch.zeros(2, 4), torch.tensor([0, 3])).item(), 4)
        1.3863
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        softcap: float = 0.0,
        logit_scale: float = 1.0,
        z_loss_scale: float = 0.0,
    ) -> None:
        reduction_number(reduction)
        super().__init__(
            weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )
        self.softcap = softcap
        self.logit_scale = logit_scale
        self.z_loss_scale = z_loss_scale

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """float32, a scalar unless reduction is "none"."""
        return ops.cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            softcap=self.softcap,
            logit_scale=self.logit_scale,
            z_loss_scale=self.z_loss_scale,
        )


class LinearCrossEntropyLoss(nn.Module):
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
        super().__init__()
        reduction_number(reduction)
        self.in_features = in_features
        self.num_classes = num_classes
        self.weight = nn.Parameter(
            torch.empty((num_classes, in_features), device=device, dtype=dtype)
        )
        self.bias = (
            nn.Parameter(torch.empty(num_classes, device=device, dtype=dtype)) if bias else None
        )
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
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch.nn.Linear."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = self.in_features**-0.5 if self.in_features else 0.0
            nn.init.uniform_(self.bias, -bound, bound)

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

    def extra_repr(self) -> str:
        """The head's sizes."""
        return (
            f"in_features={self.in_features}, num_classes={self.num_classes}, "
            f"bias={self.bias is not None}"
        )


class KLDivLoss(nn.KLDivLoss):
    """torch.nn.KLDivLoss through ops.kl_div; the loss is float32.

    Args:
        reduction: "none", "mean", "sum", "batchmean".
        log_target: The target holds log-probabilities.
        eps: As of ops.kl_div.
        ignore_index: Of labels, if the call has some.

    Example:
        >>> p = torch.full((2, 4), 0.25)
        >>> nn.KLDivLoss(reduction="batchmean")(p.log(), p).item()
        0.0
    """

    def __init__(
        self,
        *,
        reduction: str = "mean",
        log_target: bool = False,
        eps: float = 0.0,
        ignore_index: int = -100,
    ) -> None:
        divergence_reduction_number(reduction)
        super().__init__(reduction=reduction, log_target=log_target)
        self.eps = eps
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor, label: Tensor | None = None) -> Tensor:
        """float32, a scalar unless reduction is "none"."""
        return ops.kl_div(
            input,
            target,
            reduction=self.reduction,
            log_target=self.log_target,
            eps=self.eps,
            label=label,
            ignore_index=self.ignore_index,
        )


class JSDLoss(nn.Module):
    """The generalised Jensen-Shannon divergence, through ops.jsd.

    Args:
        beta: Weight of the teacher, 0 to 1.
        reduction: "none", "mean", "sum", "batchmean".
        ignore_index: Of labels, if the call has some.

    Example:
        >>> p = torch.full((2, 4), 0.25).log()
        >>> nn.JSDLoss()(p, p).item()
        0.0
    """

    def __init__(
        self, beta: float = 0.5, *, reduction: str = "batchmean", ignore_index: int = -100
    ) -> None:
        super().__init__()
        divergence_reduction_number(reduction)
        if not 0 <= beta <= 1:
            raise ValueError(f"beta is {beta}, want 0 to 1")
        self.beta = beta
        self.reduction = reduction
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor, label: Tensor | None = None) -> Tensor:
        """float32, a scalar unless reduction is "none"."""
        return ops.jsd(
            input,
            target,
            beta=self.beta,
            reduction=self.reduction,
            label=label,
            ignore_index=self.ignore_index,
        )


class TVDLoss(nn.Module):
    """The total variation distance, through ops.tvd.

    Args:
        reduction: "none", "mean", "sum", "batchmean".
        ignore_index: Of labels, if the call has some.

    Example:
        >>> nn.TVDLoss()(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])).item()
        1.0
    """

    def __init__(self, *, reduction: str = "batchmean", ignore_index: int = -100) -> None:
        super().__init__()
        divergence_reduction_number(reduction)
        self.reduction = reduction
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor, label: Tensor | None = None) -> Tensor:
        """float32, a scalar unless reduction is "none"."""
        return ops.tvd(
            input,
            target,
            reduction=self.reduction,
            label=label,
            ignore_index=self.ignore_index,
        )
