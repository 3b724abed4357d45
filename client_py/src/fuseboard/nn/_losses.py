"""Losses."""

from __future__ import annotations

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
