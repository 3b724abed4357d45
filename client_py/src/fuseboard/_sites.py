"""Discovers the sites of a model: groups of modules with the same class, code and attributes.

Torch's own layers and containers are not sites; an output projection is one together with the module
that owns it (role "lm_head"). Groups and their ids depend on the model alone, so all ranks agree.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from fuseboard._fingerprint import (
    Fingerprint,
    effective_forward,
    fingerprint_module,
    own_class,
)
from fuseboard._plan import AttributeValue, ParameterShape, Site

MODULE = "module"
LM_HEAD = "lm_head"

# Limits of a request (proto/fuseboard/v1/resolver.proto).
_MAX_SITES = 4096
_MAX_ENTRIES = 64
_MAX_TEXT = 256
# Attributes that number the layers would make each layer a group of its own.
_POSITIONS = frozenset(
    {"layer_idx", "layer_id", "layer_index", "layer_number", "block_idx", "training"}
)
# What of a configuration may matter for the way from the output projection to the loss.
_HEAD_SETTINGS = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "model_type",
    "tie_word_embeddings",
    "vocab_size",
)


@dataclasses.dataclass(frozen=True)
class Member:
    """One module of a site.

    Attributes:
        module: The module to bind: for "lm_head" the projection, not its owner.
        owner: The module whose forward was fingerprinted.
        forward: What that forward was at discovery.
    """

    module: weakref.ref[nn.Module]
    owner: weakref.ref[nn.Module]
    forward: Callable[..., Any]

    def unchanged(self) -> bool:
        """Whether the owner still runs what was fingerprinted."""
        owner = self.owner()
        return owner is not None and effective_forward(owner) == self.forward


@dataclasses.dataclass(frozen=True)
class Group:
    """A site with its modules."""

    site: Site
    members: tuple[Member, ...]


def discover(model: nn.Module) -> tuple[Group, ...]:
    """Groups the modules of `model`, in order of appearance.

    Modules that share their parameters are separate members; a module that occurs twice is one.
    """
    members: dict[str, list[Member]] = {}
    sites: dict[str, Site] = {}
    for module in model.modules():
        described = _describe(module)
        if described is None:
            continue
        site, bound = described
        if site.site_id not in sites and len(sites) == _MAX_SITES:
            continue
        sites.setdefault(site.site_id, site)
        member = Member(weakref.ref(bound), weakref.ref(module), effective_forward(module))
        members.setdefault(site.site_id, []).append(member)
    return tuple(
        Group(dataclasses.replace(site, count=len(members[key])), tuple(members[key]))
        for key, site in sites.items()
    )


def qualified_name(cls: type) -> str:
    """Module path and qualified class name."""
    return f"{cls.__module__}.{cls.__qualname__}"


def output_projection(owner: nn.Module) -> nn.Module | None:
    """The direct child of `owner` that makes logits, or None."""
    head = owner._modules.get("lm_head")
    if head is None and callable(getattr(type(owner), "get_output_embeddings", None)):
        try:
            head = owner.get_output_embeddings()  # type: ignore[operator]
        except Exception:  # noqa: BLE001  A model may refuse the question in any way.
            return None
    children = owner._modules.values()
    return head if isinstance(head, nn.Module) and any(head is c for c in children) else None


def _describe(module: nn.Module) -> tuple[Site, nn.Module] | None:
    cls = own_class(module)
    if cls.__module__.startswith("torch.") or cls.forward is nn.Module.forward:
        return None
    head = output_projection(module)
    if head is not None:
        site = _head_site(module, head)
        return None if site is None else (site, head)
    attributes = {k: v for k, v in module.__dict__.items() if _is_attribute(k, v)}
    children = {k: _class_name(c) for k, c in module._modules.items() if c is not None}
    parameters = dict(_parameters(module))
    site = _site(MODULE, cls, fingerprint_module(module), attributes, children, parameters)
    return None if site is None else (site, module)


def _head_site(owner: nn.Module, head: nn.Module) -> Site | None:
    config = getattr(owner, "config", None)
    settings: dict[str, Any] = {name: getattr(config, name, None) for name in _HEAD_SETTINGS}
    attributes = {k: v for k, v in settings.items() if _is_attribute(k, v)}
    return _site(
        LM_HEAD,
        own_class(owner),
        fingerprint_module(owner),
        attributes,
        {"head": _class_name(head)},
        dict(_parameters(head)),
    )


def _site(
    role: str,
    cls: type,
    fingerprint: Fingerprint,
    attributes: dict[str, AttributeValue],
    children: dict[str, str],
    parameters: dict[str, ParameterShape],
) -> Site | None:
    if max(len(attributes), len(children), len(parameters)) > _MAX_ENTRIES:
        return None
    site = Site(
        site_id="",
        role=role,
        qualified_name=qualified_name(cls),
        fingerprint=fingerprint.value,
        fingerprint_error=fingerprint.error,
        attributes=attributes,
        children=children,
        parameters=parameters,
        count=1,
    )
    return dataclasses.replace(site, site_id=f"{cls.__name__}/{_digest(site)}")


def _digest(site: Site) -> str:
    content = dataclasses.asdict(site)
    del content["count"], content["site_id"]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def _is_attribute(name: str, value: object) -> bool:
    if name.startswith("_") or name in _POSITIONS:
        return False
    if isinstance(value, str):
        return len(value) <= _MAX_TEXT
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 63
    return isinstance(value, float)


def _class_name(child: nn.Module) -> str:
    return qualified_name(own_class(child))


def _parameters(module: nn.Module) -> Iterator[tuple[str, ParameterShape]]:
    for name, parameter in module._parameters.items():
        if parameter is not None:
            dtype = str(parameter.dtype).removeprefix("torch.")
            yield name, ParameterShape(tuple(parameter.shape), dtype)
