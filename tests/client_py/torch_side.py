"""Shared by the tests of the torch side: a patcher over fake operators, and comparisons."""

from __future__ import annotations

import copy
import pathlib
from typing import Any

import torch
from fakes.catalogue import Libraries, plan_for
from fakes.operators import FakeOperators
from fakes.tiny_models import gradients
from fuseboard._binding import Binding
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
        **options: Any,
    ) -> None:
        self.model = model
        self.folder = folder
        self.operators = FakeOperators(skew)
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
