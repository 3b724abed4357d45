"""WatchPlan: live switching, resume, idleness, drain; and what bad clients cannot do."""

from __future__ import annotations

import signal
import socket
import time

import grpc
import pytest
from daemon_harness import Daemon, eventually, message, resolve_request

KERNEL = 3
NATIVE = 1
NOT_SERVING = 2


def test_watch_gets_the_plan_and_every_switch(daemon: Daemon) -> None:
    stream = daemon.job().watch(resolve_request())
    first = next(stream).plan
    assert [decision.kind for decision in first.decisions] == [KERNEL]
    assert {artifact.name for artifact in first.artifacts} >= {"rms_norm"}
    reply = daemon.admin().set_override(False)
    second = next(stream).plan
    assert [decision.kind for decision in second.decisions] == [NATIVE]
    assert second.revision == reply.revision > first.revision
    assert "test" in second.decisions[0].reason


def test_slow_reader_gets_the_newest_plan_not_a_queue(daemon: Daemon) -> None:
    # A window of one small message: the daemon cannot write ahead of what is read.
    stream = daemon.job(("grpc.http2.lookahead_bytes", 1), ("grpc.http2.bdp_probe", 0)).watch(
        resolve_request()
    )
    next(stream)
    last = 0
    for i in range(200):
        last = daemon.admin().set_override(i % 2 == 0).revision
    received = 0
    for response in stream:
        received += 1
        if response.plan.revision == last:
            break
    assert received < 200
    assert [decision.kind for decision in response.plan.decisions] == [NATIVE]


def test_idle_stream_stays_open_under_frequent_pings(daemon: Daemon) -> None:
    # gRPC's default answers the third ping without data in between with GOAWAY "too_many_pings".
    client = daemon.job(
        ("grpc.keepalive_time_ms", 250),
        ("grpc.keepalive_timeout_ms", 20000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_time_between_pings_ms", 125),
    )
    stream = client.watch(resolve_request())
    next(stream)
    time.sleep(3)
    revision = daemon.admin().set_override(False).revision
    assert next(stream).plan.revision == revision


def test_restart_resumes_without_repeating_a_known_plan(daemon: Daemon) -> None:
    request = resolve_request()
    plan = next(daemon.job().watch(request)).plan
    daemon.kill()
    daemon.start()
    stream = daemon.job().watch(request, plan.revision, plan.store_id)
    eventually(lambda: daemon.metric("fuseboard_plan_watchers") == 1)
    revision = daemon.admin().set_override(False).revision
    # The first message after the restart is already the new plan.
    assert next(stream).plan.revision == revision > plan.revision


def test_plan_of_another_store_is_sent_again(daemon: Daemon) -> None:
    request = resolve_request()
    plan = next(daemon.job().watch(request)).plan
    assert next(daemon.job().watch(request, plan.revision, "another")).plan == plan


def test_cancelled_streams_leave_nothing_behind(daemon: Daemon) -> None:
    streams = [daemon.job().watch(resolve_request(rank=rank)) for rank in range(8)]
    for stream in streams:
        next(stream)
    assert daemon.metric("fuseboard_plan_watchers") == 8
    for stream in streams:
        stream.cancel()
    assert eventually(lambda: daemon.metric("fuseboard_plan_watchers") == 0)


def test_hundred_idle_streams_cost_no_thread_each(daemon: Daemon) -> None:
    def threads() -> int:
        with open(f"/proc/{daemon.process.pid}/status") as status:
            return int(status.read().split("Threads:")[1].split()[0])

    client = daemon.job()
    next(client.watch(resolve_request(rank=0)))
    before = threads()
    streams = [client.watch(resolve_request(rank=rank)) for rank in range(100)]
    for stream in streams:
        next(stream)
    # gRPC's own pool may grow by a few while it works.
    assert threads() < before + 32


def test_drain_ends_streams_with_unavailable_and_then_exits(idle_daemon: Daemon) -> None:
    # A health watch never ends by itself, so it holds the drain until its deadline.
    idle_daemon.start("--drain_seconds=4")
    stream = idle_daemon.job().watch(resolve_request())
    next(stream)
    health = idle_daemon.job().stream(
        "grpc.health.v1.Health/Watch",
        message("grpc.health.v1.HealthCheckRequest"),
        "grpc.health.v1.HealthCheckResponse",
    )
    assert next(health).status == 1
    assert idle_daemon.http("/readyz") == (200, "ready\n")
    idle_daemon.signal(signal.SIGTERM)
    with pytest.raises(grpc.RpcError) as ended:
        next(stream)
    assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "about to end" in ended.value.details()
    assert next(health).status == NOT_SERVING
    assert idle_daemon.http("/readyz") == (503, "draining\n")
    assert idle_daemon.http("/livez") == (200, "live\n")
    assert idle_daemon.wait() == 0


def test_garbage_on_the_sockets_harms_nobody_else(daemon: Daemon) -> None:
    stream = daemon.job().watch(resolve_request())
    next(stream)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for path in (daemon.job_socket, daemon.admin_socket):
        for garbage in (b"\x00" * 4096, bytes(range(256)) * 64, preface + b"\xff" * 65536):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.settimeout(10)
                raw.connect(str(path))
                try:
                    raw.sendall(garbage)
                    while raw.recv(4096):
                        pass
                except OSError:
                    pass  # Cut off while sending or kept waiting: both fine.
    revision = daemon.admin().set_override(False).revision
    assert next(stream).plan.revision == revision


def test_bytes_that_are_no_message_fail_that_call_only(daemon: Daemon) -> None:
    channel = grpc.insecure_channel(f"unix:{daemon.job_socket}")
    for method in ("Resolve", "AckPlan"):
        with pytest.raises(grpc.RpcError):
            channel.unary_unary(f"/fuseboard.v1.Resolver/{method}")(b"\xff" * 64, timeout=30)
    daemon.job().call("Resolver/Resolve", resolve_request(), "ResolveResponse")


def test_frozen_daemon_costs_a_stream_nothing(daemon: Daemon) -> None:
    stream = daemon.job().watch(resolve_request())
    next(stream)
    daemon.signal(signal.SIGSTOP)
    time.sleep(1)
    daemon.signal(signal.SIGCONT)
    revision = daemon.admin().set_override(False).revision
    assert next(stream).plan.revision == revision
