"""The project's own catalogue, matched in Python, so that tests get the plans a daemon would send."""

from __future__ import annotations

import functools
import hashlib
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Any

from fuseboard._plan import Artifact, ArtifactKind, Decision, DecisionKind, Plan, Rule, Site

ROOT = pathlib.Path(__file__).resolve().parents[3]


@functools.cache
def catalogue() -> Any:
    """All of server/catalog/*.textpb as one CatalogFile."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    with tempfile.NamedTemporaryFile() as file:
        protos = [str(p) for p in sorted((ROOT / "proto").rglob("*.proto"))]
        protoc = shutil.which("protoc") or "protoc"
        command = [protoc, f"-I{ROOT / 'proto'}", f"--descriptor_set_out={file.name}"]
        subprocess.run([*command, "--include_imports", *protos], check=True)
        files = descriptor_pb2.FileDescriptorSet.FromString(pathlib.Path(file.name).read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for proto in files.file:
        pool.Add(proto) if hasattr(pool, "Add") else pool.AddSerializedFile(
            proto.SerializeToString()
        )
    descriptor = pool.FindMessageTypeByName("fuseboard.v1.CatalogFile")
    merged = message_factory.GetMessageClass(descriptor)()
    for path in sorted((ROOT / "server" / "catalog").glob("*.textpb")):
        text_format.Merge(path.read_text(), merged)
    return merged


def entry_for(site: Site) -> Any:
    """The first entry that matches, or None."""
    for entry in catalogue().entries:
        values = {f.value for f in entry.fingerprints}
        same_code = entry.role == site.role and site.fingerprint in values
        if same_code and all(_holds(condition, site) for condition in entry.conditions):
            return entry
    return None


def _holds(condition: Any, site: Site) -> bool:
    kind = condition.WhichOneof("condition")
    wanted = getattr(condition, kind)
    if kind == "child":
        return site.children.get(wanted.name) in wanted.any_of
    if kind == "attribute":
        value = site.attributes.get(wanted.name)
        return value is not None and wanted.min <= float(value) <= wanted.max
    found = site.parameters.get(wanted.name)
    if found is None or not wanted.present:
        return (found is not None) == wanted.present
    return len(found.shape) == wanted.ndim and found.dtype in wanted.dtypes


class Libraries:
    """Kernel libraries that are text files, with their artifacts."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def artifact(self, name: str, content: str = "") -> Artifact:
        path = self.folder / f"{name}.so"
        path.write_text(content or f"kernel {name}")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return Artifact(ArtifactKind.KERNEL, name, "0.1.0", str(path), digest)


def plan_for(
    sites: tuple[Site, ...],
    libraries: Libraries,
    kinds: Mapping[str, DecisionKind] | None = None,
    revision: int = 1,
    content: str = "",
) -> Plan:
    """What a daemon would decide.

    Args:
        sites: Of the model.
        libraries: Where kernels come from.
        kinds: By operation; the rest runs its kernel.
        revision: Of the plan.
        content: Another content makes another version of the libraries.
    """
    decisions = []
    artifacts: dict[str, Artifact] = {}
    for site in sites:
        entry = entry_for(site)
        kind = DecisionKind.NATIVE
        if entry is not None:
            kind = (kinds or {}).get(entry.operation, DecisionKind.KERNEL)
        if kind == DecisionKind.NATIVE:
            decisions.append(
                Decision(site.site_id, kind, "", "", "", "", {}, "native", Rule.NATIVE, "")
            )
            continue
        digest = ""
        if kind == DecisionKind.KERNEL:
            name = entry.operation
            artifacts[name] = libraries.artifact(name, content and f"{content} {name}")
            digest = artifacts[name].sha256
        decisions.append(
            Decision(
                site_id=site.site_id,
                kind=kind,
                operation=entry.operation,
                version="0.1.0",
                sha256=digest,
                adapter=entry.adapter,
                parameters=dict(entry.parameters),
                reason="catalogue",
                rule=Rule.CATALOGUE,
                catalog_entry=entry.id,
            )
        )
    return Plan(revision, "store", tuple(decisions), tuple(artifacts.values()))
