"""Where Fuseboard is installed: the daemon, the libraries and the descriptor set.

An installation is a folder with `bin/`, `lib/fuseboard/` and `share/fuseboard/`. Only this module
knows where such folders may be.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import sys

from fuseboard._errors import FuseboardError

_BUILDS = ("dev", "gpu", "release")
_DIGEST = re.compile(r'^sha256: "([0-9a-f]{64})"$', re.MULTILINE)
_DESCRIPTOR_SET = pathlib.PurePath("share", "fuseboard", "fuseboard.binpb")


@dataclasses.dataclass(frozen=True)
class Home:
    """An installation.

    Attributes:
        root: The folder.
        origin: For people: why this folder was taken.
    """

    root: pathlib.Path
    origin: str

    @property
    def daemon(self) -> pathlib.Path:
        """The daemon's binary; it may be absent where only the client was installed."""
        return self.root / "bin" / "fuseboardd"

    @property
    def descriptor_set(self) -> pathlib.Path:
        """The descriptor set from which messages are built."""
        return self.root / _DESCRIPTOR_SET


def _candidates(package: pathlib.Path) -> list[Home]:
    found = [Home(package / "_dist", "inside the Python package")]
    checkout = package.parents[2]
    if package.parts[-3:] == ("client_py", "src", "fuseboard"):
        found += [
            Home(checkout / "build" / name / "stage", f"build/{name} of the source checkout")
            for name in _BUILDS
        ]
    prefixes = dict.fromkeys((sys.prefix, "/usr/local", "/usr", "/opt/fuseboard"))
    return found + [Home(pathlib.Path(p), f"system prefix {p}") for p in prefixes]


def find_home(package: pathlib.Path | None = None) -> Home:
    """Finds the installation: FUSEBOARD_HOME, the package, a source checkout, a system prefix.

    Args:
        package: Folder of the Python package; default: this one.

    Raises:
        FuseboardError: NO_INSTALLATION, naming the folders that were looked at. FUSEBOARD_HOME, if
            set, is the only folder looked at: a typing error there must not select another one.
    """
    named = os.environ.get("FUSEBOARD_HOME", "")
    if named:
        candidates = [Home(pathlib.Path(named).absolute(), "FUSEBOARD_HOME")]
    else:
        candidates = _candidates(package or pathlib.Path(__file__).resolve().parent)
    for home in candidates:
        if home.descriptor_set.is_file():
            return home
    places = ", ".join(str(home.root) for home in candidates)
    raise FuseboardError("NO_INSTALLATION", f"no {_DESCRIPTOR_SET} in any of: {places}")


def stated_digest(library: pathlib.Path) -> str:
    """The sha256 that a library's manifest, which lies beside it, states.

    Raises:
        OSError: The manifest cannot be read.
        ValueError: It states none.
    """
    manifest = library.with_suffix(".textpb")
    found = _DIGEST.search(manifest.read_text())
    if found is None:
        raise ValueError(f"{manifest} has no sha256")
    return found.group(1)
