"""A daemon in Python that keeps the wire contract of `fuseboardd` and does what a test tells it to.

Runs inside a test (`FakeDaemon`) or as a program with the flags of `fuseboardd`, so that it can be
killed or stopped. What it decides is in `control.json` of its state folder, read again all the time;
each call it gets becomes a line of `calls.jsonl`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import signal
import threading
import time
from typing import Any

import grpc
from fuseboard import _messages

RULE_OPT_OUT, RULE_KILL, RULE_INCOMPATIBLE, RULE_OVERRIDE, RULE_CATALOGUE = 1, 2, 3, 6, 9
NATIVE, COMPOSITE, KERNEL = 1, 2, 3
SHA256 = "ab" * 32

DEFAULTS: dict[str, Any] = {
    "revision": 1,
    "store_id": "store-a",
    "kernels": {"Norm": "rms_norm"},  # Class name to operation.
    "off": {},  # Operation to [kind, rule].
    "version": "0.1.0",
    "liveness_seconds": 3.0,
    "mode": "normal",  # "garbage", "refuse", "bad_plan", "forgetful"
}


class FakeDaemon:
    """Serves on `socket` until `stop`."""

    def __init__(self, socket: str, state_dir: pathlib.Path) -> None:
        self._socket = socket
        self._state_dir = state_dir
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._stopping = threading.Event()
        self.last_used = time.monotonic()
        self.watchers = 0
        state_dir.mkdir(parents=True, exist_ok=True)
        if not self._control_path.exists():
            self.control()
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(16))
        for service, methods in (
            ("Resolver", ("Resolve", "Explain", "AckPlan", "ReportProgress")),
            ("Catalog", ("ListKernels",)),
            ("Profile", ("ReportWindow",)),
            ("Status", ("DescribeNode",)),
        ):
            handlers = {name: self._unary(name) for name in methods}
            if service == "Resolver":
                handlers["WatchPlan"] = grpc.unary_stream_rpc_method_handler(self._watch_plan)
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler("fuseboard.v1." + service, handlers),)
            )
        self._server.add_insecure_port("unix:" + socket)

    def start(self) -> FakeDaemon:
        self._server.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        self._server.stop(0).wait()

    # ---- What a test says and sees ----

    @property
    def address(self) -> str:
        return "unix:" + self._socket

    @property
    def _control_path(self) -> pathlib.Path:
        return self._state_dir / "control.json"

    def control(self, **changes: Any) -> None:
        """Changes what the daemon decides, as one step."""
        write_control(self._state_dir, **changes)

    def calls(self, method: str) -> list[dict[str, Any]]:
        return read_calls(self._state_dir, method)

    # ---- Calls ----

    def _unary(self, name: str) -> Any:
        method = getattr(self, "_" + name)

        def handle(serialized: bytes, context: Any) -> bytes:
            self.last_used = time.monotonic()
            request = _messages.message(name + "Request").FromString(serialized)
            self._record(name, request)
            mode = self._read()["mode"]
            if mode == "garbage":
                return b"\xff\xfe\xfd" * 7
            if mode == "refuse":
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "sites[0].count is 0, want 1")
            return method(request, context).SerializeToString()

        return grpc.unary_unary_rpc_method_handler(handle)

    def _Resolve(self, request: Any, context: Any) -> Any:
        self._know(request.job.instance_id)
        control = self._read()
        return _messages.message("ResolveResponse")(
            plan=plan_for(request, control), liveness_seconds=control["liveness_seconds"]
        )

    def _watch_plan(self, serialized: bytes, context: Any) -> Any:
        request = _messages.message("WatchPlanRequest").FromString(serialized)
        self._record("WatchPlan", request)
        sent = (request.known_store_id, request.known_revision)
        self.watchers += 1
        try:
            while context.is_active() and not self._stopping.is_set():
                control = self._read()
                if control["mode"] == "garbage":
                    yield b"\xff\xfe\xfd" * 7
                    return
                if control["mode"] != "forgetful":
                    self._know(request.request.job.instance_id)
                now = (control["store_id"], control["revision"])
                if now != sent:
                    sent = now
                    plan = plan_for(request.request, control)
                    yield _messages.message("WatchPlanResponse")(plan=plan).SerializeToString()
                time.sleep(0.02)
        finally:
            self.watchers -= 1
            self.last_used = time.monotonic()

    def _Explain(self, request: Any, context: Any) -> Any:
        control = self._read()
        plan = plan_for(request.request, control)
        return _messages.message("ExplainResponse")(
            plan=plan,
            sites=[
                _messages.message("SiteExplanation")(
                    site_id=d.site_id,
                    candidates=[
                        _messages.message("Candidate")(
                            catalog_entry=f"{operation}/fake",
                            operation=operation,
                            version=control["version"],
                            accepted=d.kind == KERNEL and d.operation == operation,
                            reason="fits" if d.operation == operation else "another fingerprint",
                            rule=RULE_CATALOGUE,
                        )
                        for operation in sorted(set(control["kernels"].values()))
                    ],
                )
                for d in plan.decisions
            ],
            request=request.request,
        )

    def _AckPlan(self, request: Any, context: Any) -> Any:
        if request.instance_id not in self._known:
            context.abort(grpc.StatusCode.NOT_FOUND, "unknown instance")
        return _messages.message("AckPlanResponse")()

    def _ReportProgress(self, request: Any, context: Any) -> Any:
        unknown = request.instance_id not in self._known
        return _messages.message("ReportProgressResponse")(unknown_instance=unknown)

    def _ReportWindow(self, request: Any, context: Any) -> Any:
        return _messages.message("ReportWindowResponse")()

    def _ListKernels(self, request: Any, context: Any) -> Any:
        status = _messages.message("KernelStatus")
        names = sorted(set(self._read()["kernels"].values()) | {"swiglu"})
        return _messages.message("ListKernelsResponse")(
            kernels=[status(operation=n) for n in names]
        )

    def _DescribeNode(self, request: Any, context: Any) -> Any:
        return _messages.message("DescribeNodeResponse")(
            version="0.1.0", host="fake", pid=os.getpid()
        )

    def _know(self, instance_id: str) -> None:
        self._known.add(instance_id)

    def _read(self) -> dict[str, Any]:
        return json.loads(self._control_path.read_text())

    def _record(self, method: str, request: Any) -> None:
        from google.protobuf import json_format

        fields = json_format.MessageToDict(request, preserving_proto_field_name=True)
        with self._lock, open(self._state_dir / "calls.jsonl", "a") as calls:
            calls.write(json.dumps({"method": method, "at": time.time(), **fields}) + "\n")


def write_control(state_dir: pathlib.Path, **changes: Any) -> None:
    path = state_dir / "control.json"
    before = json.loads(path.read_text()) if path.exists() else DEFAULTS
    unknown = set(changes) - set(DEFAULTS)
    assert not unknown, unknown
    state_dir.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps({**before, **changes}))
    temporary.replace(path)


def read_calls(state_dir: pathlib.Path, method: str) -> list[dict[str, Any]]:
    path = state_dir / "calls.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [call for call in map(json.loads, lines) if call["method"] == method]


def plan_for(request: Any, control: dict[str, Any]) -> Any:
    """The plan that `control` makes of a ResolveRequest."""
    decisions = [_decide(site, request, control) for site in request.sites]
    if control["mode"] == "bad_plan":
        decisions = decisions[1:]
    artifact = _messages.message("Artifact")
    return _messages.message("Plan")(
        revision=control["revision"],
        store_id=control["store_id"],
        decisions=decisions,
        artifacts=[
            artifact(
                kind=1, name=name, version=control["version"], path=f"/{name}.so", sha256=SHA256
            )
            for name in sorted({d.operation for d in decisions if d.kind == KERNEL})
        ],
    )


def _decide(site: Any, request: Any, control: dict[str, Any]) -> Any:
    operation = control["kernels"].get(site.qualified_name.rpartition(".")[2], "")
    kind, rule, reason = KERNEL, RULE_CATALOGUE, "on by default"
    if not operation:
        kind, rule, reason = NATIVE, RULE_INCOMPATIBLE, "unknown fingerprint"
    elif operation in request.opt_out or "*" in request.opt_out:
        kind, rule, reason = NATIVE, RULE_OPT_OUT, "the process opted out"
    elif operation in control["off"]:
        kind, rule = control["off"][operation]
        reason = "switched off by a test"
    runs = kind == KERNEL
    return _messages.message("Decision")(
        site_id=site.site_id,
        kind=kind,
        operation=operation,
        version=control["version"] if runs else "",
        sha256=SHA256 if runs else "",
        adapter=operation if kind != NATIVE else "",
        reason=reason,
        rule=rule,
        catalog_entry=f"{operation}/fake" if operation else "",
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("home", "state_dir", "job_socket", "admin_socket", "http_address", "config"):
        parser.add_argument("--" + flag, default="")
    parser.add_argument("--idle_exit_seconds", type=float, default=0.0)
    parser.add_argument("--ready_fd", type=int, default=-1)
    flags = parser.parse_args()
    state_dir = pathlib.Path(flags.state_dir)
    daemon = FakeDaemon(flags.job_socket, state_dir).start()
    with open(state_dir / "starts.log", "a") as starts:
        starts.write(f"{os.getpid()}\n")
    if flags.ready_fd >= 0:
        ready = {"job_socket": flags.job_socket, "pid": os.getpid(), "version": "0.1.0"}
        os.write(flags.ready_fd, (json.dumps(ready) + "\n").encode())
        os.close(flags.ready_fd)
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ending.set())
    while not ending.wait(0.05):
        idle = time.monotonic() - daemon.last_used
        if flags.idle_exit_seconds and not daemon.watchers and idle > flags.idle_exit_seconds:
            break
    daemon.stop()
    os.unlink(flags.job_socket)


if __name__ == "__main__":
    main()
