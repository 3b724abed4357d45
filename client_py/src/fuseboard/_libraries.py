"""The kernel handles of direct calls (`fuseboard.ops`, `fuseboard.nn`), each opened at first use.

What a patched model has mapped already is used; else the binding and the kernel libraries come from
the installation that `_home` finds. Any thread may call; a forked child keeps what was opened.
"""

from __future__ import annotations

import logging
import os
import pathlib
import threading
from typing import Any

import torch

from fuseboard import _binding, _environment, _home
from fuseboard._binding import COMPOSITE
from fuseboard._errors import ArtifactError, FuseboardError
from fuseboard._plan import Artifact, ArtifactKind

_log = logging.getLogger("fuseboard")
_LIBRARY_OF = {"fused_linear_cross_entropy": "cross_entropy"}  # Others have their own name.

_lock = threading.Lock()
_handles: dict[str, int] = {}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
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


def _open(operation: str) -> int:
    operators = _operators()
    if operation not in operators.operations():
        raise ArtifactError(
            "NO_OPERATION",
            f"the binding has no operation {operation!r}, only {', '.join(operators.operations())}",
        )
    if _environment.switched_off():
        return COMPOSITE
    try:
        handle = _load_kernel(operators, _LIBRARY_OF.get(operation, operation))
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # Else the first launch loads the device code.
            operators.prepare_kernel(handle, torch.device("cuda", torch.cuda.current_device()))
    except (FuseboardError, RuntimeError) as error:
        _log.warning("%s runs without a kernel library: %s", operation, error)
        return COMPOSITE
    return handle


def _operators() -> Any:
    """The operators that are registered, or those of the installation's binding."""
    mapped = _binding.process_binding().operators
    if mapped is not None:
        return mapped
    if hasattr(torch.ops.fuseboard, "load_kernel"):  # The caller has loaded a binding itself.
        return torch.ops.fuseboard
    return _binding.process_binding().load(_artifact(ArtifactKind.BINDING, _binding_path()))


def _load_kernel(operators: Any, library: str) -> int:
    path = _libraries_folder() / "kernels" / f"{library}.so"
    if _binding.process_binding().operators is None:
        return int(operators.load_kernel(str(path)))
    return _binding.process_binding().load_kernel(_artifact(ArtifactKind.KERNEL, path))


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
    try:
        digest = _binding.digest_of(path)
    except OSError as error:
        raise ArtifactError(
            "ARTIFACT_MISSING", f"{path} cannot be opened: {error.strerror}"
        ) from error
    return Artifact(kind, path.stem, "", str(path), digest)


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # A thread that held it does not exist here.


os.register_at_fork(after_in_child=_after_fork_in_child)
