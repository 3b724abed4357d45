"""What the client says to the daemon and hears from it, as frozen dataclasses.

The rest of the package knows these and never a protobuf message; `_messages` converts. Fields mean
what `proto/fuseboard/v1/plan.proto` says of the fields of the same name.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

AttributeValue = str | int | float | bool


class DecisionKind(enum.IntEnum):
    """What a site runs; numbers as on the wire."""

    NATIVE = 1
    COMPOSITE = 2
    KERNEL = 3


class ArtifactKind(enum.IntEnum):
    """What a file of a plan is; numbers as on the wire."""

    KERNEL = 1
    BINDING = 2
    PROFILER = 3


class Rule(enum.IntEnum):
    """The level of precedence that decided; numbers as on the wire."""

    OPT_OUT = 1
    KILL = 2
    INCOMPATIBLE = 3
    QUARANTINE = 4
    BREAKER = 5
    OVERRIDE = 6
    ROLLOUT = 7
    AUTO = 8
    CATALOGUE = 9
    NATIVE = 10


@dataclasses.dataclass(frozen=True)
class ParameterShape:
    """Shape and dtype ("bfloat16") of a direct parameter of a module."""

    shape: tuple[int, ...]
    dtype: str


@dataclasses.dataclass(frozen=True)
class Site:
    """A group of modules that are alike: same class, same code, same attributes."""

    site_id: str
    role: str  # "module" or "lm_head"
    qualified_name: str
    fingerprint: str  # "fb1:" + 64 hex digits, or "" with fingerprint_error set
    fingerprint_error: str
    attributes: Mapping[str, AttributeValue]
    children: Mapping[str, str]
    parameters: Mapping[str, ParameterShape]
    count: int


@dataclasses.dataclass(frozen=True)
class Decision:
    """What one site is to run, and why."""

    site_id: str
    kind: DecisionKind
    operation: str
    version: str
    sha256: str
    adapter: str
    parameters: Mapping[str, str]
    reason: str
    rule: Rule
    catalog_entry: str


@dataclasses.dataclass(frozen=True)
class Artifact:
    """A file to open, verify against `sha256` and map."""

    kind: ArtifactKind
    name: str
    version: str
    path: str
    sha256: str


@dataclasses.dataclass(frozen=True)
class Plan:
    """All decisions for this process at one revision. Always complete."""

    revision: int
    store_id: str
    decisions: tuple[Decision, ...]
    artifacts: tuple[Artifact, ...]


@dataclasses.dataclass(frozen=True)
class SiteRefusal:
    """Modules of a site that could not be bound as decided, and so run native."""

    site_id: str
    count: int
    reason: str


@dataclasses.dataclass(frozen=True)
class OperationCounter:
    """Calls of one operation in this process since it began."""

    operation: str
    fused_calls: int
    fallback_calls: Mapping[str, int]


def native_plan(sites: tuple[Site, ...], reason: str, rule: Rule = Rule.NATIVE) -> Plan:
    """The plan that changes nothing: what holds when there is no daemon to ask.

    Args:
        sites: Sites of the model.
        reason: One sentence for people; stands at every site.
        rule: The level of precedence to report.
    """
    return Plan(
        revision=0,
        store_id="",
        decisions=tuple(
            Decision(s.site_id, DecisionKind.NATIVE, "", "", "", "", {}, reason, rule, "")
            for s in sites
        ),
        artifacts=(),
    )
