"""Fixtures around real daemons."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from collections.abc import Iterator

import pytest
from daemon_harness import DAEMON, Daemon, make_home


@pytest.fixture
def short_folder() -> Iterator[pathlib.Path]:
    """A folder whose path leaves room for a socket's 107 bytes; pytest's own may not."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fb-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def idle_daemon(short_folder: pathlib.Path) -> Iterator[Daemon]:
    """A daemon that is not started yet; killed at the end."""
    assert DAEMON.exists(), f"{DAEMON} is not built; FUSEBOARD_HOME names another stage"
    with Daemon(make_home(short_folder / "home"), short_folder / "state").ended_at_last() as daemon:
        yield daemon


@pytest.fixture
def daemon(idle_daemon: Daemon) -> Daemon:
    """A running daemon."""
    return idle_daemon.start()
