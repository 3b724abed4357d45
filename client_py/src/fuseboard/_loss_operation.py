"""The fused loss of one site as a plan has it: the call of the operator, compared at first use."""

from __future__ import annotations

import dataclasses

import torch

from fuseboard._binding import COMPOSITE, Operators
from fuseboard._first_use import MAX_ROWS, FirstUse
from fuseboard._logits_source import LossRequest

_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


@dataclasses.dataclass(frozen=True)
class LossOperation:
    """The fused loss, as a plan has it."""

    operators: Operators
    handle: int
    dweight_dtype: int
    chunk_bytes: int
    first_use: FirstUse

    def loss(
        self,
        request: LossRequest,
        rows: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """The loss over `rows`, which stand for those of `request`."""

        def compare(handle: int) -> torch.Tensor:
            few = dataclasses.replace(
                request, target=request.target[:MAX_ROWS].detach(), reduction="sum"
            )
            bare = None if bias is None else bias.detach()
            return self._call(few, rows[:MAX_ROWS].detach(), weight.detach(), bare, handle)

        allowed = self.first_use.allows(rows, self.handle, compare)
        # The composite has the same peak of memory: a job that only fits fused must go on.
        return self._call(request, rows, weight, bias, self.handle if allowed else COMPOSITE)

    def _call(
        self,
        request: LossRequest,
        rows: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        handle: int,
    ) -> torch.Tensor:
        loss: torch.Tensor = self.operators.fused_linear_cross_entropy(
            rows,
            weight,
            bias,
            request.target,
            request.class_weight,
            None,
            request.ignore_index,
            request.label_smoothing,
            request.softcap,
            request.logit_scale,
            0.0,
            False,
            _REDUCTIONS[request.reduction],
            self.dweight_dtype,
            self.chunk_bytes,
            handle,
        )[0]
        return loss
