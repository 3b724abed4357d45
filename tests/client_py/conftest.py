"""What the tests of the client share: an installation with a fake daemon, and a way to wait."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "client_py" / "src"
HERE = pathlib.Path(__file__).resolve().parent
for path in (SOURCES, HERE):
    if str(path) not in sys.path:
        sys.path.insert(0, str(path))


@pytest.fixture(scope="session")
def descriptor_set(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The descriptor set of the checkout's proto files; of a build, where there is no protoc."""
    protoc = shutil.which("protoc")
    if protoc is None:
        built = sorted(ROOT.glob("build/*/stage/share/fuseboard/fuseboard.binpb"))
        if not built:
            pytest.skip("neither protoc nor a build")
        return built[0]
    path = tmp_path_factory.mktemp("descriptors") / "fuseboard.binpb"
    protos = sorted((ROOT / "proto").rglob("*.proto"))
    subprocess.run(
        [
            protoc,
            f"-I{ROOT / 'proto'}",
            "--include_imports",
            f"--descriptor_set_out={path}",
            *protos,
        ],
        check=True,
    )
    return path


@pytest.fixture
def short_tmp() -> Iterator[pathlib.Path]:
    """A folder whose path leaves room for a socket's name, which tmp_path may not."""
    with tempfile.TemporaryDirectory(prefix="fb-") as folder:
        yield pathlib.Path(folder)


@pytest.fixture
def fake_home(
    descriptor_set: pathlib.Path, short_tmp: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> pathlib.Path:
    """An installation whose `fuseboardd` is the fake daemon; FUSEBOARD_HOME names it."""
    home = short_tmp / "home"
    (home / "share" / "fuseboard").mkdir(parents=True)
    (home / "bin").mkdir()
    shutil.copy(descriptor_set, home / "share" / "fuseboard" / "fuseboard.binpb")
    daemon = home / "bin" / "fuseboardd"
    daemon.write_text(
        f"#!/bin/sh\nPYTHONPATH={SOURCES} FUSEBOARD_HOME={home} "
        f'exec {sys.executable} {HERE}/fakes/fake_daemon.py "$@"\n'
    )
    daemon.chmod(0o755)
    clean = [name for name in os.environ if name.startswith(("FUSEBOARD_", "SLURM_", "XDG_"))]
    for name in [*clean, "RANK", "WORLD_SIZE"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FUSEBOARD_HOME", str(home))
    return home


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Waits until a condition holds; fails with `what` after 30 seconds."""

    def wait(condition: Callable[[], object], what: str = "condition") -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come true in 30 s"
            time.sleep(0.02)

    return wait
