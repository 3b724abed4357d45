"""Fused training kernels for PyTorch, chosen and switched live by this node's `fuseboardd`.

    import fuseboard
    fuseboard.patch(model)

`fuseboard.ops` and `fuseboard.nn` offer the operations for direct use; they alone need torch, and are
imported when they are first asked for. Importing this package imports neither torch nor gRPC.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fuseboard._errors import (
    ArtifactError,
    DaemonUnreachable,
    DeferredLogitsError,
    FuseboardError,
    KernelRejected,
    KernelUnavailable,
)
from fuseboard._patch import explain, patch, report, state, step, unpatch
from fuseboard._version import __version__ as __version__

if TYPE_CHECKING:
    from fuseboard import nn as nn
    from fuseboard import ops as ops

__all__ = [
    "ArtifactError",
    "DaemonUnreachable",
    "DeferredLogitsError",
    "FuseboardError",
    "KernelRejected",
    "KernelUnavailable",
    "explain",
    "patch",
    "report",
    "state",
    "step",
    "unpatch",
]


def __getattr__(name: str) -> Any:
    if name in ("nn", "ops"):
        return importlib.import_module(f"fuseboard.{name}")
    raise AttributeError(f"module 'fuseboard' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__", "nn", "ops"]
