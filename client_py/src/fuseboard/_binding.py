"""The operators of the LibTorch binding and the kernel libraries behind them, once per process."""

from __future__ import annotations

from fuseboard._plan import OperationCounter


def counters() -> tuple[OperationCounter, ...]:
    """Calls per operation since the process began; empty before a binding is loaded."""
    return ()
