"""Kernel records of the driver, through libfuseboard_cupti.so (profiler/abi/cupti_abi.h)."""

from __future__ import annotations

import ctypes
import enum
import functools
import hashlib
import json
import os
import pathlib
from typing import Any

from fuseboard import _home
from fuseboard._measure import KernelCount, Method
from fuseboard._sources import Counts, SourceError

ABI_VERSION = 1
LIBRARY = pathlib.PurePath("lib", "fuseboard", "libfuseboard_cupti.so")
_REASON_BYTES = 512


class Code(enum.IntEnum):
    """FbCuptiCode of the C interface."""

    OK = 0
    BUSY = 1
    UNAVAILABLE = 2
    INCOMPLETE = 3
    EMPTY = 4
    BAD_STATE = 5
    INTERNAL = 6


def framework_profiler() -> str:
    """Which profiler of torch is active now, or "": newer ones cannot be seen through CUPTI."""
    import torch

    if torch._C._autograd._profiler_enabled():
        return "torch's profiler is active"
    if getattr(torch.autograd.profiler, "_is_profiler_enabled", False):
        return "torch's profiler is being set up"
    return ""


def _verified_path(path: pathlib.Path, sha256: str) -> str:
    """Opens `path`, compares its digest and returns a path of that very file, open for good.

    Raises:
        SourceError: It cannot be read, or is not the file of its manifest.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SourceError(f"no profiler library: {path}: {error.strerror}") from error
    with os.fdopen(os.dup(descriptor), "rb") as file:
        found = hashlib.sha256(file.read()).hexdigest()
    if found != sha256:
        os.close(descriptor)
        raise SourceError(f"{path} has digest {found}, its manifest says {sha256}")
    return f"/proc/self/fd/{descriptor}"


def _digest_in_manifest(library: pathlib.Path) -> str:
    try:
        return _home.stated_digest(library)
    except (OSError, ValueError) as error:
        raise SourceError(f"no profiler library: {error}") from error


class CuptiLibrary:
    """The library's functions. Loading it touches nothing of CUPTI."""

    def __init__(self, library: Any) -> None:
        """Takes a loaded library; `open_library` loads the installed one."""
        self._library = library
        library.fb_cupti_abi_version.restype = ctypes.c_uint32
        version = library.fb_cupti_abi_version()
        if version != ABI_VERSION:
            raise SourceError(f"profiler library has ABI {version}, want {ABI_VERSION}")

    def call(self, name: str, *args: Any) -> tuple[Code, str]:
        """Calls `fb_cupti_<name>`; returns its code and reason."""
        reason = ctypes.create_string_buffer(_REASON_BYTES)
        function = getattr(self._library, f"fb_cupti_{name}")
        code = function(*args, reason, ctypes.c_size_t(_REASON_BYTES))
        return Code(code), reason.value.decode(errors="replace")

    def check(self) -> tuple[Code, str]:
        """Whether a window could be opened now, and if not, why."""
        return self.call("check")

    def stop_window(self) -> tuple[Code, str, dict[str, Any]]:
        """Closes the window; returns code, reason, and the report or {}."""
        text = ctypes.c_char_p()
        code, reason = self.call("stop_window", ctypes.byref(text))
        return code, reason, json.loads(text.value) if text.value else {}


@functools.cache
def open_library(home: pathlib.Path | None = None) -> CuptiLibrary:
    """Loads the profiler library of the installation, if it is what its manifest says.

    Raises:
        SourceError: There is none, or it cannot be loaded; says why.
    """
    from fuseboard._errors import FuseboardError
    from fuseboard._home import find_home

    try:
        root = home or find_home().root
    except FuseboardError as error:
        raise SourceError(str(error)) from error
    path = root / LIBRARY
    verified = _verified_path(path, _digest_in_manifest(path))
    try:
        return CuptiLibrary(ctypes.CDLL(verified))
    except OSError as error:
        raise SourceError(f"{path} cannot be loaded: {error}") from error


class CuptiSource:
    """Kernel launches, device time and copies, as `_sources.Source` describes."""

    method = Method.CUPTI

    def __init__(self, library: CuptiLibrary) -> None:
        self._library = library

    def start(self) -> None:
        """Opens a window, unless somebody else measures."""
        self._stand_down_for_torch()
        code, reason = self._library.call("start_window")
        if code != Code.OK:
            raise SourceError(reason)

    def mark(self, step: int) -> None:
        """Begins a step."""
        self._stand_down_for_torch()
        code, reason = self._library.call("mark", f"step {step}".encode())
        if code != Code.OK:
            raise SourceError(reason)

    def stop(self) -> Counts:
        """Closes the window."""
        if active := framework_profiler():
            self.abandon()
            return Counts(error=active)
        code, reason, report = self._library.stop_window()
        if not report:
            return Counts(error=reason or f"window ended with code {code.name}")
        phases = report["phases"]
        return Counts(
            launches=tuple(p["launches"] for p in phases),
            device_ms=tuple(p["busy_ns"] / 1e6 for p in phases),
            copies=tuple(p["copies"] for p in phases),
            kernels=tuple(
                KernelCount(k["name"], k["count"], k["device_ns"]) for k in report["kernels"]
            ),
            dropped_records=report["dropped_records"],
            error=reason,
        )

    def abandon(self) -> None:
        """Closes the window; what another profiler has set in CUPTI since stays as it is."""
        leave_enabled = 1 if framework_profiler() else 0
        self._library.call("abandon_window", ctypes.c_int32(leave_enabled))

    def _stand_down_for_torch(self) -> None:
        if active := framework_profiler():
            raise SourceError(active)
