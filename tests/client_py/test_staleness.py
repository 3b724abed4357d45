"""Snapshots: every change of a tensor is noticed, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fuseboard._staleness import Snapshot
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook


@pytest.fixture
def layer() -> nn.Linear:
    return nn.Linear(3, 3)


def step(parameters: Any, **options: Any) -> None:
    parameters = list(parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    torch.optim.AdamW(parameters, **options).step()


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
def test_optimizer_step_counts(layer: nn.Linear, options: dict[str, bool]) -> None:
    snapshot = Snapshot((layer.weight,))
    assert snapshot.change() == ""
    step(layer.parameters(), **options)
    assert snapshot.change() != ""
    assert Snapshot((layer.weight,)).change() == ""


def test_change_in_place_counts(layer: nn.Linear) -> None:
    snapshot = Snapshot((layer.weight,))
    with torch.no_grad():
        layer.weight.add_(1)
    version = layer.weight._version
    assert snapshot.change() == f"version {version - 1}, now {version}"


def test_step_of_an_optimizer_that_changes_data_behind_the_version_counts(layer: nn.Linear) -> None:
    class Foreign(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            layer.weight.data.add_(1)

    snapshot = Snapshot((layer.weight,))
    Foreign([layer.weight], lr=1.0).step()
    assert snapshot.change() == "an optimizer stepped"


def test_step_over_master_weights_counts(layer: nn.Linear) -> None:
    snapshot = Snapshot((layer.weight,))
    step([layer.weight.detach().clone().requires_grad_()])
    assert snapshot.change() == "an optimizer stepped"


def test_step_over_the_parameters_of_another_module_does_not_count(layer: nn.Linear) -> None:
    snapshot = Snapshot((layer.weight,))
    step(nn.Linear(3, 3).parameters())
    assert snapshot.change() == ""


def test_memory_that_was_given_away_counts_unless_the_tensor_may_move(layer: nn.Linear) -> None:
    fixed, movable = Snapshot((layer.weight,)), Snapshot((layer.weight,), movable=True)
    layer.weight.data = layer.weight.data.clone()
    assert fixed.change() == "their memory was given away" and movable.change() == ""


def test_snapshots_that_end_within_a_step_do_not_disturb_the_hooks_of_others(
    layer: nn.Linear,
) -> None:
    snapshots = [Snapshot((layer.weight,))]
    ran = []

    def last(*_: object) -> None:
        ran.append(len(snapshots))

    handles = [
        register_optimizer_step_post_hook(lambda *_: snapshots.clear()),
        register_optimizer_step_post_hook(last),
    ]
    step(layer.parameters())
    step(layer.parameters())
    for handle in handles:
        handle.remove()
    assert ran == [0, 0]


def test_tensor_of_inference_mode_cannot_change(layer: nn.Linear) -> None:
    with torch.inference_mode():
        snapshot = Snapshot((torch.ones(2),))
    assert snapshot.change() == ""
