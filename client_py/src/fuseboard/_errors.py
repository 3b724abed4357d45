"""The package's one exception tree."""

from __future__ import annotations

from collections.abc import Sequence


class FuseboardError(Exception):
    """Base of all errors of this package.

    Attributes:
        code: Upper-case reason, stable between releases, e.g. "UNKNOWN_KERNEL".
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class KernelUnavailable(FuseboardError):
    """A required kernel is not to be had here (`patch(require=[...])`)."""


class KernelRejected(FuseboardError):
    """A kernel exists but was refused for this model or environment.

    Attributes:
        reasons: One sentence per refusal.
    """

    def __init__(self, code: str, message: str, reasons: Sequence[str]) -> None:
        super().__init__(code, message)
        self.reasons = tuple(reasons)


class DaemonUnreachable(FuseboardError):
    """No daemon answers. Never raised into a training step."""


class ArtifactError(FuseboardError):
    """A library is missing, differs from its digest, or does not fit this torch."""


class DeferredLogitsError(FuseboardError):
    """Deferred logits were read after the weights they depend on had changed."""
