"""SIGHUP: all of it or nothing, and a rejected reload stays visible."""

from __future__ import annotations

import pathlib
import signal

import pytest
from daemon_harness import (
    BAD_CONFIGS,
    CATALOG,
    FINGERPRINT,
    Daemon,
    eventually,
    resolve_request,
    write_config,
)


@pytest.fixture
def config(idle_daemon: Daemon, short_folder: pathlib.Path) -> pathlib.Path:
    """The configuration file of a running daemon."""
    file = short_folder / "config.textpb"
    file.write_text("drain_seconds: 1\n")
    idle_daemon.start(f"--config={file}")
    return file


def reload(daemon: Daemon, result: str) -> None:
    name = f'fuseboard_config_reloads_total{{result="{result}"}}'
    before = daemon.metric(name)
    daemon.signal(signal.SIGHUP)
    eventually(lambda: daemon.metric(name) == before + 1)


def decide(daemon: Daemon):
    request = resolve_request()
    return daemon.job().call("Resolver/Resolve", request, "ResolveResponse").plan


def test_new_catalogue_reaches_running_processes(idle_daemon: Daemon, config: pathlib.Path) -> None:
    stream = idle_daemon.job().watch(resolve_request())
    first = next(stream).plan
    assert first.decisions[0].kind == 3
    catalog = idle_daemon.home / "share/fuseboard/catalog/test.textpb"
    catalog.write_text(CATALOG.replace(FINGERPRINT, "fb1:" + "b" * 64))
    reload(idle_daemon, "applied")
    second = next(stream).plan
    assert second.decisions[0].kind == 1
    assert second.revision > first.revision


def test_added_kernel_folder_is_searched(
    idle_daemon: Daemon, config: pathlib.Path, short_folder: pathlib.Path
) -> None:
    kernels = idle_daemon.home / "lib/fuseboard/kernels"
    other = short_folder / "other"
    kernels.rename(other)
    eventually(lambda: decide(idle_daemon).decisions[0].kind == 1)
    config.write_text(f'drain_seconds: 1 kernel_dirs: "{other}"\n')
    reload(idle_daemon, "applied")
    plan = decide(idle_daemon)
    assert plan.decisions[0].kind == 3
    assert str(other / "rms_norm.so") in [artifact.path for artifact in plan.artifacts]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        *BAD_CONFIGS,
        ("liveness_seconds: 99", "needs a restart to change liveness_seconds from 30 to 99"),
    ],
)
def test_rejected_config_changes_nothing_and_is_shown(
    idle_daemon: Daemon, config: pathlib.Path, content: str | int, named: str
) -> None:
    before = decide(idle_daemon)
    write_config(config, content)
    # Would be taken over, were the rest right.
    catalog = idle_daemon.home / "share/fuseboard/catalog/test.textpb"
    catalog.write_text("")
    reload(idle_daemon, "rejected")
    after = decide(idle_daemon)
    assert after.revision == before.revision
    assert after.decisions[0].kind == 3
    [problem] = idle_daemon.admin().describe().problems
    assert problem.startswith("reload rejected: ")
    assert named in problem
    catalog.write_text(CATALOG)
    config.write_text("drain_seconds: 1")
    reload(idle_daemon, "applied")
    assert list(idle_daemon.admin().describe().problems) == []


def test_emptied_config_is_back_to_the_defaults(
    idle_daemon: Daemon, short_folder: pathlib.Path
) -> None:
    """An empty file is no error at a start, so it is none at a reload."""
    kernels = idle_daemon.home / "lib/fuseboard/kernels"
    other = short_folder / "other"
    kernels.rename(other)
    file = short_folder / "config.textpb"
    write_config(file, f'kernel_dirs: "{other}"')
    idle_daemon.start(f"--config={file}")
    assert decide(idle_daemon).decisions[0].kind == 3
    write_config(file, "")
    reload(idle_daemon, "applied")
    assert decide(idle_daemon).decisions[0].kind == 1
    assert list(idle_daemon.admin().describe().problems) == []


def test_emptied_config_that_would_need_a_restart_is_rejected(
    idle_daemon: Daemon, short_folder: pathlib.Path
) -> None:
    file = short_folder / "config.textpb"
    write_config(file, "liveness_seconds: 12")
    idle_daemon.start(f"--config={file}")
    write_config(file, "")
    reload(idle_daemon, "rejected")
    [problem] = idle_daemon.admin().describe().problems
    assert "needs a restart to change liveness_seconds from 12 to 30" in problem


def test_broken_catalogue_keeps_the_last_good_one(
    idle_daemon: Daemon, config: pathlib.Path
) -> None:
    catalog = idle_daemon.home / "share/fuseboard/catalog/test.textpb"
    catalog.write_text(CATALOG + "entries { id: ")
    reload(idle_daemon, "rejected")
    assert decide(idle_daemon).decisions[0].kind == 3
    assert "test.textpb" in idle_daemon.admin().describe().problems[0]
    # The same file at a start refuses the start: one rule, said in two places.
    idle_daemon.kill()
    process, _ = idle_daemon.launch()
    assert process.wait(60) == 1
    assert "test.textpb" in idle_daemon.log()
