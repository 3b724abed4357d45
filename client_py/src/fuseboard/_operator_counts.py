"""Counts the operators that the framework dispatches: the source of a machine without a GPU.

An operator that runs others inside itself, as a fused one does, counts as one: what is counted is how
often the framework is asked. Views are left out, which move no data, and so are operators without a
tensor: those by which the profiler marks a range, or a report reads the binding's counters.
"""

from __future__ import annotations

import collections
import functools
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuseboard._measure import KernelCount, Method
from fuseboard._sources import Counts, SourceError


@functools.lru_cache(maxsize=4096)  # A string per type and call would be most of the cost.
def _moves_data(func: Any) -> bool:
    """Whether calls of an operator are counted: it takes or returns tensors, and is no view."""
    schema = func._schema
    types = [str(value.type) for value in (*schema.arguments, *schema.returns)]
    return not func.is_view and any("Tensor" in t for t in types)  # E.g. List[Optional[Tensor]].


class _CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts by name while it is entered; backward counts too where it runs on the same thread."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: collections.Counter[str] = collections.Counter()
        self.counting = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.counting and _moves_data(func):
            self.counts[str(func._schema.name).replace("::", ".")] += 1
        return func(*args, **(kwargs or {}))


class OperatorCountSource:
    """Operator calls per step, as `_sources.Source` describes."""

    method = Method.OPERATOR_COUNT

    def __init__(self) -> None:
        self._mode: _CountingMode | None = None
        self._per_step: list[int] = []

    def start(self) -> None:
        """Begins to count.

        Raises:
            SourceError: Another dispatch mode is active: it may end before the window, and modes
                must end in the order of a stack.
        """
        if torch._C._len_torch_dispatch_stack() > 0:
            raise SourceError("another dispatch mode of torch is active")
        self._per_step = []
        self._mode = _CountingMode()
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def mark(self, step: int) -> None:
        """Begins a step."""
        if self._mode is not None:
            self._per_step.append(self._mode.counts.total())

    def stop(self) -> Counts:
        """Stops counting."""
        mode, self._mode = self._mode, None
        if mode is None:
            return Counts(error="no window is open")
        if not _leave(mode):
            return Counts(error="another dispatch mode of torch was entered and not left")
        total = mode.counts.total()
        if total == 0:
            return Counts(error="window holds no operator call")
        ends = [*self._per_step[1:], total]
        return Counts(
            launches=tuple(end - begin for begin, end in zip(self._per_step, ends, strict=True)),
            kernels=tuple(KernelCount(n, c) for n, c in mode.counts.most_common()),
        )

    def abandon(self) -> None:
        """Stops counting and forgets."""
        mode, self._mode = self._mode, None
        if mode is not None:
            _leave(mode)


def _leave(mode: _CountingMode) -> bool:
    """Leaves `mode` if it is the innermost; else it only stops counting, and False is returned."""
    depth = torch._C._len_torch_dispatch_stack()
    if depth == 0 or torch._C._get_dispatch_stack_at(depth - 1) is not mode:
        mode.counting = False
        return False
    mode.__exit__(None, None, None)
    return True
