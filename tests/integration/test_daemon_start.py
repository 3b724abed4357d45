"""How fuseboardd starts, refuses to start, and ends."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import socket
import stat
import subprocess
import time

import pytest
from daemon_harness import (
    BAD_CONFIGS,
    DAEMON,
    PATIENCE_SECONDS,
    ROOT,
    Daemon,
    eventually,
    message,
    resolve_request,
    write_config,
)

NOBODY = 65534


def run(daemon: Daemon, *flags: str, **popen) -> subprocess.CompletedProcess[str]:
    """Runs a daemon that is expected to end by itself."""
    return subprocess.run(
        daemon.command(*flags),
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        **popen,
    )


def mode(path: pathlib.Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_ready_line_names_what_it_serves(daemon: Daemon) -> None:
    assert daemon.ready["job_socket"] == str(daemon.job_socket)
    assert daemon.ready["admin_socket"] == str(daemon.admin_socket)
    assert daemon.ready["pid"] == daemon.process.pid
    assert re.fullmatch(r"127\.0\.0\.1:[1-9]\d*", daemon.ready["http_address"])
    assert daemon.ready["version"] == daemon.admin().describe().version


def test_modes_separate_jobs_from_operators_whatever_the_umask(idle_daemon: Daemon) -> None:
    old = os.umask(0)
    try:
        idle_daemon.start()
    finally:
        os.umask(old)
    assert mode(idle_daemon.job_socket) == 0o666
    assert mode(idle_daemon.admin_socket) == 0o600
    assert mode(idle_daemon.state) == 0o700


def test_second_daemon_is_refused_and_names_the_holder(daemon: Daemon) -> None:
    second = run(daemon)
    assert second.returncode == 1
    assert re.search(
        rf"another daemon holds .*: pid {daemon.process.pid} started 20", second.stderr
    )
    assert daemon.admin().describe().pid == daemon.process.pid


def test_same_sockets_with_another_state_folder_are_refused(
    daemon: Daemon, short_folder: pathlib.Path
) -> None:
    other = Daemon(daemon.home, short_folder / "other")
    flags = [f"--job_socket={daemon.job_socket}", f"--admin_socket={daemon.admin_socket}"]
    second = run(other, *flags)
    assert second.returncode == 1
    assert f"job.sock.lock: pid {daemon.process.pid}" in second.stderr
    assert daemon.admin().describe().pid == daemon.process.pid


def test_restart_after_sigkill_replaces_stale_files(daemon: Daemon) -> None:
    before = daemon.admin().describe()
    daemon.kill()
    assert daemon.job_socket.is_socket()
    after = daemon.start().admin().describe()
    assert after.store_id == before.store_id
    assert after.revision == before.revision


def test_live_unrelated_pid_in_the_lock_file_blocks_nothing(idle_daemon: Daemon) -> None:
    idle_daemon.state.mkdir(mode=0o700)
    (idle_daemon.state / "lock").write_text(f"pid {os.getpid()} started 2020-01-01T00:00:00Z\n")
    idle_daemon.start()
    assert f"pid {idle_daemon.process.pid} " in (idle_daemon.state / "lock").read_text()


def test_of_two_starts_at_once_exactly_one_wins(idle_daemon: Daemon) -> None:
    starts = [idle_daemon.launch() for _ in range(2)]
    lines = []
    for _, read_end in starts:
        with os.fdopen(read_end) as ready:
            lines.append(ready.readline())
    try:
        assert sum(line != "" for line in lines) == 1
        loser = starts[lines.index("")][0]
        assert loser.wait(PATIENCE_SECONDS) == 1
        winner = starts[1 - lines.index("")][0]
        assert idle_daemon.admin().describe().pid == winner.pid
    finally:
        for process, _ in starts:
            process.kill()
            process.wait()


def test_other_files_in_the_way_are_kept_and_named(idle_daemon: Daemon) -> None:
    idle_daemon.state.mkdir(mode=0o700)
    idle_daemon.job_socket.write_text("precious")
    refused = run(idle_daemon)
    assert refused.returncode == 1
    assert f"{idle_daemon.job_socket} exists and is not a socket" in refused.stderr
    assert idle_daemon.job_socket.read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_folder_of_another_user_is_refused_by_name(
    idle_daemon: Daemon, short_folder: pathlib.Path
) -> None:
    short_folder.chmod(0o755)
    idle_daemon.state.mkdir(mode=0o700)
    refused = run(idle_daemon, user=NOBODY)
    assert refused.returncode == 1
    assert f"{idle_daemon.state}" in refused.stderr
    assert "Permission denied" in refused.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_unprivileged_without_state_dir_is_told_the_flag() -> None:
    refused = subprocess.run(
        [str(DAEMON)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        user=NOBODY,
    )
    assert refused.returncode == 2
    assert "--state_dir" in refused.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_other_users_reach_the_job_socket_but_not_the_admin_socket(
    idle_daemon: Daemon, short_folder: pathlib.Path
) -> None:
    short_folder.chmod(0o755)
    run_folder = short_folder / "run"
    job, admin = run_folder / "job.sock", run_folder / "admin.sock"
    idle_daemon.start(f"--job_socket={job}", f"--admin_socket={admin}")
    connect = "import socket,sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    outcomes = [
        subprocess.run(["/usr/bin/python3", "-c", connect, str(path)], user=NOBODY,
                       check=False, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        for path in (job, admin)
    ]  # fmt: skip
    assert outcomes[0].returncode == 0, outcomes[0].stderr
    assert "PermissionError" in outcomes[1].stderr


@pytest.mark.parametrize(
    ("config", "named"),
    [
        *BAD_CONFIGS,
        ('job_socket: "/tmp/' + "x" * 110 + '"', "107"),
        ('http_address: "nonsense"', "http_address"),
    ],
)
def test_bad_config_is_refused_by_field_and_touches_nothing(
    idle_daemon: Daemon, short_folder: pathlib.Path, config: str | int, named: str
) -> None:
    file = short_folder / "config.textpb"
    write_config(file, config)
    # No flag that would hide the field.
    refused = subprocess.run(
        [str(DAEMON), f"--config={file}", f"--state_dir={idle_daemon.state}"],
        check=False, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert refused.returncode == 2
    assert named in refused.stderr
    assert not idle_daemon.state.exists()


def test_empty_config_is_that_of_no_file(idle_daemon: Daemon, short_folder: pathlib.Path) -> None:
    file = short_folder / "config.textpb"
    write_config(file, "")
    checked = run(idle_daemon, f"--config={file}", "--check_config")
    assert (checked.returncode, checked.stdout) == (0, run(idle_daemon, "--check_config").stdout)
    assert "liveness_seconds: 30" in checked.stdout
    idle_daemon.start(f"--config={file}")
    assert list(idle_daemon.admin().describe().problems) == []


def test_check_config_prints_the_whole_and_starts_nothing(
    idle_daemon: Daemon, short_folder: pathlib.Path
) -> None:
    file = short_folder / "config.textpb"
    file.write_text("drain_seconds: 7 liveness_seconds: 12")
    checked = run(idle_daemon, f"--config={file}", "--liveness_seconds=13", "--check_config")
    assert checked.returncode == 0
    assert "drain_seconds: 7" in checked.stdout
    assert "liveness_seconds: 13" in checked.stdout  # The flag wins.
    assert f'job_socket: "{idle_daemon.job_socket}"' in checked.stdout
    assert not idle_daemon.state.exists()


def test_example_config_is_valid_and_says_the_defaults() -> None:
    # With what the file names itself, so that a user who is not root gets the same.
    flags = [
        "--state_dir=/var/lib/fuseboard",
        "--job_socket=/run/fuseboard/job.sock",
        "--admin_socket=/run/fuseboard/admin.sock",
    ]
    example, default = (
        subprocess.run(
            [str(DAEMON), *chosen, "--check_config"],
            check=False, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
        )
        for chosen in ([f"--config={ROOT}/deploy/fuseboardd.textpb"], flags)
    )  # fmt: skip
    assert example.returncode == 0, example.stderr
    assert example.stdout == default.stdout


def test_help_documents_every_field_of_the_configuration() -> None:
    shown = subprocess.run(
        [str(DAEMON), "--help"], check=False, capture_output=True, text=True
    ).stdout
    for field in message("DaemonConfig").DESCRIPTOR.fields:
        assert f"--{field.name.removesuffix('s')}" in shown, field.name
    for flag in ("config", "check_config", "ready_fd", "version"):
        assert f"--{flag}" in shown


def test_wrong_flag_is_refused_with_the_near_one(idle_daemon: Daemon) -> None:
    refused = run(idle_daemon, "--drain_second=3")
    assert refused.returncode == 2
    assert "did you mean --drain_seconds?" in refused.stderr


def test_taken_http_port_is_refused_by_address(idle_daemon: Daemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = run(idle_daemon, f"--http_address={address}")
    assert refused.returncode == 1
    assert f"cannot listen on {address}" in refused.stderr


def test_idle_daemon_ends_only_when_no_process_is_connected(idle_daemon: Daemon) -> None:
    idle_daemon.start("--idle_exit_seconds=1", "--liveness_seconds=60")
    stream = idle_daemon.job().watch(resolve_request())
    next(stream)
    time.sleep(3)
    assert idle_daemon.process.poll() is None
    stream.cancel()
    # The process is still known as live for liveness_seconds; it says that it leaves.
    request = resolve_request()
    client = idle_daemon.job()
    client.call("Resolver/Resolve", request, "ResolveResponse")
    for process in client.call(
        "Status/ListJobs", message("ListJobsRequest"), "ListJobsResponse"
    ).processes:
        client.call(
            "Resolver/ReportProgress",
            message("ReportProgressRequest", instance_id=process.job.instance_id, leaving=True),
            "ReportProgressResponse",
        )
    assert idle_daemon.wait() == 0


def test_never_maps_cuda_torch_or_a_kernel_library(daemon: Daemon) -> None:
    daemon.job().call("Resolver/Resolve", resolve_request(), "ResolveResponse")
    maps = pathlib.Path(f"/proc/{daemon.process.pid}/maps").read_text()
    assert "fuseboardd" in maps
    assert not re.search(r"libcuda|libcudart|libtorch|libc10|cupti|rms_norm|fuseboard_torch", maps)


def test_interrupt_ends_it_with_status_zero(daemon: Daemon) -> None:
    daemon.signal(signal.SIGINT)
    assert daemon.wait() == 0
    assert eventually(lambda: "ended" in daemon.log())
