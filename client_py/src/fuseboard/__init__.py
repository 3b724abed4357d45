"""Fused training kernels for PyTorch, chosen and switched live by this node's `fuseboardd`.

    import fuseboard
    fuseboard.patch(model)

Importing this package imports neither torch nor gRPC.
"""

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
