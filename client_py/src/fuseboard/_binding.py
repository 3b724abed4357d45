"""The operators of the LibTorch binding and the kernel libraries behind them, once per process.

A library is opened once, its digest is taken from the open file, and that very file is mapped, so
that no other file can slip in between. A process has one binding for life; kernel libraries may come
and go, and a mapped one stays mapped. All functions may be called from any thread.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import threading
from typing import Any, Protocol

import torch

from fuseboard._errors import ArtifactError
from fuseboard._plan import Artifact, ArtifactKind, OperationCounter

COMPOSITE = -1  # The handle that stands for "no kernel library".


class Operators(Protocol):
    """What torch.ops.fuseboard offers (kernels/torch/schemas.h); tests bring their own."""

    load_kernel: Any
    prepare_kernel: Any
    counters: Any
    rms_norm: Any
    swiglu: Any
    fused_linear_cross_entropy: Any


class Binding:
    """Loads what artifacts name, each file once.

    Args:
        injected: Operators that are there already: no binding library is loaded then.
    """

    def __init__(self, injected: Operators | None = None) -> None:
        self._lock = threading.Lock()
        self._operators = injected
        self._injected = injected is not None
        self._binding_sha256 = ""
        self._handles: dict[str, int] = {}
        self._open_files: list[int] = []

    @property
    def operators(self) -> Operators | None:
        """The operators, or None before a binding is loaded."""
        return self._operators

    def load(self, artifact: Artifact) -> Operators:
        """Maps the binding library.

        Raises:
            ArtifactError: Missing, another digest, does not load, or another one is mapped already.
        """
        with self._lock:
            if self._injected:
                assert self._operators is not None
                return self._operators
            if self._operators is not None and self._binding_sha256 == artifact.sha256:
                return self._operators
            if self._operators is not None:
                raise ArtifactError(
                    "BINDING_IN_USE",
                    f"binding {artifact.sha256[:12]} is wanted, but {self._binding_sha256[:12]} is "
                    "mapped; a process keeps its binding until it ends",
                )
            path = self._open(artifact)
            try:
                ctypes.CDLL(path)
                operators: Operators = torch.ops.fuseboard
                operators.counters()
            except (OSError, AttributeError, RuntimeError) as error:
                raise ArtifactError(
                    "BINDING_UNLOADABLE", f"{artifact.path} does not load: {error}"
                ) from error
            self._operators, self._binding_sha256 = operators, artifact.sha256
            _mark_compiled_code(artifact.sha256)
            return operators

    def load_kernel(self, artifact: Artifact) -> int:
        """Maps a kernel library and returns its handle.

        Raises:
            ArtifactError: Missing, another digest, does not load, or no binding is loaded.
        """
        with self._lock:
            if artifact.sha256 in self._handles:
                return self._handles[artifact.sha256]
            if self._operators is None:
                raise ArtifactError("NO_BINDING", f"kernel {artifact.name} needs a binding")
            path = self._open(artifact)
            try:
                handle = int(self._operators.load_kernel(path))
            except RuntimeError as error:
                raise ArtifactError(
                    "KERNEL_UNLOADABLE", f"{artifact.path} does not load: {error}"
                ) from error
            self._handles[artifact.sha256] = handle
            return handle

    def prepare_kernel(self, handle: int, device: torch.device) -> None:
        """Loads all device code of a kernel, so that no step waits for it.

        Raises:
            ArtifactError: The device refuses it.
        """
        assert self._operators is not None
        try:
            self._operators.prepare_kernel(handle, device)
        except RuntimeError as error:
            raise ArtifactError(
                "KERNEL_UNLOADABLE", f"kernel {handle} does not load on {device}: {error}"
            ) from error

    def _open(self, artifact: Artifact) -> str:
        """Opens and verifies a file; returns the name under which exactly it can be mapped."""
        try:
            descriptor = os.open(artifact.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ArtifactError(
                "ARTIFACT_MISSING", f"{artifact.path} cannot be opened: {error.strerror}"
            ) from error
        found = _sha256(descriptor)
        if found != artifact.sha256:
            os.close(descriptor)
            raise ArtifactError(
                "DIGEST_MISMATCH",
                f"{artifact.path} has sha256 {found}, the plan says {artifact.sha256}",
            )
        # NOTE: never closed. The loader finds a mapped library by the name it was opened with: a
        # second library under a reused /proc/self/fd/N would silently be the first.
        self._open_files.append(descriptor)
        return f"/proc/self/fd/{descriptor}"


def _mark_compiled_code(sha256: str) -> None:
    """Keeps what torch.compile stores for this binding's operators apart from another's.

    Its caches know operators by name. What they hold from before an upgrade would be run on operators whose
    internal results may be others: a float64 was once taken for a float32.
    """
    config: Any = getattr(torch.compiler, "config", None)
    if hasattr(config, "cache_key_tag"):
        config.cache_key_tag += f"fuseboard-{sha256[:16]}"


def _sha256(descriptor: int) -> str:
    digest = hashlib.sha256()
    offset = 0
    while block := os.pread(descriptor, 1 << 20, offset):
        digest.update(block)
        offset += len(block)
    return digest.hexdigest()


_process_binding = Binding()


def process_binding() -> Binding:
    """The binding of this process."""
    return _process_binding


def find(artifacts: tuple[Artifact, ...], kind: ArtifactKind, sha256: str = "") -> Artifact | None:
    """The artifact of a kind, with this digest if one is given."""
    return next((a for a in artifacts if a.kind == kind and sha256 in ("", a.sha256)), None)


def counters(binding: Binding | None = None) -> tuple[OperationCounter, ...]:
    """Calls per operation since the process began; empty before a binding is loaded."""
    operators = (binding or _process_binding).operators
    if operators is None:
        return ()
    counted: dict[str, dict[str, Any]] = json.loads(operators.counters())
    return tuple(
        OperationCounter(name, int(entry.get("fused", 0)), dict(entry.get("fallback", {})))
        for name, entry in sorted(counted.items())
    )
