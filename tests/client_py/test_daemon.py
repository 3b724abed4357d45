"""Finding a daemon and starting a private one: whose folder, exactly one, and every way to fail."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from fuseboard import _daemon
from fuseboard._errors import DaemonUnreachable, FuseboardError
from fuseboard._home import Home

Wait = Callable[..., None]
START_S = 60.0  # A loaded machine takes seconds to start the fake daemon's Python.


@pytest.fixture
def folder(short_tmp: pathlib.Path, eventually: Wait) -> Iterator[pathlib.Path]:
    path = short_tmp / "private"
    path.mkdir(mode=0o700)
    yield path
    for pid in started(path):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def started(folder: pathlib.Path) -> list[int]:
    log = folder / "state" / "starts.log"
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def home_with(script: str, short_tmp: pathlib.Path) -> Home:
    home = Home(short_tmp / "odd", "test")
    home.daemon.parent.mkdir(parents=True)
    home.daemon.write_text("#!/bin/sh\n" + script)
    home.daemon.chmod(0o755)
    return home


# ---- Which daemon ----


def test_a_named_daemon_wins_over_the_environment(short_tmp: pathlib.Path) -> None:
    found = _daemon.find_daemon("unix:/a.sock", 1.0, {"FUSEBOARD_ADDRESS": "unix:/b.sock"})
    assert found == _daemon.Found("unix:/a.sock", "address=")


def test_the_environment_wins_over_the_system_socket(short_tmp: pathlib.Path) -> None:
    system = short_tmp / "job.sock"
    system.touch()
    found = _daemon.find_daemon(None, 1.0, {"FUSEBOARD_ADDRESS": "/b.sock"}, str(system))
    assert found.address == "unix:/b.sock"


def test_the_system_socket_wins_over_a_private_daemon_even_if_nobody_answers(
    short_tmp: pathlib.Path,
) -> None:
    system = short_tmp / "job.sock"
    system.touch()
    assert _daemon.find_daemon(None, 1.0, {}, str(system)).address == f"unix:{system}"


def test_a_bad_address_in_the_environment_is_named() -> None:
    with pytest.raises(FuseboardError, match="localhost:1234"):
        _daemon.find_daemon(None, 1.0, {"FUSEBOARD_ADDRESS": "localhost:1234"})


# ---- Whose folder ----


def test_the_folder_is_in_the_runtime_dir_and_only_the_user_may_enter(
    short_tmp: pathlib.Path,
) -> None:
    folder = _daemon.private_folder({"XDG_RUNTIME_DIR": str(short_tmp)})
    assert folder == short_tmp / "fuseboard"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("runtime", ["", "/absent", "/usr/" + "x" * 90, "relative"])
def test_without_a_usable_runtime_dir_the_folder_is_in_tmp(
    short_tmp: pathlib.Path, runtime: str
) -> None:
    folder = _daemon.private_folder({"XDG_RUNTIME_DIR": runtime}, str(short_tmp))
    assert folder == short_tmp / f"fuseboard-{os.geteuid()}"


def test_a_folder_that_others_may_enter_is_refused(short_tmp: pathlib.Path) -> None:
    (short_tmp / "fuseboard").mkdir(mode=0o755)
    with pytest.raises(DaemonUnreachable, match="mode 755, want .* 700"):
        _daemon.private_folder({"XDG_RUNTIME_DIR": str(short_tmp)})


def test_a_folder_that_is_a_link_is_refused(short_tmp: pathlib.Path) -> None:
    (short_tmp / "elsewhere").mkdir(mode=0o700)
    (short_tmp / "fuseboard").symlink_to(short_tmp / "elsewhere")
    with pytest.raises(DaemonUnreachable, match="is not a folder"):
        _daemon.private_folder({"XDG_RUNTIME_DIR": str(short_tmp)})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(short_tmp: pathlib.Path) -> None:
    (short_tmp / f"fuseboard-{os.geteuid()}").mkdir(mode=0o700)
    os.chown(short_tmp / f"fuseboard-{os.geteuid()}", 12345, -1)
    with pytest.raises(DaemonUnreachable, match="owner 12345"):
        _daemon.private_folder({}, str(short_tmp))


# ---- Starting ----


def test_a_private_daemon_serves_and_is_nobodys_child(
    fake_home: pathlib.Path, folder: pathlib.Path
) -> None:
    assert _daemon.start_private(Home(fake_home, "test"), folder, START_S)
    (pid,) = started(folder)
    assert _daemon.answers(str(folder / "job.sock"))
    status = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    parent, session = int(status[1]), int(status[3])
    assert parent != os.getpid()
    assert session != os.getsid(0)


def test_a_private_daemon_inherits_no_descriptor_and_no_foreign_variable(
    fake_home: pathlib.Path, folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "1")
    with socket.socket() as ours:
        ours.listen()
        os.set_inheritable(ours.fileno(), True)
        inode = os.fstat(ours.fileno()).st_ino
        _daemon.start_private(Home(fake_home, "test"), folder, START_S)
    (pid,) = started(folder)
    descriptors = pathlib.Path(f"/proc/{pid}/fd")
    targets = {entry.name: os.readlink(entry) for entry in descriptors.iterdir()}
    assert f"socket:[{inode}]" not in targets.values()
    assert targets["0"] == targets["1"] == "/dev/null"
    assert targets["2"] == str(folder / "fuseboardd.log")
    assert b"SECRET_TOKEN" not in pathlib.Path(f"/proc/{pid}/environ").read_bytes()


def test_of_many_processes_that_race_exactly_one_starts_it(
    fake_home: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    script = (
        "import pathlib, sys, time\n"
        "from fuseboard import _daemon, _home\n"
        "while not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.001)\n"
        f"print(_daemon.start_private(_home.find_home(), pathlib.Path(sys.argv[1]), {START_S}))\n"
    )
    go = tmp_path / "go"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", script, folder, go], stdout=subprocess.PIPE, env=environment
        )
        for _ in range(8)
    ]
    time.sleep(1.0)
    go.touch()
    answers = [racer.communicate(timeout=90)[0].strip() for racer in racers]
    assert sorted(answers) == [b"False"] * 7 + [b"True"]
    assert len(started(folder)) == 1


def test_a_private_daemon_that_was_killed_is_started_again(
    fake_home: pathlib.Path, folder: pathlib.Path
) -> None:
    home = Home(fake_home, "test")
    assert _daemon.start_private(home, folder, START_S)
    assert not _daemon.start_private(home, folder, START_S)
    os.kill(started(folder)[0], signal.SIGKILL)
    while _daemon.answers(str(folder / "job.sock")):
        time.sleep(0.02)
    assert _daemon.start_private(home, folder, START_S)
    assert len(started(folder)) == 2


def test_an_unused_private_daemon_ends(
    fake_home: pathlib.Path, folder: pathlib.Path, eventually: Wait
) -> None:
    _daemon.start_private(Home(fake_home, "test"), folder, START_S, idle_exit_s=0.5)
    eventually(lambda: not (folder / "job.sock").exists(), "end of the daemon")


def test_a_daemon_that_ends_at_once_is_told_with_its_last_words(
    short_tmp: pathlib.Path, folder: pathlib.Path
) -> None:
    home = home_with("echo 'state_dir is on a read-only file system' >&2; exit 3\n", short_tmp)
    with pytest.raises(DaemonUnreachable) as caught:
        _daemon.start_private(home, folder, START_S)
    assert caught.value.code == "START_FAILED"
    assert "state_dir is on a read-only file system" in str(caught.value)


def test_a_daemon_that_never_gets_ready_is_given_up_and_killed(
    short_tmp: pathlib.Path, folder: pathlib.Path, eventually: Wait
) -> None:
    home = home_with(f"echo $$ > {folder}/pid; exec sleep 600\n", short_tmp)
    with pytest.raises(DaemonUnreachable) as caught:
        _daemon.start_private(home, folder, 1.0)
    assert caught.value.code == "START_TIMEOUT"
    pid = (folder / "pid").read_text().strip()
    eventually(lambda: not _alive(pid), "end of the daemon that hangs")


def _alive(pid: str) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_daemon_that_says_nonsense_is_refused(
    short_tmp: pathlib.Path, folder: pathlib.Path
) -> None:
    home = home_with(
        'for a; do case $a in --ready_fd=*) eval "echo nonsense >&${a#*=}";; esac; done\n',
        short_tmp,
    )
    with pytest.raises(DaemonUnreachable) as caught:
        _daemon.start_private(home, folder, START_S)
    assert caught.value.code == "START_FAILED"


def test_an_installation_without_a_daemon_says_which_program_is_missing(
    short_tmp: pathlib.Path, folder: pathlib.Path
) -> None:
    with pytest.raises(DaemonUnreachable, match="no program .*bin/fuseboardd"):
        _daemon.start_private(Home(short_tmp, "test"), folder, 1.0)


def test_a_starter_that_hangs_with_the_lock_costs_the_others_only_their_deadline(
    fake_home: pathlib.Path, folder: pathlib.Path
) -> None:
    import fcntl

    with open(folder / "start.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DaemonUnreachable) as caught:
            _daemon.start_private(Home(fake_home, "test"), folder, 0.3)
    assert caught.value.code == "START_TIMEOUT"
    assert "start.lock" in str(caught.value)


def test_the_command_line_keeps_to_the_contract(short_tmp: pathlib.Path) -> None:
    command = _daemon._command(Home(pathlib.Path("/h"), ""), pathlib.Path("/p"), 7, 300.0)
    assert json.dumps(command) == json.dumps(
        ["/h/bin/fuseboardd", "--home=/h", "--state_dir=/p/state", "--job_socket=/p/job.sock"]
        + ["--admin_socket=/p/admin.sock", "--http_address=", "--idle_exit_seconds=300"]
        + ["--ready_fd=7"]
    )
