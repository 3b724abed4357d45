"""What deferred logits need of a projection: its logits, its gradients, and a loss without the logits."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch


@dataclasses.dataclass(frozen=True)
class LossRequest:
    """A cross entropy over some rows of the logits.

    Attributes:
        rows: Hidden states [rows, hidden].
        target: Class indices [rows].
        reduction: "none", "mean" or "sum".
    """

    rows: torch.Tensor
    target: torch.Tensor
    class_weight: torch.Tensor | None
    ignore_index: int
    label_smoothing: float
    softcap: float
    logit_scale: float
    reduction: str


class LogitsSource(Protocol):
    """Computes what DeferredLogits stands for. `logits` and `loss` re-enter the projection's __call__.

    Errors: DeferredLogitsError if the weights or the hidden states changed meanwhile.
    """

    def logits(self) -> torch.Tensor:
        """All logits, with the modes (gradients, autocast) of the moment they were asked for.

        Without a graph, `gradients` is asked for theirs.
        """
        ...

    def loss(self, request: LossRequest) -> torch.Tensor | None:
        """The loss in float32 without the logits, or None if it cannot be had that way now."""
        ...

    def gradients(
        self, grad: torch.Tensor, needed: tuple[bool, ...]
    ) -> tuple[torch.Tensor | None, ...]:
        """Gradients of the `inputs` that `defer` was given, from that of the logits."""
        ...

    def obstacle(self) -> str:
        """Why the logits cannot be had now, or not by this process alone; else ""."""
        ...
