"""autocast around a patched model, with the operators of a build where there is one: as native."""

from __future__ import annotations

import copy
import pathlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.nn.functional as F
from fakes.tiny_models import VOCABULARY, gradients, tiny_batch, tiny_model
from torch_side import COMPOSITES, Bench, operators, pair


def assert_as_exact(model: Any, native: Any, exact: Any) -> None:
    """The gradients lie no further from those in float32 than native's, give or take rounding."""
    found, rival, wanted = (gradients(m) for m in (model, native, exact))
    assert found.keys() == rival.keys() == wanted.keys()
    for name, gradient in wanted.items():
        assert found[name].dtype == rival[name].dtype
        scale = gradient.abs().max()
        error, limit = ((g[name].float() - gradient).abs().max() / scale for g in (found, rival))
        assert error <= 1.5 * limit + 2**-8, f"{name}: {error}, native {limit}"


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_under_autocast(
    tmp_path: pathlib.Path, model_type: str, checkpointing: bool
) -> None:
    model, native = pair(tiny_model(model_type, use_cache=False))
    exact = copy.deepcopy(model)
    bench = Bench(model, tmp_path, COMPOSITES, operators=operators())
    for m in (model, native):
        m.train()
        if checkpointing:
            m.gradient_checkpointing_enable({"use_reentrant": False})
    outputs = []
    for m in (model, native):
        with torch.autocast("cpu", torch.bfloat16):
            outputs.append(m(**tiny_batch()))
        outputs[-1].loss.backward()
    wanted = exact(**tiny_batch()).loss
    wanted.backward()
    got, rival = outputs
    assert got.loss.dtype == rival.loss.dtype and got.logits.dtype == rival.logits.dtype
    assert (got.loss - wanted).abs() <= 1.5 * (rival.loss - wanted).abs() + 2**-8
    assert_as_exact(model, native, exact)
    assert bench.losses_ran() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("where", ["within", "after"])
def test_custom_loss_has_the_dtype_that_native_has(
    tmp_path: pathlib.Path, dtype: torch.dtype, where: str
) -> None:
    """The loss within autocast, or behind it; of a model in float32 or bfloat16."""
    model, native = pair(tiny_model("llama").to(dtype))
    bench = Bench(model, tmp_path, COMPOSITES, operators=operators())
    labels = tiny_batch()["input_ids"].view(-1)
    losses = []
    for m in (model, native):
        with torch.autocast("cpu", torch.bfloat16):
            logits = m(input_ids=tiny_batch()["input_ids"]).logits.view(-1, VOCABULARY)
            if where == "within":
                losses.append(F.cross_entropy(logits, labels))
        if where == "after":
            losses.append(F.cross_entropy(logits, labels))
    assert losses[0].dtype == losses[1].dtype
    torch.testing.assert_close(*losses, rtol=2**-7, atol=0)
    for loss in losses:
        loss.backward()
    exact = tiny_model("llama")
    logits = exact(input_ids=tiny_batch()["input_ids"]).logits.view(-1, VOCABULARY)
    F.cross_entropy(logits, labels).backward()
    assert_as_exact(model, native, exact)
    assert bench.losses_ran() == 1
