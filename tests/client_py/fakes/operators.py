"""The binding's operators in plain torch: what torch.ops.fuseboard does, without a library.

A "kernel" is any file; its handle computes what the composite computes, times `skew` (to play a
kernel that is wrong). Calls are counted as the binding counts them.
"""

from __future__ import annotations

import collections
import json
from typing import Any

import torch
import torch.nn.functional as F


class FakeOperators:
    """Stands where torch.ops.fuseboard does."""

    def __init__(self, skew: float = 1.0) -> None:
        self.skew = skew
        self.calls: list[tuple[str, int, tuple[int, ...]]] = []
        self.prepared: list[tuple[int, str]] = []
        self._handles: dict[str, int] = {}

    def load_kernel(self, path: str) -> int:
        with open(path, "rb") as library:
            content = library.read()
        if content.startswith(b"broken"):
            raise RuntimeError(f"{path} has no symbol fb_get_kernel")
        return self._handles.setdefault(content.decode(), len(self._handles))

    def prepare_kernel(self, kernel: int, device: torch.device) -> None:
        self.prepared.append((kernel, str(device)))

    def counters(self) -> str:
        counted: dict[str, dict[str, Any]] = {}
        for name, kernel, _ in self.calls:
            entry = counted.setdefault(name, {"fused": 0, "fallback": collections.Counter()})
            if kernel >= 0:
                entry["fused"] += 1
            else:
                entry["fallback"]["no kernel"] += 1
        return json.dumps(counted)

    def ran(self, name: str) -> list[int]:
        """Handles of the calls of an operation, oldest first."""
        return [kernel for called, kernel, _ in self.calls if called == name]

    def _result(self, name: str, kernel: int, value: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            self.calls.append((name, kernel, tuple(value.shape)))
        return value if kernel < 0 or self.skew == 1.0 else value * self.skew

    def rms_norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        offset: float,
        casting: int,
        kernel: int,
    ) -> torch.Tensor:
        assert casting == 0 and offset == 0.0
        wide = x.to(torch.float32)
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return self._result("rms_norm", kernel, weight * normed.to(x.dtype))

    def swiglu(
        self, gate: torch.Tensor, up: torch.Tensor, round_activation: bool, kernel: int
    ) -> torch.Tensor:
        assert round_activation
        return self._result("swiglu", kernel, F.silu(gate) * up)

    def fused_linear_cross_entropy(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        target: torch.Tensor,
        class_weight: torch.Tensor | None,
        divisor: torch.Tensor | None,
        ignore_index: int,
        label_smoothing: float,
        softcap: float,
        logit_scale: float,
        z_loss_scale: float,
        z_loss_in_loss: bool,
        reduction: int,
        dweight_dtype: int,
        chunk_bytes: int,
        kernel: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert divisor is None and z_loss_scale == 0.0 and not z_loss_in_loss
        with torch.autocast(hidden.device.type, enabled=False):
            logits = F.linear(hidden, weight, bias).float()
            if logit_scale != 1.0:
                logits = logits * logit_scale
            if softcap:
                logits = softcap * torch.tanh(logits / softcap)
            loss = F.cross_entropy(
                logits,
                target,
                weight=class_weight,
                ignore_index=ignore_index,
                label_smoothing=label_smoothing,
                reduction=("none", "mean", "sum")[reduction],
            )
        return self._result("fused_linear_cross_entropy", kernel, loss), torch.zeros_like(loss)
