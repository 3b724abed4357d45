"""Runs the real fuseboardd and fusectl in folders of their own, and talks to them by gRPC.

Messages are built at run time from the descriptor set of the build, as clients do. The installation
that the daemon serves is made up here (a catalogue of one entry, a library of a few bytes): the daemon
never loads a library, so only manifest and digest must be right.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

ROOT = pathlib.Path(__file__).resolve().parents[2]
STAGE = pathlib.Path(os.environ.get("FUSEBOARD_HOME", ROOT / "build/dev/stage"))
DAEMON = STAGE / "bin/fuseboardd"
FUSECTL = STAGE / "bin/fusectl"
# Slow machines and sanitizers: no test waits this long when all is well.
PATIENCE_SECONDS = 60

# Configuration files that are refused, at a start and at a reload alike, and what the refusal names.
# A number is the size of a file of zeros: it costs nothing, unless somebody reads it.
BAD_CONFIGS: list[tuple[str | int, str]] = [
    ("drain_seconds: 301", "drain_seconds is 301, want 0 to 300"),
    ("drain_seconds: -1", "drain_seconds is -1, want 0 to 300"),
    ("no_such_field: 1", "no_such_field"),
    ('drain_seconds: "x"', "config.textpb:1:"),
    ("catalog_dirs: 3", "config.textpb:1:"),
    ("drain_seconds: ", "config.textpb:"),
    ("state_dir: {", "config.textpb:1:"),
    ("drain_seconds: 1 drain_seconds: 2", "drain_seconds"),
    (100 << 20, "config.textpb has 104857600 bytes, want at most 1048576"),
]

FINGERPRINT = "fb1:" + "a" * 64
CATALOG = f"""
entries {{
  id: "rms_norm/test"
  operation: "rms_norm"
  role: "module"
  fingerprints {{ value: "{FINGERPRINT}" source: "test" }}
  adapter: "rms_norm"
  fallback: DECISION_KIND_NATIVE
  default_enabled: true
  description: "norm of the tests"
}}
models {{ model_type: "llama" verified_with: "test" entries: "rms_norm/test" }}
"""
MANIFESTS = {
    "kernels/rms_norm": 'kind: ARTIFACT_KIND_KERNEL version: "1.2.3" abi_version: 1 '
    'dtypes: "float32" device_types: "cpu" backward: true compile_safe: true',
    "torch/fuseboard_torch": 'kind: ARTIFACT_KIND_BINDING version: "1.2.3" abi_version: 1 '
    'torch_version: "2.11.0" device_types: "cpu"',
}


@functools.cache
def _messages() -> Callable[[str], Any]:
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet()
    files.ParseFromString((STAGE / "share/fuseboard/fuseboard.binpb").read_bytes())
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    pool.AddSerializedFile(_health_file().SerializeToString())
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _health_file() -> descriptor_pb2.FileDescriptorProto:
    """health.proto, which nobody ships to clients: the fields that the tests need."""
    file = descriptor_pb2.FileDescriptorProto(
        name="health.proto", package="grpc.health.v1", syntax="proto3"
    )
    field = descriptor_pb2.FieldDescriptorProto
    request = file.message_type.add(name="HealthCheckRequest")
    request.field.add(name="service", number=1, type=field.TYPE_STRING, label=1)
    response = file.message_type.add(name="HealthCheckResponse")
    response.field.add(name="status", number=1, type=field.TYPE_INT32, label=1)  # 1: SERVING
    return file


def message(name: str, /, **fields: Any) -> Any:
    """A message of fuseboard.v1, or of any package if the name has a dot."""
    return _messages()(name if "." in name else f"fuseboard.v1.{name}")(**fields)


def make_home(folder: pathlib.Path) -> pathlib.Path:
    """An installation with one catalogue entry, one kernel library and one binding."""
    catalog = folder / "share/fuseboard/catalog"
    catalog.mkdir(parents=True)
    (catalog / "test.textpb").write_text(CATALOG)
    for path, manifest in MANIFESTS.items():
        library = folder / "lib/fuseboard" / f"{path}.so"
        library.parent.mkdir(parents=True, exist_ok=True)
        library.write_bytes(b"never mapped: " + path.encode())
        digest = hashlib.sha256(library.read_bytes()).hexdigest()
        library.with_suffix(".textpb").write_text(
            f'name: "{library.stem}" {manifest} sha256: "{digest}" '
            f"size_bytes: {library.stat().st_size}\n"
        )
    return folder


def write_config(file: pathlib.Path, content: str | int) -> None:
    """A file with this text, or with this many zeros that take no room on the disk."""
    with open(file, "wb") as out:
        if isinstance(content, int):
            out.truncate(content)
        else:
            out.write(content.encode())


def resolve_request(job: str = "train", rank: int = 0, **fields: Any) -> Any:
    """A process on the CPU with two norms."""
    return message(
        "ResolveRequest",
        environment=message(
            "Environment", torch_version="2.11.0", device_type="cpu", client_version="0.1.0"
        ),
        job=message(
            "Job", name=job, rank=rank, world_size=rank + 1, instance_id=str(uuid.uuid4()), pid=1
        ),
        sites=[
            message(
                "Site",
                site_id="Norm/00000001",
                role="module",
                qualified_name="models.Norm",
                fingerprint=FINGERPRINT,
                parameters={"weight": message("ParameterShape", shape=[8], dtype="float32")},
                count=2,
            )
        ],
        model_type="llama",
        **fields,
    )


class Client:
    """Calls over one channel."""

    def __init__(self, socket: pathlib.Path, options: tuple[tuple[str, Any], ...] = ()) -> None:
        # A channel of its own: grpcio shares connections between equal ones.
        self._channel = grpc.insecure_channel(
            f"unix:{socket}", options=(("grpc.use_local_subchannel_pool", 1), *options)
        )

    def call(self, method: str, request: Any, response: str) -> Any:
        """`method` as "Service/Method"; errors are grpc.RpcError."""
        return self._stub(self._channel.unary_unary, method, response)(
            request, timeout=PATIENCE_SECONDS, wait_for_ready=True
        )

    def stream(self, method: str, request: Any, response: str) -> Any:
        """A server stream without a deadline."""
        return self._stub(self._channel.unary_stream, method, response)(
            request, wait_for_ready=True
        )

    def _stub(self, kind: Callable[..., Any], method: str, response: str) -> Any:
        package = "" if method.startswith("grpc.") else "fuseboard.v1."
        return kind(
            f"/{package}{method}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=type(message(response)).FromString,
        )

    def watch(self, request: Any, revision: int = 0, store_id: str = "") -> Any:
        return self.stream(
            "Resolver/WatchPlan",
            message(
                "WatchPlanRequest",
                request=request,
                known_revision=revision,
                known_store_id=store_id,
            ),
            "WatchPlanResponse",
        )

    def describe(self) -> Any:
        return self.call(
            "Status/DescribeNode", message("DescribeNodeRequest"), "DescribeNodeResponse"
        )

    def set_override(self, enabled: bool, **mutation: Any) -> Any:
        return self.call(
            "Control/SetOverride",
            message(
                "SetOverrideRequest",
                operation="rms_norm",
                scope=message("Scope", kind=2),
                enabled=enabled,
                mutation=message("Mutation", **{"reason": "test", "author": "tester", **mutation}),
            ),
            "MutationResponse",
        )

    def audit(self) -> list[Any]:
        """Records of operators' mutations, newest first."""
        reply = self.call("Control/ListAudit", message("ListAuditRequest"), "ListAuditResponse")
        return [record for record in reply.records if record.action != "NodeChange"]


