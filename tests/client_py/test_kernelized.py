"""Forwards that others replaced, as `use_kernels=True` of transformers does: their code runs, not ours."""

from __future__ import annotations

import pathlib
import types
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.nn.functional as F
from fakes.catalogue import entry_for
from fakes.tiny_models import tiny_batch, tiny_model
from torch_side import COMPOSITES, Bench, assert_same_gradients, pair


def hub_forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """Another norm, and so another function than the one that the catalogue knows."""
    shape = self.weight.shape
    return 2 * F.rms_norm(hidden_states, shape, self.weight, self.variance_epsilon)


def norms(model: Any) -> list[Any]:
    return [m for m in model.modules() if type(m).__name__ == "LlamaRMSNorm"]


def kernelize(model: Any) -> None:
    """Binds a forward to each instance, as kernels.kernelize does."""
    for norm in norms(model):
        norm.forward = types.MethodType(hub_forward, norm)


def norm_entries(bench: Bench) -> list[Any]:
    return [entry_for(s) for s in bench.sites if s.qualified_name.endswith(".LlamaRMSNorm")]


def assert_trains_with_foreign_norms(model: Any, native: Any, bench: Bench) -> None:
    losses = [m(**tiny_batch()).loss for m in (model, native)]
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    assert_same_gradients(model, native, exact=True)
    assert bench.operators.ran("rms_norm") == [] and bench.losses_ran() == 1


def test_instances_with_another_forward_have_another_fingerprint_and_run_it(
    tmp_path: pathlib.Path,
) -> None:
    (known,) = norm_entries(Bench(tiny_model("llama"), tmp_path))
    assert known is not None
    model, native = pair(tiny_model("llama"))
    for m in (model, native):
        kernelize(m)
    bench = Bench(model, tmp_path, COMPOSITES)
    assert norm_entries(bench) == [None]
    assert_trains_with_foreign_norms(model, native, bench)


def test_class_with_another_forward_runs_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, native = pair(tiny_model("llama"))
    cls = type(norms(model)[0])
    with monkeypatch.context() as patches:
        patches.setattr(cls, "forward", hub_forward)
        bench = Bench(model, tmp_path, COMPOSITES)
        assert norm_entries(bench) == [None]
        assert_trains_with_foreign_norms(model, native, bench)
        bench.patcher.restore()
    assert norm_entries(Bench(model, tmp_path, COMPOSITES)) != [None]


def test_forward_that_was_replaced_after_patch_wins_and_the_next_plan_says_so(
    tmp_path: pathlib.Path,
) -> None:
    model, native = pair(tiny_model("llama"))
    bench = Bench(model, tmp_path, COMPOSITES)
    for m in (model, native):
        kernelize(m)
    assert_trains_with_foreign_norms(model, native, bench)
    (refusal,) = bench.switch(COMPOSITES)
    assert (refusal.count, refusal.reason) == (
        5,
        "forward was replaced after the model was examined",
    )
    bench.patcher.restore()
    assert all(norm.forward.__func__ is hub_forward for norm in norms(model))
