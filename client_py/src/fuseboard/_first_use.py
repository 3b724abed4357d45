"""Compares a kernel with the composite of the same mathematics on the first real input it meets."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fuseboard._binding import COMPOSITE

# Largest error, relative to the largest value, that counts as agreement: 80 units of float32, 2 of
# float16 and bfloat16. As the manifests in kernels/*/manifest.textpb say.
_TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
MAX_ROWS = 256  # Enough to meet every column; the comparison costs less than one layer.


class FirstUse:
    """The comparison for one site; on the training thread only.

    Attributes:
        failure: Why the site runs native since, or "".
    """

    def __init__(self, operation: str) -> None:
        self.failure = ""
        self._operation = operation
        self._compared: set[tuple[torch.dtype, str]] = set()

    def allows(self, sample: torch.Tensor, handle: int, run: Callable[[int], torch.Tensor]) -> bool:
        """Whether the kernel may run on inputs like `sample`; compares if that is not known yet.

        Args:
            sample: The operation's main input.
            handle: The kernel.
            run: Runs the operation with a handle on at most MAX_ROWS rows; without gradients.
        """
        if self.failure:
            return False
        key = (sample.dtype, sample.device.type)
        if handle == COMPOSITE or key in self._compared or not _may_compare(sample):
            return True
        self._compared.add(key)
        self.failure = self._compare(handle, run)
        return not self.failure

    def refuse(self, why: str) -> None:
        """Has it on record that the site runs native since now."""
        self.failure = self.failure or why

    def _compare(self, handle: int, run: Callable[[int], torch.Tensor]) -> str:
        try:
            with torch.no_grad():
                wanted, got = run(COMPOSITE), run(handle)
                if got.dtype != wanted.dtype or got.shape != wanted.shape:
                    return (
                        f"{self._operation} gave {got.dtype} {tuple(got.shape)} at first use, "
                        f"want {wanted.dtype} {tuple(wanted.shape)}"
                    )
                error = _relative_error(got.double(), wanted.double())
        except RuntimeError as failed:
            return f"{self._operation} failed at first use: {failed}"
        limit = _TOLERANCE.get(wanted.dtype, 1e-5)
        if error <= limit:
            return ""
        return (
            f"{self._operation} differs from native by {error:.2g} at first use, limit {limit:.2g}"
        )


def _relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference over the largest value. Where native is not finite, anything goes."""
    finite = wanted.isfinite()
    error = torch.where(finite, got - wanted, 0.0).abs()
    scale = torch.where(finite, wanted, 0.0).abs()
    if error.numel() == 0:
        return 0.0
    # The one synchronisation. NaN from the kernel alone stays NaN and so exceeds every limit.
    return float(error.max() / scale.max().clamp_min(torch.finfo(torch.float32).tiny))


def _may_compare(sample: torch.Tensor) -> bool:
    """Not while tracing or capturing, and not in a recompute (a backward runs then)."""
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return False
    if torch._C._current_graph_task_id() != -1:
        return False
    return not (sample.is_cuda and torch.cuda.is_current_stream_capturing())
