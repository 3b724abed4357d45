"""Real text as byte tokens."""

from __future__ import annotations

import dataclasses
import pathlib
import sysconfig
from collections.abc import Iterable

LICENCES = pathlib.Path("/usr/share/common-licenses")
# Enough for one batch of the small model; a shorter text would repeat within a step.
LEAST_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A text and where it is from."""

    text: bytes
    origin: str


def _whole_files(paths: Iterable[pathlib.Path]) -> list[pathlib.Path]:
    """Regular files, each once however many links name it."""
    return sorted({path.resolve() for path in paths if path.is_file()})


def load_corpus(path: pathlib.Path | None, licences: pathlib.Path = LICENCES) -> Corpus:
    """The text of `path`, else the licences of the system, else Python's licence and library.

    Raises:
        ValueError: `path` holds less than LEAST_BYTES bytes.
        OSError: `path` cannot be read.
    """
    if path is not None:
        text = path.read_bytes()
        if len(text) < LEAST_BYTES:
            raise ValueError(f"{path} has {len(text)} bytes, want at least {LEAST_BYTES}")
        return Corpus(text, str(path))
    files = _whole_files(licences.glob("*")) if licences.is_dir() else []
    text = b"\n".join(file.read_bytes() for file in files)
    if len(text) >= LEAST_BYTES:
        return Corpus(text, f"{len(files)} licences of {licences}")
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    files = _whole_files([library / "LICENSE.txt", library / "argparse.py", library / "typing.py"])
    text = b"\n".join(file.read_bytes() for file in files)
    return Corpus(text, ", ".join(file.name for file in files) + f" of {library}")


def batch_of(text: bytes, step: int, batch: int, length: int) -> list[list[int]]:
    """Tokens of a step: consecutive stretches of the text, which is read again from its begin."""
    need = batch * length
    start = step * need
    flat = [text[(start + i) % len(text)] for i in range(need)]
    return [flat[row * length : (row + 1) * length] for row in range(batch)]
