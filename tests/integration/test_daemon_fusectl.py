"""fusectl against the real daemon: output, JSON and exit codes."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import threading

import pytest
from daemon_harness import FUSECTL, PATIENCE_SECONDS, Daemon, message, resolve_request

OK, USAGE, UNREACHABLE, NOT_FOUND, REFUSED, INVALID, PERMISSION = 0, 2, 3, 4, 5, 6, 7


def connect(daemon: Daemon, **fields):
    request = resolve_request(**fields)
    daemon.job().call("Resolver/Resolve", request, "ResolveResponse")
    return request


def test_status_shows_what_the_daemon_is(daemon: Daemon) -> None:
    shown = daemon.fusectl("status")
    assert shown.returncode == OK
    assert f"pid {daemon.process.pid}" in shown.stdout
    assert "problems   none" in shown.stdout


def test_json_is_the_protobuf_mapping_of_the_reply(daemon: Daemon) -> None:
    from google.protobuf import json_format

    shown = daemon.fusectl("status", "--output=json")
    parsed = json_format.Parse(shown.stdout, message("DescribeNodeResponse"))
    assert parsed == daemon.admin().describe()
    assert json.loads(shown.stdout)["started_at_us"] == str(parsed.started_at_us)
    assert json.loads(shown.stdout)["processes"] == 0  # Zeros are written out.
    connect(daemon)
    jobs = json_format.Parse(daemon.fusectl("jobs", "--output=json").stdout,
                             message("ListJobsResponse"))  # fmt: skip
    assert [process.job.name for process in jobs.processes] == ["train"]


def test_absent_numbers_are_absent_in_json_and_a_dash_in_the_table(daemon: Daemon) -> None:
    request = connect(daemon)
    for variant in (1, 2):
        window = message("Window", variant=variant, steps=3, first_step=4)
        measurement = message("Measurement", value=100 * variant, method=1, samples=3)
        window.launches_per_step.CopyFrom(measurement)
        daemon.job().call(
            "Profile/ReportWindow",
            message("ReportWindowRequest", instance_id=request.job.instance_id,
                    job_name="train", window=window),
            "ReportWindowResponse",
        )  # fmt: skip
    [savings] = json.loads(daemon.fusectl("report", "--output=json").stdout)["savings"]
    assert savings["launches_per_step_saved"] == -100
    assert "peak_bytes_saved" not in savings
    assert "step_ms_saved" not in savings
    table = daemon.fusectl("report", "--job=train").stdout
    assert "cupti, 3 steps" in table
    [step_time] = [line for line in table.splitlines() if "step time" in line]
    assert step_time.split()[2:] == ["-"] * 5
    assert daemon.fusectl("report", "--job=other").stdout == "no window has been reported\n"


def test_disable_shows_effects_and_is_seen_by_explain_overrides_and_audit(daemon: Daemon) -> None:
    connect(daemon)
    dry = daemon.fusectl("disable", "rms_norm", "--reason=slow", "--dry-run")
    assert dry.returncode == OK
    assert "nothing changed" in dry.stdout
    assert "kernel  native" in dry.stdout
    assert daemon.admin().audit() == []
    done = daemon.fusectl("disable", "rms_norm", "--reason=slow", "--author=eve", "--ttl=30m")
    assert done.returncode == OK
    assert "rms_norm disabled at scope node (revision " in done.stdout
    assert "Norm/00000001" in done.stdout
    overrides = daemon.fusectl("overrides").stdout
    assert "in 30 min" in overrides
    assert "eve" in overrides
    explained = daemon.fusectl("explain", "--job=train")
    assert explained.returncode == OK
    assert "slow" in explained.stdout
    assert "rejected" in explained.stdout
    assert "SetOverride" in daemon.fusectl("audit").stdout
    assert daemon.fusectl("reset", "rms_norm", "--reason=fixed").returncode == OK
    assert daemon.fusectl("overrides").stdout == "no override and no kill\n"


def test_kill_of_everything_and_back(daemon: Daemon) -> None:
    connect(daemon)
    assert "kernel  native" in daemon.fusectl("kill", "*", "--reason=incident").stdout
    assert "rms_norm" in daemon.fusectl("enable", "rms_norm", "--reason=try").stdout
    plan = daemon.job().call("Resolver/Resolve", resolve_request(), "ResolveResponse").plan
    assert plan.decisions[0].kind == 1  # An override does not bring a killed kernel back.
    assert daemon.fusectl("unkill", "*", "--reason=over").returncode == OK
    plan = daemon.job().call("Resolver/Resolve", resolve_request(), "ResolveResponse").plan
    assert plan.decisions[0].kind == 3


def test_wait_prints_the_step_of_each_process(daemon: Daemon) -> None:
    request = resolve_request()
    client = daemon.job()
    stream = client.watch(request)
    next(stream)

    def apply() -> None:
        plan = next(stream).plan
        client.call(
            "Resolver/AckPlan",
            message("AckPlanRequest", instance_id=request.job.instance_id, applied_step=17,
                    revision=plan.revision, store_id=plan.store_id),
            "AckPlanResponse",
        )  # fmt: skip

    training = threading.Thread(target=apply)
    training.start()
    done = daemon.fusectl("disable", "rms_norm", "--reason=x", "--wait=30s")
    training.join()
    assert done.returncode == OK, done.stderr
    assert "train rank 0: applied before step 17" in done.stdout
    late = daemon.fusectl("enable", "rms_norm", "--reason=x", "--wait=1s", "--output=json")
    assert late.returncode == 1
    assert "1 of 1 processes have not applied the change yet" in late.stderr
    assert set(json.loads(late.stdout)) == {"mutation", "jobs"}


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["disable", "rms_nrom", "--reason=x"], NOT_FOUND, "did you mean rms_norm?"),
        (["models", "lama"], NOT_FOUND, "did you mean llama?"),
        (["explain", "--job=trian"], NOT_FOUND, "did you mean train?"),
        (["unkill", "rms_norm", "--reason=x"], NOT_FOUND, "rms_norm"),
        (["disable", "rms_norm", "--reason=x", "--expect-revision=999"], REFUSED, "999"),
        (["disable", "*", "--reason=x"], INVALID, "*"),
        (["disable", "rms_norm", "--reason=x", "--job=bad name"], INVALID, "bad name"),
        (["disable", "rms_norm"], USAGE, "--reason"),
        (["disable", "--reason=x"], USAGE, "OPERATION"),
        (["disable", "rms_norm", "--reason=x", "--node", "--fleet"], USAGE, "exclude"),
        (["disabel", "rms_norm"], USAGE, "did you mean disable?"),
        (["status", "--ttl=3"], USAGE, "--ttl"),
        (["status", "--output=yaml"], USAGE, "yaml"),
        (["kill", "rms_norm", "--reason=x", "--ttl=soon"], USAGE, "soon"),
        ([], USAGE, "--help"),
    ],
)
def test_errors_have_their_exit_code_and_name_the_thing(
    daemon: Daemon, args: list[str], code: int, said: str
) -> None:
    connect(daemon)
    failed = daemon.fusectl(*args)
    assert failed.returncode == code, failed.stderr
    assert said in failed.stderr
    assert failed.stdout == ""
    assert failed.stderr.count("\n") == 1
    assert daemon.admin().audit() == []


def test_absent_and_frozen_daemons_are_unreachable(daemon: Daemon) -> None:
    daemon.signal(signal.SIGSTOP)
    frozen = daemon.fusectl("status", "--timeout=1s")
    daemon.signal(signal.SIGCONT)
    assert frozen.returncode == UNREACHABLE
    assert f"no answer from unix:{daemon.admin_socket} within 1s" in frozen.stderr
    daemon.kill()
    stale = daemon.fusectl("status", "--timeout=5s")
    assert stale.returncode == UNREACHABLE
    daemon.admin_socket.unlink()
    absent = daemon.fusectl("status")
    assert absent.returncode == UNREACHABLE
    assert f"no daemon at {daemon.admin_socket}" in absent.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_other_users_are_told_about_permission(
    idle_daemon: Daemon, short_folder: pathlib.Path
) -> None:
    short_folder.chmod(0o755)
    admin = short_folder / "run/admin.sock"
    idle_daemon.start(f"--admin_socket={admin}")
    refused = subprocess.run(
        [str(FUSECTL), "status"], user=65534, check=False, capture_output=True, text=True,
        env={"FUSEBOARD_ADMIN_ADDRESS": f"unix:{admin}"}, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert refused.returncode == PERMISSION
    assert "Permission denied" in refused.stderr


def test_help_of_every_command_lists_its_flags_and_exit_codes() -> None:
    def help_of(*args: str) -> str:
        return subprocess.run(
            [str(FUSECTL), *args, "--help"], capture_output=True, text=True, check=True
        ).stdout

    overview = help_of()
    for command in (
        "status", "models", "kernels", "jobs", "explain", "enable", "disable", "kill", "unkill",
        "overrides", "audit", "report",
    ):  # fmt: skip
        assert f"\n  {command}" in overview
        assert "Exit codes" in help_of(command)
    for flag in ("--reason", "--author", "--ttl", "--job", "--node", "--fleet", "--dry-run",
                 "--expect-revision", "--wait"):  # fmt: skip
        assert flag in help_of("disable")
