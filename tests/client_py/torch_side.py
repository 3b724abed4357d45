"""Shared by the tests of the torch side: a patcher over fake operators, and comparisons."""

from __future__ import annotations

import contextlib
import copy
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import torch
from fakes.catalogue import ROOT, Libraries, plan_for
from fakes.operators import FakeOperators
from fakes.tiny_models import gradients
from fuseboard._binding import Binding
from fuseboard._head_source import HeadSource
from fuseboard._patcher import ModelPatcher
from fuseboard._plan import DecisionKind

ALL = ("rms_norm", "swiglu", "fused_linear_cross_entropy")
COMPOSITES = dict.fromkeys(ALL, DecisionKind.COMPOSITE)
HEAD_ONLY = {"rms_norm": DecisionKind.NATIVE, "swiglu": DecisionKind.NATIVE}


class Bench:
    """A model, patched."""

    def __init__(
        self,
        model: Any,
        folder: pathlib.Path,
        kinds: dict[str, DecisionKind] | None = None,
        skew: float = 1.0,
        operators: Any = None,
        **options: Any,
    ) -> None:
        self.model = model
        self.folder = folder
        self.operators = FakeOperators(skew) if operators is None else operators
        self.patcher = ModelPatcher(model, binding=Binding(self.operators), **options)
        self.sites = self.patcher.sites()
        self.refusals = self.switch(kinds)

    def switch(
        self, kinds: dict[str, DecisionKind] | None = None, content: str = ""
    ) -> tuple[Any, ...]:
        plan = plan_for(self.sites, Libraries(self.folder), kinds, content=content)
        return self.patcher.apply(self.patcher.prepare(plan))

    def losses_ran(self) -> int:
        return len(self.operators.ran("fused_linear_cross_entropy"))


@contextlib.contextmanager
def no_second_way() -> Iterator[None]:
    """Inside, no gradient may be computed through the logits: a fused loss has its own."""

    def refuse(*args: Any) -> None:
        raise AssertionError("a gradient came through the logits")

    before, HeadSource.gradients = HeadSource.gradients, refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        HeadSource.gradients = before  # type: ignore[method-assign]


class BuiltOperators:
    """The operators of a built binding, with the one count that tests of flows look at."""

    def __init__(self) -> None:
        self._at_start = self._losses()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.ops.fuseboard, name)

    def ran(self, name: str) -> range:
        assert name == "fused_linear_cross_entropy"
        return range(self._losses() - self._at_start)

    def _losses(self) -> int:
        counted = json.loads(torch.ops.fuseboard.counters())
        entry = counted.get("fused_linear_cross_entropy", {"fused": 0, "fallback": {}})
        return int(entry["fused"]) + sum(entry["fallback"].values())


def operators() -> Any:
    """Those of the newest build for this torch, else fake ones."""
    version = torch.__version__.split("+")[0]
    flavour = f"cu{torch.version.cuda}" if torch.version.cuda else "cpu"
    pattern = f"build/*/stage/lib/fuseboard/torch/{version}-{flavour}/libfuseboard_torch.so"
    built = sorted(ROOT.glob(pattern), key=lambda path: path.stat().st_mtime)
    if not built:
        return FakeOperators()
    torch.ops.load_library(str(built[-1]))
    return BuiltOperators()


def pair(model: Any) -> tuple[Any, Any]:
    """The model, and a copy of it to stay native."""
    return model, copy.deepcopy(model)


def assert_same_gradients(
    got: torch.nn.Module, wanted: torch.nn.Module, exact: bool = False
) -> None:
    """All gradients of two models, 1e-6 of the largest apart at most."""
    found, reference = gradients(got), gradients(wanted)
    assert found.keys() == reference.keys() and found
    for name, gradient in reference.items():
        if exact:
            assert torch.equal(found[name], gradient), name
        else:
            tolerance = 1e-6 * gradient.abs().max().item() + 1e-12
            difference = (found[name] - gradient).abs().max().item()
            assert difference <= tolerance, f"{name}: {difference} > {tolerance}"
