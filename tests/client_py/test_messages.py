"""Messages built at run time: conversions, refusals, and every Protobuf runtime that people pin."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest
from fuseboard import _messages
from fuseboard._environment import Environment, Job
from fuseboard._errors import FuseboardError
from fuseboard._measure import KernelCount, Measurement, Method, Variant, Window
from fuseboard._plan import (
    Artifact,
    ArtifactKind,
    DecisionKind,
    OperationCounter,
    ParameterShape,
    Rule,
    Site,
)

pytestmark = pytest.mark.usefixtures("fake_home")

# The oldest that is promised, and the last of each major version after it.
RUNTIMES = ("4.21.12", "4.25.8", "5.29.5", "6.33.0")
CACHE = pathlib.Path(os.environ.get("FUSEBOARD_CACHE", "~/.cache/fuseboard")).expanduser()

SITE = Site(
    site_id="LlamaRMSNorm/0123abcd",
    role="module",
    qualified_name="transformers.models.llama.modeling_llama.LlamaRMSNorm",
    fingerprint="fb1:" + "0" * 64,
    fingerprint_error="",
    attributes={"variance_epsilon": 1e-6, "flag": True, "size": -3, "name": "silu", "huge": 2**70},
    children={"act_fn": "torch.nn.modules.activation.SiLU"},
    parameters={
        "weight": ParameterShape((4096,), "bfloat16"),
        "scalar": ParameterShape((), "float32"),
    },
    count=65,
)


def plan(decisions: list[dict], artifacts: list[dict] | None = None) -> object:
    make = _messages.message
    return make("Plan")(
        revision=3,
        store_id="s",
        decisions=[make("Decision")(**d) for d in decisions],
        artifacts=[make("Artifact")(**a) for a in artifacts or []],
    )


def test_a_site_keeps_every_field_and_the_type_of_every_attribute() -> None:
    wire = _messages.message("Site").FromString(_messages.site_to_wire(SITE).SerializeToString())
    values = {name: value.WhichOneof("value") for name, value in wire.attributes.items()}
    assert values == {
        "variance_epsilon": "number",
        "flag": "flag",
        "size": "integer",
        "name": "text",
        "huge": "text",
    }
    assert wire.attributes["variance_epsilon"].number == 1e-6
    assert wire.attributes["huge"].text == str(2**70)
    assert wire.children["act_fn"] == SITE.children["act_fn"]
    assert list(wire.parameters["weight"].shape) == [4096]
    assert list(wire.parameters["scalar"].shape) == []
    assert wire.parameters["weight"].dtype == "bfloat16"
    assert (wire.site_id, wire.role, wire.count) == (SITE.site_id, "module", 65)


def test_a_request_carries_who_asks_and_what_for() -> None:
    request = _messages.Request(
        Environment(torch_version="2.11.0", sm=90), Job("j", 1, 2), (SITE,), ("*",), "llama"
    )
    wire = _messages.request_to_wire(request)
    assert (wire.environment.sm, wire.job.rank, wire.job.world_size) == (90, 1, 2)
    assert (list(wire.opt_out), wire.model_type, len(wire.sites)) == (["*"], "llama", 1)
    assert len(wire.job.instance_id) == 36


def test_a_plan_becomes_dataclasses() -> None:
    decision = {"site_id": SITE.site_id, "kind": 3, "operation": "rms_norm", "version": "1.0.0"}
    decision |= {
        "parameters": {"casting": "llama"},
        "reason": "on",
        "rule": 9,
        "adapter": "rms_norm",
    }
    artifact = {"kind": 1, "name": "rms_norm", "path": "/x.so", "sha256": "ab"}
    got = _messages.plan_from_wire(plan([decision], [artifact]), [SITE])
    assert (got.revision, got.store_id) == (3, "s")
    assert got.decisions[0].kind is DecisionKind.KERNEL
    assert got.decisions[0].rule is Rule.CATALOGUE
    assert got.decisions[0].parameters == {"casting": "llama"}
    assert got.artifacts == (Artifact(ArtifactKind.KERNEL, "rms_norm", "", "/x.so", "ab"),)


@pytest.mark.parametrize(
    ("decisions", "message"),
    [
        ([], "0 decisions for 1 sites: missing .'LlamaRMSNorm/0123abcd'., not asked for none"),
        ([{"site_id": "x", "kind": 1, "rule": 9}], "not asked for .'x'."),
        ([{"site_id": SITE.site_id, "kind": 0, "rule": 9}], "0 is not a valid DecisionKind"),
        ([{"site_id": SITE.site_id, "kind": 7, "rule": 9}], "7 is not a valid DecisionKind"),
        ([{"site_id": SITE.site_id, "kind": 1, "rule": 77}], "77 is not a valid Rule"),
        ([{"site_id": SITE.site_id, "kind": 1, "rule": 9}] * 2, "2 decisions for 1 sites"),
    ],
)
def test_a_plan_that_is_not_whole_or_not_understood_is_refused(
    decisions: list[dict], message: str
) -> None:
    with pytest.raises(FuseboardError, match=message) as caught:
        _messages.plan_from_wire(plan(decisions), [SITE])
    assert caught.value.code == "BAD_PLAN"


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(FuseboardError) as caught:
        _messages.parse("ResolveResponse", b"\xff" * 9)
    assert caught.value.code == "BAD_REPLY"


def test_what_was_not_measured_stays_absent() -> None:
    window = Window(
        Variant.PLAN,
        first_step=5,
        steps=2,
        launches_per_step=Measurement(0.0, Method.OPERATOR_COUNT, 2),
        kernels=(KernelCount("aten::mm", 3), KernelCount("k", 1, 0)),
    )
    wire = _messages.window_to_wire(window)
    assert wire.HasField("launches_per_step") and wire.launches_per_step.method == 2
    assert not wire.HasField("step_ms") and not wire.HasField("peak_bytes")
    assert [k.HasField("device_ns") for k in wire.kernels] == [False, True]


def test_counters_keep_their_reasons() -> None:
    (wire,) = _messages.counters_to_wire([OperationCounter("rms_norm", 5, {"dtype": 2})])
    assert (wire.fused_calls, dict(wire.fallback_calls)) == (5, {"dtype": 2})


def test_our_pool_is_not_the_processes_pool() -> None:
    from google.protobuf import descriptor_pool

    _messages.message("Plan")
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("fuseboard.v1.Plan")


def runtime(version: str) -> pathlib.Path:
    """Folder with a Protobuf runtime; installed once and kept."""
    folder = CACHE / "protobuf" / version
    if not (folder / "google" / "protobuf" / "__init__.py").exists():
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
            + ["--disable-pip-version-check", "--target", folder, f"protobuf=={version}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"protobuf {version} is not to be had: {done.stderr.strip()[-200:]}")
    return folder


@pytest.mark.parametrize("implementation", ["upb", "python"])
@pytest.mark.parametrize("version", RUNTIMES)
def test_every_promised_protobuf_runtime_round_trips(version: str, implementation: str) -> None:
    script = """
import json, google.protobuf
from fuseboard import _messages
from fuseboard._plan import *
site = Site("A/1", "module", "m.A", "fb1:", "", {"eps": 1e-6, "on": True}, {"a": "b"},
            {"w": ParameterShape((2, 3), "float32")}, 2)
make = _messages.message
wire = make("Site").FromString(_messages.site_to_wire(site).SerializeToString())
reply = make("ResolveResponse")(plan=make("Plan")(revision=2, decisions=[make("Decision")(
    site_id="A/1", kind=3, rule=9, parameters={"k": "v"})])).SerializeToString()
plan = _messages.plan_from_wire(_messages.parse("ResolveResponse", reply).plan, [site])
error = ""
try:
    _messages.parse("ResolveResponse", b"\\xff" * 9)
except Exception as caught:
    error = type(caught).__name__
print(json.dumps([google.protobuf.__version__, wire.attributes["eps"].number,
                  list(wire.parameters["w"].shape), plan.decisions[0].parameters, error]))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(runtime(version)), *sys.path]),
            "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = [version, 1e-6, [2, 3], {"k": "v"}, "FuseboardError"]
    assert json.loads(done.stdout) == expected
