"""torch.compile around and inside a patched model, in any order: numbers, gradients, switches."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.nn.functional as F
from fakes.tiny_models import VOCABULARY, tiny_batch, tiny_model
from torch_side import COMPOSITES, Bench, assert_same_gradients, operators, pair

Compile = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def as_function(model: Any) -> Any:
    return torch.compile(model, backend="aot_eager")


def in_place(model: Any) -> Any:
    model.compile(backend="aot_eager")
    return model


def by_layer(model: Any) -> Any:
    for layer in model.model.layers:
        layer.compile(backend="aot_eager")
    return model


def assert_trains_as(native: Any, run: Any, model: Any) -> None:
    for seed in (1, 2):
        losses = [m(**tiny_batch(seed=seed)).loss for m in (run, native)]
        torch.testing.assert_close(*losses, rtol=1e-6, atol=0)
        for loss in losses:
            loss.backward()
    assert_same_gradients(model, native)


def bench_of(model: Any, folder: pathlib.Path) -> Bench:
    return Bench(model, folder, COMPOSITES, operators=operators())


@pytest.mark.parametrize(
    ("compile_it", "order"),
    [
        (as_function, "patched_first"),
        (as_function, "compiled_first"),
        (as_function, "compiled_and_run_first"),
        (in_place, "compiled_and_run_first"),
        (by_layer, "patched_first"),
        (by_layer, "compiled_and_run_first"),
    ],
)
def test_order_of_patch_and_compile_does_not_matter(
    tmp_path: pathlib.Path, compile_it: Compile, order: str
) -> None:
    model, native = pair(tiny_model("llama", num_hidden_layers=1))
    if order == "patched_first":
        bench = bench_of(model, tmp_path)
        run = compile_it(model)
    else:
        run = compile_it(model)
        if order == "compiled_and_run_first":
            run(**tiny_batch()).loss.backward()
            model.zero_grad()
        bench = bench_of(run, tmp_path)
    assert bench.refusals == ()
    assert_trains_as(native, run, model)
    # Deferred logits cannot be traced: only a head outside of what is compiled has the fused loss.
    assert bench.losses_ran() == (2 if compile_it is by_layer else 0)


@pytest.mark.parametrize("compile_it", [as_function, by_layer])
def test_compiled_model_follows_each_switch(tmp_path: pathlib.Path, compile_it: Compile) -> None:
    model, native = pair(tiny_model("llama", num_hidden_layers=1))
    bench = Bench(model, tmp_path, COMPOSITES)
    run = compile_it(model)
    for kinds in (COMPOSITES, None):
        bench.switch(kinds)
        got = run(**tiny_batch()).loss
        torch.testing.assert_close(got, native(**tiny_batch()).loss, rtol=1e-6, atol=0)
    bench.patcher.restore()
    torch.testing.assert_close(run(**tiny_batch()).loss, native(**tiny_batch()).loss)


def test_compiled_loss_function_reads_deferred_logits(tmp_path: pathlib.Path) -> None:
    model, native = pair(tiny_model("llama", num_hidden_layers=1))
    bench = bench_of(model, tmp_path)

    @torch.compile(backend="aot_eager")
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.float().view(-1, VOCABULARY), labels.view(-1))

    ids = tiny_batch()["input_ids"]
    losses = [loss(m(input_ids=ids).logits, ids) for m in (model, native)]
    torch.testing.assert_close(*losses, rtol=1e-6, atol=0)
    for value in losses:
        value.backward()
    assert_same_gradients(model, native)
    assert bench.losses_ran() == 0


def test_compiled_with_gradient_checkpointing(tmp_path: pathlib.Path) -> None:
    model, native = pair(tiny_model("llama", use_cache=False))
    bench_of(model, tmp_path)
    for m in (model, native):
        m.gradient_checkpointing_enable({"use_reentrant": False})
        m.train()
    assert_trains_as(native, as_function(model), model)