class Daemon:
    """One fuseboardd with its own state folder. Started by `start`."""

    def __init__(self, home: pathlib.Path, state: pathlib.Path) -> None:
        self.home = home
        self.state = state
        self.job_socket = state / "job.sock"
        self.admin_socket = state / "admin.sock"
        self.log_path = state.with_name(state.name + ".log")
        self.ready: dict[str, Any] = {}
        self.process: subprocess.Popen[bytes] | None = None

    def command(self, *flags: str) -> list[str]:
        return [
            str(DAEMON), f"--home={self.home}", f"--state_dir={self.state}",
            "--http_address=127.0.0.1:0", f"--deny_file={self.state}.deny", *flags,
        ]  # fmt: skip

    def launch(self, *flags: str, **popen: Any) -> tuple[subprocess.Popen[bytes], int]:
        """Starts it and returns it with the reading end of its ready_fd."""
        read_end, write_end = os.pipe()
        with open(self.log_path, "ab") as log:
            process = subprocess.Popen(
                self.command(*flags, f"--ready_fd={write_end}"),
                pass_fds=[write_end],
                stderr=log,
                **popen,
            )
        os.close(write_end)
        return process, read_end

    def start(self, *flags: str) -> Daemon:
        self.process, read_end = self.launch(*flags)
        with os.fdopen(read_end) as ready:
            line = ready.readline()
        assert line, f"fuseboardd did not start: {self.log()}"
        self.ready = json.loads(line)
        return self

    def log(self) -> str:
        return self.log_path.read_text()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE_SECONDS)

    def terminate(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def job(self, *options: tuple[str, Any]) -> Client:
        return Client(self.job_socket, options)

    def admin(self) -> Client:
        return Client(self.admin_socket)

    def http(self, path: str) -> tuple[int, str]:
        """Status code and body."""
        reply = subprocess.run(
            ["curl", "-s", "-w", "\n%{http_code}", f"http://{self.ready['http_address']}{path}"],
            check=False, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        body, _, code = reply.stdout.rpartition("\n")
        return int(code), body

    def metric(self, name_and_labels: str) -> float | None:
        """The value of one sample, or None if the page does not have it."""
        pattern = rf"^{re.escape(name_and_labels)} (\S+)$"
        match = re.search(pattern, self.http("/metrics")[1], re.MULTILINE)
        return None if match is None else float(match[1])

    def fusectl(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(FUSECTL), f"--address=unix:{self.admin_socket}", "--timeout=30s", *args],
            check=False, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
        )  # fmt: skip

    @contextlib.contextmanager
    def ended_at_last(self) -> Iterator[Daemon]:
        try:
            yield self
        finally:
            if self.process is not None and self.process.poll() is None:
                self.process.kill()
                self.process.wait()


def eventually(condition: Callable[[], Any]) -> Any:
    """The first true value of `condition`; fails when patience ends."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        value = condition()
        if value or time.monotonic() > deadline:
            assert value, "the condition never held"
            return value
        time.sleep(0.02)
