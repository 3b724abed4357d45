"""Protobuf messages, built at run time, and their conversion to and from dataclasses.

Generated code works with its own major version of the Protobuf runtime and the next one, and training
environments pin anything from 4 to 7. Classes built from a descriptor set have no such tie. They live
in a descriptor pool of their own, so they cannot collide with anything else in the process.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

from fuseboard import _home, _measure
from fuseboard._environment import Environment, Job
from fuseboard._errors import FuseboardError
from fuseboard._plan import (
    Artifact,
    ArtifactKind,
    AttributeValue,
    Decision,
    DecisionKind,
    OperationCounter,
    Plan,
    Rule,
    Site,
)

_PACKAGE = "fuseboard.v1."
_INT64 = range(-(2**63), 2**63)


@dataclasses.dataclass(frozen=True)
class Request:
    """What a process asks; fields as in `resolver.proto`."""

    environment: Environment
    job: Job
    sites: tuple[Site, ...]
    opt_out: tuple[str, ...] = ()
    model_type: str = ""


@functools.cache
def _class_source() -> Callable[[str], Any]:
    """Loads the descriptor set; returns what maps a full name to a message class."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    path = _home.find_home().descriptor_set
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(path.read_bytes())
        pool = descriptor_pool.DescriptorPool()
        for file in files.file:
            pool.AddSerializedFile(file.SerializeToString())
    except Exception as error:
        raise FuseboardError(
            "NO_INSTALLATION", f"{path} is not a descriptor set: {error}"
        ) from error
    # Protobuf 4.21 has only the factory object.
    factory: Any = message_factory
    make = getattr(factory, "GetMessageClass", None) or factory.MessageFactory(pool).GetPrototype
    return lambda name: make(pool.FindMessageTypeByName(name))


@functools.cache
def message(name: str) -> Any:
    """The class of the message `fuseboard.v1.<name>`, or of a full name with dots.

    Raises:
        FuseboardError: NO_INSTALLATION if there is no usable descriptor set.
        KeyError: No such message.
    """
    return _class_source()(name if "." in name else _PACKAGE + name)


def parse(name: str, serialized: bytes) -> Any:
    """Parses a reply.

    Raises:
        FuseboardError: BAD_REPLY if `serialized` is not such a message.
    """
    try:
        return message(name).FromString(serialized)
    except FuseboardError:
        raise
    except Exception as error:
        raise FuseboardError(
            "BAD_REPLY", f"{len(serialized)} bytes are no {name}: {error}"
        ) from error


# ---- To the daemon ----


def _attribute(value: AttributeValue) -> Any:
    wire = message("AttributeValue")
    if isinstance(value, bool):  # Before int: bool is one.
        return wire(flag=value)
    if isinstance(value, int) and value in _INT64:
        return wire(integer=value)
    if isinstance(value, float):
        return wire(number=value)
    return wire(text=str(value))


def site_to_wire(site: Site) -> Any:
    """The message of a site."""
    return message("Site")(
        site_id=site.site_id,
        role=site.role,
        qualified_name=site.qualified_name,
        fingerprint=site.fingerprint,
        fingerprint_error=site.fingerprint_error,
        attributes={name: _attribute(value) for name, value in site.attributes.items()},
        children=dict(site.children),
        parameters={
            name: message("ParameterShape")(shape=p.shape, dtype=p.dtype)
            for name, p in site.parameters.items()
        },
        count=site.count,
    )


def fields_to_wire(name: str, dataclass_instance: Any) -> Any:
    """The message `name` with the fields of a dataclass whose fields are all scalars."""
    return message(name)(**vars(dataclass_instance))


def counters_to_wire(counters: Iterable[OperationCounter]) -> list[Any]:
    """The messages of counters."""
    return [
        message("OperationCounter")(
            operation=c.operation,
            fused_calls=c.fused_calls,
            fallback_calls=dict(c.fallback_calls),
        )
        for c in counters
    ]


def acknowledgement_to_wire(instance_id: str, acknowledgement: Any) -> Any:
    """The AckPlanRequest of what became of a plan."""
    refusals = [fields_to_wire("SiteRefusal", r) for r in acknowledgement.refusals]
    fields = {**vars(acknowledgement), "refusals": refusals}
    return message("AckPlanRequest")(instance_id=instance_id, **fields)


def request_to_wire(request: Request) -> Any:
    """The ResolveRequest."""
    return message("ResolveRequest")(
        environment=fields_to_wire("Environment", request.environment),
        job=fields_to_wire("Job", request.job),
        sites=[site_to_wire(site) for site in request.sites],
        opt_out=request.opt_out,
        model_type=request.model_type,
    )


def _measured(measurement: _measure.Measurement | None) -> Any:
    if measurement is None:
        return None
    return message("Measurement")(
        value=measurement.value, method=int(measurement.method), samples=measurement.samples
    )


def window_to_wire(window: _measure.Window) -> Any:
    """The message of a measuring window. What was not measured stays absent."""
    return message("Window")(
        variant=int(window.variant),
        first_step=window.first_step,
        steps=window.steps,
        revision=window.revision,
        launches_per_step=_measured(window.launches_per_step),
        device_ms_per_step=_measured(window.device_ms_per_step),
        copies_per_step=_measured(window.copies_per_step),
        step_ms=_measured(window.step_ms),
        peak_bytes=_measured(window.peak_bytes),
        kernels=[fields_to_wire("KernelCount", kernel) for kernel in window.kernels],
        dropped_records=window.dropped_records,
        error=window.error,
        started_at_us=window.started_at_us,
    )


# ---- From the daemon ----


def _decision(wire: Any) -> Decision:
    return Decision(
        site_id=wire.site_id,
        kind=DecisionKind(wire.kind),
        operation=wire.operation,
        version=wire.version,
        sha256=wire.sha256,
        adapter=wire.adapter,
        parameters=dict(wire.parameters),
        reason=wire.reason,
        rule=Rule(wire.rule),
        catalog_entry=wire.catalog_entry,
    )


def _artifact(wire: Any) -> Artifact:
    return Artifact(ArtifactKind(wire.kind), wire.name, wire.version, wire.path, wire.sha256)


def plan_from_wire(wire: Any, sites: Iterable[Site]) -> Plan:
    """The plan in a reply, checked to be complete for `sites`.

    Raises:
        FuseboardError: BAD_PLAN if it has a kind or rule that this client does not know, or does not
            decide about exactly the sites that were asked about. Nothing of it may then be used.
    """
    try:
        plan = Plan(
            revision=wire.revision,
            store_id=wire.store_id,
            decisions=tuple(_decision(d) for d in wire.decisions),
            artifacts=tuple(_artifact(a) for a in wire.artifacts),
        )
    except ValueError as error:
        raise FuseboardError("BAD_PLAN", f"plan {wire.revision}: {error}") from error
    asked = [site.site_id for site in sites]
    decided = [decision.site_id for decision in plan.decisions]
    if sorted(asked) != sorted(decided):
        missing = sorted(set(asked) - set(decided)) or "none"
        extra = sorted(set(decided) - set(asked)) or "none"
        raise FuseboardError(
            "BAD_PLAN",
            f"plan {plan.revision} has {len(decided)} decisions for {len(asked)} sites: "
            f"missing {missing}, not asked for {extra}",
        )
    return plan
