"""A patcher and a step boundary that bind nothing and obey a test, and a model small enough to see."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from fuseboard._plan import Plan, Site, SiteRefusal
from torch import nn


class Norm(nn.Module):
    """What the fake daemon has a kernel for."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Odd(nn.Module):
    """What nobody has a kernel for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()
        self.odd = Odd()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.odd(self.norm(x))


SITES = tuple(
    Site(f"{name}/00000000", "module", f"fakes.{name}", "fb1:" + "0" * 64, "", {}, {}, {}, 1)
    for name in ("Norm", "Odd")
)


class FakePatcher:
    """Remembers what it was told. The newest one is `FakePatcher.latest`."""

    latest: FakePatcher

    def __init__(self, model: nn.Module, *, deferred_logits: bool = True) -> None:
        self.model = weakref.ref(model)
        self.deferred_logits = deferred_logits
        self.prepared_on: list[str] = []
        self.applied: list[Plan] = []
        self.applied_on: list[str] = []
        self.restored = 0
        self.fail_prepare: Exception | None = None
        self.fail_apply: Exception | None = None
        self.refused: tuple[SiteRefusal, ...] = ()
        FakePatcher.latest = self

    def sites(self) -> tuple[Site, ...]:
        return SITES

    def prepare(self, plan: Plan) -> Any:
        self.prepared_on.append(threading.current_thread().name)
        if self.fail_prepare is not None:
            raise self.fail_prepare
        return plan

    def apply(self, prepared: Any) -> tuple[SiteRefusal, ...]:
        self.applied_on.append(threading.current_thread().name)
        if self.fail_apply is not None:
            raise self.fail_apply
        self.applied.append(prepared)
        return self.refused

    def refusals(self) -> tuple[SiteRefusal, ...]:
        return self.refused

    def restore(self) -> None:
        self.restored += 1


@dataclasses.dataclass(eq=False)
class FakeBoundary:
    """Crosses a boundary when a test says so."""

    model: Any
    on_boundary: Callable[[int], None]
    step: int = 0
    closed: bool = False

    def __post_init__(self) -> None:
        self.model = None
        FakeBoundary.latest = self

    def mark(self) -> None:
        self.step += 1
        self.on_boundary(self.step)

    def close(self) -> None:
        self.closed = True


def install() -> None:
    """Puts the fakes in the place of the torch side, in a process of its own."""
    from fuseboard import _patcher, _steps

    _patcher.ModelPatcher = FakePatcher  # type: ignore[misc, assignment]
    _steps.StepBoundary = FakeBoundary  # type: ignore[misc, assignment]
