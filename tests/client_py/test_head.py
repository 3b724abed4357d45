"""Heads whose weights are not simply there: the loss runs native, with the reason, or is right."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from fakes.tiny_models import tiny_batch, tiny_model
from fuseboard._errors import DeferredLogitsError
from torch import nn
from torch_side import COMPOSITES, Bench, assert_same_gradients, pair


def partition(model: Any) -> None:
    """Marks parameters as DeepSpeed ZeRO-3 does. Here they are whole, as within a forward."""
    for number, parameter in enumerate(model.parameters()):
        parameter.ds_id = number
        parameter.ds_status = "AVAILABLE"


def assert_trains_as(native: Any, model: Any) -> None:
    losses = [m(**tiny_batch()).loss for m in (model, native)]
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    assert_same_gradients(model, native)


@pytest.mark.parametrize("order", ["patched_first", "partitioned_first"])
def test_partitioned_head_runs_native_and_says_why(tmp_path: pathlib.Path, order: str) -> None:
    model, native = pair(tiny_model("llama"))
    if order == "partitioned_first":
        partition(model)
    bench = Bench(model, tmp_path, COMPOSITES)
    if order == "patched_first":
        partition(model)
    assert_trains_as(native, model)
    assert bench.losses_ran() == 0
    (refusal,) = bench.patcher.refusals()
    assert refusal.site_id.startswith("LlamaForCausalLM/") and refusal.count == 1
    assert "partitioned by DeepSpeed ZeRO-3" in refusal.reason


def test_partitioned_head_that_is_empty_at_patch_is_refused(tmp_path: pathlib.Path) -> None:
    model = tiny_model("llama")
    partition(model)
    for parameter in model.parameters():
        parameter.data = torch.empty(0)
    bench = Bench(model, tmp_path, COMPOSITES)
    assert "forward" not in model.lm_head.__dict__
    assert bench.losses_ran() == 0


@pytest.mark.parametrize("order", ["patched_first", "offloaded_first"])
def test_head_that_accelerate_offloads_runs_native(tmp_path: pathlib.Path, order: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    model, native = pair(tiny_model("llama"))
    if order == "patched_first":
        bench = Bench(model, tmp_path, COMPOSITES)
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    if order == "offloaded_first":
        bench = Bench(model, tmp_path, COMPOSITES)
    with torch.no_grad():
        outputs = [m(**tiny_batch()) for m in (model, native)]
    assert torch.equal(*(o.loss for o in outputs)) and torch.equal(*(o.logits for o in outputs))
    assert bench.losses_ran() == 0


def test_head_behind_an_alignment_hook_that_moves_nothing_stays_fused(
    tmp_path: pathlib.Path,
) -> None:
    hooks = pytest.importorskip("accelerate.hooks")
    model, native = pair(tiny_model("llama"))
    hooks.add_hook_to_module(model.lm_head, hooks.AlignDevicesHook(io_same_device=True))
    bench = Bench(model, tmp_path, COMPOSITES)
    assert_trains_as(native, model)
    assert bench.losses_ran() == 1


def change_in_place(head: nn.Linear) -> None:
    with torch.no_grad():
        head.weight.mul_(2)


def replace(head: nn.Linear) -> None:
    head.weight = nn.Parameter(head.weight.detach() * 2)


def swap_data(head: nn.Linear) -> None:
    head.weight.data = head.weight.data * 2


def step(head: nn.Linear) -> None:
    head.weight.grad = torch.ones_like(head.weight)
    torch.optim.AdamW([head.weight], lr=1.0, fused=True).step()


@pytest.mark.parametrize("change", [change_in_place, replace, swap_data, step])
def test_logits_are_refused_once_the_weights_are_others(
    tmp_path: pathlib.Path, change: Any
) -> None:
    model = tiny_model("llama")
    Bench(model, tmp_path, COMPOSITES)
    read, unread = (model(**tiny_batch()).logits for _ in range(2))
    wanted = read + 0
    change(model.lm_head)
    assert torch.equal(read, wanted)
    with pytest.raises(
        DeferredLogitsError, match="after the weights of the head changed"
    ) as raised:
        unread.sum()
    assert raised.value.code == "DEFERRED_LOGITS_LATE"
    assert repr(unread) == "tensor(<not computed>, size=(2, 11, 96), dtype=torch.float32)"
    assert f"{unread}" == str(unread) == repr(unread)
    assert "not computed" not in repr(read)


def test_logits_of_a_functional_call_are_those_of_its_weights(tmp_path: pathlib.Path) -> None:
    model, native = pair(tiny_model("llama"))
    bench = Bench(model, tmp_path, COMPOSITES)
    weights = {"lm_head.weight": (2 * native.lm_head.weight.detach()).requires_grad_()}
    outputs = [torch.func.functional_call(m, weights, kwargs=tiny_batch()) for m in (model, native)]
    found = []
    for output in outputs:
        loss = output.loss + output.logits.square().mean()
        found.append(torch.autograd.grad(loss, weights["lm_head.weight"])[0])
    assert torch.equal(*(o.loss for o in outputs)) and torch.equal(*(o.logits for o in outputs))
    torch.testing.assert_close(*found)
    assert bench.losses_ran() == 1
