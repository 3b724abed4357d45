"""Mutations: durable before the reply, one audit record each, refused by revision and by socket."""

from __future__ import annotations

import concurrent.futures

import grpc
import pytest
from daemon_harness import Daemon, message, resolve_request


def error_info(error: grpc.RpcError):
    """The ErrorInfo of a failed call."""
    details = dict(error.trailing_metadata())["grpc-status-details-bin"]
    status = message("google.rpc.Status")
    status.MergeFromString(details)
    assert status.code == error.code().value[0]
    assert status.message == error.details()
    info = message("google.rpc.ErrorInfo")
    info.MergeFromString(status.details[0].value)
    assert info.domain == "fuseboard.dev"
    return info


def test_override_survives_sigkill_right_after_the_reply(daemon: Daemon) -> None:
    revision = daemon.admin().set_override(False, reason="slow", author="alice").revision
    daemon.kill()
    daemon.start()
    admin = daemon.admin()
    listed = admin.call(
        "Control/ListOverrides", message("ListOverridesRequest"), "ListOverridesResponse"
    )
    assert listed.revision == revision
    [override] = listed.overrides
    assert (override.operation, override.enabled) == ("rms_norm", False)
    assert (override.reason, override.author) == ("slow", "alice")
    plan = daemon.job().call("Resolver/Resolve", resolve_request(), "ResolveResponse").plan
    assert plan.decisions[0].kind == 1
    assert "alice" in plan.decisions[0].reason


def test_of_racing_mutations_with_one_expected_revision_one_wins(daemon: Daemon) -> None:
    revision = daemon.admin().describe().revision

    def race(number: int) -> grpc.StatusCode:
        try:
            daemon.admin().set_override(False, expected_revision=revision, author=f"racer {number}")
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(race, range(8)))
    assert sorted(code.name for code in codes) == ["ABORTED"] * 7 + ["OK"]
    assert len(daemon.admin().audit()) == 1
    assert daemon.admin().describe().revision == revision + 1


def test_revision_mismatch_names_both_revisions(daemon: Daemon) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        daemon.admin().set_override(False, expected_revision=12345)
    assert refused.value.code() == grpc.StatusCode.ABORTED
    assert "12345" in refused.value.details()
    assert str(daemon.admin().describe().revision) in refused.value.details()
    assert error_info(refused.value).reason == "REVISION_MISMATCH"


def test_each_accepted_mutation_has_exactly_one_audit_record(daemon: Daemon) -> None:
    admin = daemon.admin()
    scope = message("Scope", kind=2)
    mutation = message("Mutation", reason="why", author="bob")
    admin.set_override(False, reason="why", author="bob")
    admin.set_override(True, reason="why", author="bob", dry_run=True)
    for method, request in (
        ("DeleteOverride", "DeleteOverrideRequest"),
        ("SetKill", "SetKillRequest"),
        ("DeleteKill", "DeleteKillRequest"),
    ):
        admin.call(
            f"Control/{method}",
            message(request, operation="rms_norm", scope=scope, mutation=mutation),
            "MutationResponse",
        )
    with pytest.raises(grpc.RpcError):
        admin.set_override(False, reason="")
    records = admin.audit()
    assert [record.action for record in records] == [
        "DeleteKill", "SetKill", "DeleteOverride", "SetOverride",
    ]  # fmt: skip
    assert {(record.author, record.reason) for record in records} == {("bob", "why")}
    assert len({record.revision for record in records}) == 4


def test_job_socket_cannot_change_anything(daemon: Daemon) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        daemon.job().call("Control/ListKills", message("ListKillsRequest"), "ListKillsResponse")
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_reflection_lists_control_on_the_admin_socket_only(daemon: Daemon) -> None:
    def services(path) -> bytes:
        # ServerReflectionRequest{list_services: ""} by hand; the names stand in the reply as text.
        channel = grpc.insecure_channel(
            f"unix:{path}", options=[("grpc.use_local_subchannel_pool", 1)]
        )
        call = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )
        return next(call(iter([b"\x3a\x00"]), timeout=30, wait_for_ready=True))

    assert b"fuseboard.v1.Resolver" in services(daemon.job_socket)
    assert b"fuseboard.v1.Control" not in services(daemon.job_socket)
    assert b"fuseboard.v1.Control" in services(daemon.admin_socket)


@pytest.mark.parametrize(
    ("change", "code", "reason", "named"),
    [
        (lambda r: r.job.ClearField("name"), "INVALID_ARGUMENT", "BAD_REQUEST", "job.name"),
        (lambda r: r.ClearField("job"), "INVALID_ARGUMENT", "BAD_REQUEST", "job"),
        (lambda r: setattr(r.job, "rank", 7), "INVALID_ARGUMENT", "BAD_REQUEST", "rank"),
        (lambda r: setattr(r.sites[0], "count", 0), "INVALID_ARGUMENT", "BAD_REQUEST", "count"),
        (
            lambda r: r.sites.extend([r.sites[0]] * 4096),
            "RESOURCE_EXHAUSTED", "TOO_LARGE", "sites",
        ),
        (
            lambda r: [r.sites[0].children.update({f"c{i}": "x"}) for i in range(65)],
            "RESOURCE_EXHAUSTED", "TOO_LARGE", "children",
        ),
    ],
)  # fmt: skip
def test_malformed_plan_request_is_refused_by_field(
    daemon: Daemon, change, code: str, reason: str, named: str
) -> None:
    request = resolve_request()
    change(request)
    client = daemon.job()
    with pytest.raises(grpc.RpcError) as refused:
        client.call("Resolver/Resolve", request, "ResolveResponse")
    with pytest.raises(grpc.RpcError) as watch_refused:
        next(client.watch(request))
    for error in (refused.value, watch_refused.value):
        assert error.code().name == code
        assert named in error.details()
        assert error_info(error).reason == reason
    jobs = client.call("Status/ListJobs", message("ListJobsRequest"), "ListJobsResponse")
    assert len(jobs.processes) == 0


def test_request_beyond_the_configured_size_is_refused(idle_daemon: Daemon) -> None:
    idle_daemon.start("--max_request_bytes=8192")
    request = resolve_request()
    request.model_type = "x" * 10000
    with pytest.raises(grpc.RpcError) as refused:
        idle_daemon.job().call("Resolver/Resolve", request, "ResolveResponse")
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    idle_daemon.job().call("Resolver/Resolve", resolve_request(), "ResolveResponse")
