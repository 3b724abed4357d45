"""/metrics: valid by promtool's judgement, true, bounded, and silent about what is not known."""

from __future__ import annotations

import shutil
import subprocess

import grpc
import pytest
from daemon_harness import Client, Daemon, eventually, message, resolve_request

CUPTI = 1
ALLOCATOR = 3


def report_progress(client: Client, request, fused: int, fallbacks: dict[str, int]) -> None:
    client.call(
        "Resolver/ReportProgress",
        message(
            "ReportProgressRequest",
            instance_id=request.job.instance_id,
            step=10,
            counters=[
                message(
                    "OperationCounter",
                    operation="rms_norm",
                    fused_calls=fused,
                    fallback_calls=fallbacks,
                )
            ],
        ),
        "ReportProgressResponse",
    )


def report_window(
    client: Client, request, variant: int, samples: int = 3, **measured: float
) -> None:
    window = message("Window", variant=variant, steps=3)
    for name, value in measured.items():
        method = ALLOCATOR if name == "peak_bytes" else CUPTI
        getattr(window, name).CopyFrom(
            message("Measurement", value=value, method=method, samples=samples)
        )
    client.call(
        "Profile/ReportWindow",
        message(
            "ReportWindowRequest",
            instance_id=request.job.instance_id,
            job_name=request.job.name,
            window=window,
        ),
        "ReportWindowResponse",
    )


def test_page_of_a_busy_daemon_passes_promtool(daemon: Daemon) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool (package prometheus) is not installed"
    client = daemon.job()
    request = resolve_request(job="a/b:c.d-e")
    client.call("Resolver/Resolve", request, "ResolveResponse")
    report_progress(client, request, 5, {'odd "reason" \\ with\nbreaks': 2})
    report_window(client, request, 1, launches_per_step=100, peak_bytes=4096, step_ms=3)
    report_window(client, request, 2, launches_per_step=60, peak_bytes=1024, step_ms=2)
    daemon.admin().set_override(False)
    page = daemon.http("/metrics")[1]
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=page, check=False, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "fuseboard_saved_step_seconds" in page


def test_counts_follow_what_happened(daemon: Daemon) -> None:
    client = daemon.job()
    request = resolve_request()
    assert daemon.metric('fuseboard_resolves_total{result="kernel"}') is None
    client.call("Resolver/Resolve", request, "ResolveResponse")
    with pytest.raises(grpc.RpcError):
        client.call("Resolver/Resolve", message("ResolveRequest"), "ResolveResponse")
    assert daemon.metric('fuseboard_resolves_total{result="kernel"}') == 1
    assert daemon.metric('fuseboard_resolves_total{result="rejected"}') == 1
    calls = 'fuseboard_rpc_duration_seconds_count{method="Resolver/Resolve",code="%s"}'
    assert daemon.metric(calls % "OK") == 1
    assert daemon.metric(calls % "INVALID_ARGUMENT") == 1
    sites = 'fuseboard_sites{operation="rms_norm",decision="%s",rule="%s"}'
    assert daemon.metric(sites % ("kernel", "catalogue")) == 2
    revision = daemon.admin().set_override(False).revision
    assert daemon.metric('fuseboard_overrides_active{state="off"}') == 1
    store_id = daemon.admin().describe().store_id
    assert daemon.metric(f'fuseboard_revision{{store_id="{store_id}"}}') == revision
    for error in ("", "cannot bind"):
        client.call(
            "Resolver/AckPlan",
            message(
                "AckPlanRequest",
                instance_id=request.job.instance_id,
                revision=revision,
                store_id=store_id,
                error=error,
            ),
            "AckPlanResponse",
        )
    assert daemon.metric('fuseboard_plan_acks_total{result="applied"}') == 1
    assert daemon.metric('fuseboard_plan_acks_total{result="refused"}') == 1


def test_call_counters_are_sums_that_never_shrink(daemon: Daemon) -> None:
    client = daemon.job()
    first, second = resolve_request(rank=0), resolve_request(rank=1)
    for request in (first, second):
        client.call("Resolver/Resolve", request, "ResolveResponse")
    report_progress(client, first, 10, {"small": 1})
    report_progress(client, first, 15, {"small": 3})
    report_progress(client, second, 100, {"small": 1})
    client.call(
        "Resolver/ReportProgress",
        message("ReportProgressRequest", instance_id=second.job.instance_id, leaving=True),
        "ReportProgressResponse",
    )
    assert daemon.metric('fuseboard_fused_calls_total{operation="rms_norm"}') == 115
    name = 'fuseboard_fallback_calls_total{operation="rms_norm",reason="small"}'
    assert daemon.metric(name) == 4


def test_labels_stay_few_whatever_a_process_reports(daemon: Daemon) -> None:
    client = daemon.job()
    request = resolve_request()
    client.call("Resolver/Resolve", request, "ResolveResponse")
    report_progress(client, request, 1, {f"reason {i}": 1 for i in range(100)})
    page = daemon.http("/metrics")[1]
    samples = [line for line in page.splitlines() if line.startswith("fuseboard_fallback_calls")]
    assert len(samples) <= 17
    assert sum(float(line.rsplit(" ", 1)[1]) for line in samples) == 100


def test_savings_are_absent_until_both_sides_are_measured(daemon: Daemon) -> None:
    client = daemon.job()
    request = resolve_request()
    client.call("Resolver/Resolve", request, "ResolveResponse")
    report_window(client, request, 1, launches_per_step=100, step_ms=3)
    page = daemon.http("/metrics")[1]
    assert "fuseboard_saved" not in page
    assert "fuseboard_saving_samples{" not in page
    report_window(client, request, 2, samples=5, launches_per_step=60)
    launches = 'fuseboard_saved_launches_per_step{job="train",method="cupti"}'
    assert daemon.metric(launches) == 40
    samples = 'fuseboard_saving_samples{job="train",quantity="launches_per_step",side="%s"}'
    assert daemon.metric(samples % "native") == 3
    assert daemon.metric(samples % "fused") == 5
    page = daemon.http("/metrics")[1]
    assert "fuseboard_saved_step_seconds" not in page
    assert "fuseboard_saved_peak_bytes" not in page
    # As many as quantities that are saved, on two sides each.
    assert page.count("fuseboard_saving_samples{") == 2


def test_damaged_library_is_counted_and_named(daemon: Daemon) -> None:
    library = daemon.home / "lib/fuseboard/kernels/rms_norm.so"
    library.write_bytes(b"tampered with: " + library.read_bytes()[15:])
    name = 'fuseboard_library_errors{library="rms_norm"}'
    assert eventually(lambda: daemon.metric(name) == 1)
    plan = daemon.job().call("Resolver/Resolve", resolve_request(), "ResolveResponse").plan
    assert plan.decisions[0].kind == 1
    assert "digest" in plan.decisions[0].reason or "sha256" in plan.decisions[0].reason


def test_http_answers_only_what_it_has(daemon: Daemon) -> None:
    assert daemon.http("/livez") == (200, "live\n")
    assert daemon.http("/readyz") == (200, "ready\n")
    assert daemon.http("/other")[0] == 404
    posted = subprocess.run(
        ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-d", "x",
         f"http://{daemon.ready['http_address']}/metrics"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert posted.stdout == "405"


def test_empty_http_address_serves_no_http(idle_daemon: Daemon) -> None:
    idle_daemon.start("--http_address=")
    assert idle_daemon.ready["http_address"] == ""
    assert idle_daemon.admin().describe().http_address == ""
