"""The kernel handles of direct calls (`fuseboard.ops`, `fuseboard.nn`), each opened at first use.

A binding that is mapped already is used, else that of the installation which `_home` finds; kernel
libraries are the installation's, all verified by the digest of their manifest. Any thread may call; a
forked child keeps what was opened.
"""

from __future__ import annotations

import logging
import os
import pathlib
import threading
from typing import Any

import torch

from fuseboard import _binding, _environment, _home
from fuseboard._binding import COMPOSITE, Binding
from fuseboard._errors import ArtifactError, FuseboardError
from fuseboard._plan import Artifact, ArtifactKind

_log = logging.getLogger("fuseboard")
_LIBRARY_OF = {  # Others have their own name.
    "fused_linear_cross_entropy": "cross_entropy",
    "fused_linear_jsd": "jsd",
    "fused_linear_scaled_cross_entropy": "cross_entropy",
    "selected_log_probs": "cross_entropy",
}

_lock = threading.Lock()
_handles: dict[str, int] = {}


def kernel_handle(operation: str) -> int:
    """The kernel library of an operation, or COMPOSITE, which is decided at its first use.

    COMPOSITE: FUSEBOARD_DISABLE is set, or the library cannot be opened, which is logged.

    Raises:
        ArtifactError: There is no binding for this torch, or it lacks the operation.
    """
    handle = _handles.get(operation)
    if handle is not None:
        return handle
    with _lock:
        if operation not in _handles:
            _handles[operation] = _open(operation)
        return _handles[operation]


# What torch.compiler.assume_constant_result does, which would import torch's compiler, also in scripts that
# compile nothing. That takes longer than all the rest of this package.
kernel_handle._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _open(operation: str) -> int:
    binding = _binding_in_force()
    operators: Any = binding.operators
    if operation not in operators.operations():
        raise ArtifactError(
            "NO_OPERATION",
            f"the binding has no operation {operation!r}, only {', '.join(operators.operations())}",
        )
    if _environment.switched_off():
        return COMPOSITE
    library = f"{_LIBRARY_OF.get(operation, operation)}.so"
    try:
        path = _libraries_folder() / "kernels" / library
        handle = binding.load_kernel(_artifact(ArtifactKind.KERNEL, path))
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # Else the first launch
            device = torch.device("cuda", torch.cuda.current_device())  # loads the device code.
            binding.prepare_kernel(handle, device)
    except FuseboardError as error:
        _log.warning("%s runs without a kernel library: %s", operation, error)
        return COMPOSITE
    return handle


def _binding_in_force() -> Binding:
    """The one that is mapped already, or else the installation's."""
    binding = _binding.process_binding()
    if binding.operators is None and hasattr(torch.ops.fuseboard, "load_kernel"):
        return Binding(injected=torch.ops.fuseboard)  # The caller has loaded a library itself.
    if binding.operators is None:
        binding.load(_artifact(ArtifactKind.BINDING, _binding_path()))
    return binding


def _libraries_folder() -> pathlib.Path:
    return _home.find_home().root / "lib" / "fuseboard"


def _binding_path() -> pathlib.Path:
    folder = _libraries_folder() / "torch"
    version = str(torch.__version__).split("+")[0]
    name = f"{version}-cu{torch.version.cuda}" if torch.version.cuda else f"{version}-cpu"
    path = folder / name / "libfuseboard_torch.so"
    if not path.is_file():
        others = sorted(p.parent.name for p in folder.glob("*/libfuseboard_torch.so"))
        raise ArtifactError(
            "NO_BINDING",
            f"{folder} has no binding for torch {name}, only for: {', '.join(others) or 'none'}",
        )
    return path


def _artifact(kind: ArtifactKind, path: pathlib.Path) -> Artifact:
    """A library by the digest that its manifest, which lies beside it, states."""
    try:
        digest = _home.stated_digest(path)
    except (OSError, ValueError) as error:
        raise ArtifactError("MANIFEST_MISSING", f"no manifest of {path}: {error}") from error
    return Artifact(kind, path.stem, "", str(path), digest)


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # A thread that held it does not exist here.


os.register_at_fork(after_in_child=_after_fork_in_child)
