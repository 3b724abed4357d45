"""`fuseboard doctor`: what is there, which daemon would be asked, and why a model would run native."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import platform
from collections.abc import Iterator

from fuseboard import _daemon, _environment, _home, _messages
from fuseboard._channel import Connection
from fuseboard._errors import FuseboardError
from fuseboard._version import __version__

_DEADLINE_S = 10.0
_PACKAGES = ("torch", "transformers", "grpcio", "protobuf")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the examination.

    Attributes:
        name: What was looked at.
        text: What was found.
        blocks: Whether every model runs native because of it.
    """

    name: str
    text: str
    blocks: bool = False


def examine(address: str | None = None) -> Iterator[Finding]:
    """Looks at all that `patch` depends on, in the order in which `patch` does.

    As `patch` does, it starts a private daemon if there is no other.
    """
    yield Finding("fuseboard", f"{__version__}, Python {platform.python_version()}")
    off = _environment.switched_off()
    yield Finding("switch", "FUSEBOARD_DISABLE is on" if off else "FUSEBOARD_DISABLE is off", off)
    for package in _PACKAGES:
        version = _version_of(package)
        needed = package != "transformers"
        yield Finding(package, version or "not installed", not version and needed)
    yield Finding("driver", _environment.driver_version() or "no NVIDIA driver")
    yield from _examine_daemon(address)


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _examine_daemon(address: str | None) -> Iterator[Finding]:
    try:
        home = _home.find_home()
        yield Finding("installation", f"{home.root} ({home.origin})")
        found = _daemon.find_daemon(address, _DEADLINE_S)
        yield Finding("address", f"{found.address} ({found.origin})")
        connection = Connection(found.address)
    except FuseboardError as error:
        yield Finding("daemon", f"{error.code}: {error}", True)
        return
    try:
        yield from _ask(connection)
    except FuseboardError as error:
        yield Finding("daemon", f"{error.code}: {error}", True)
    finally:
        connection.close()


def _ask(connection: Connection) -> Iterator[Finding]:
    node = connection.call(
        "Status/DescribeNode",
        _messages.message("DescribeNodeRequest")(),
        "DescribeNodeResponse",
        _DEADLINE_S,
    )
    yield Finding(
        "daemon",
        f"{node.version}, pid {node.pid}, revision {node.revision} of store {node.store_id}, "
        f"{node.processes} processes",
    )
    for problem in node.problems:
        yield Finding("problem", str(problem))
    kernels = connection.call(
        "Catalog/ListKernels",
        _messages.message("ListKernelsRequest")(),
        "ListKernelsResponse",
        _DEADLINE_S,
    ).kernels
    for kernel in kernels:
        state = "on" if kernel.enabled else f"off: {kernel.reason}"
        version = kernel.manifest.version
        yield Finding(
            "kernel", f"{kernel.operation} {version}".strip() + f", {kernel.error or state}"
        )
    if not kernels:
        yield Finding("kernel", "the daemon has no kernel library", True)
