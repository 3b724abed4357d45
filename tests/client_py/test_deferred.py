"""Deferred logits on their own: what fuses, what materialises, and that nobody can tell."""

from __future__ import annotations

import copy
import io
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.nn.functional as F
from fakes.tiny_models import VOCABULARY, tiny_batch, tiny_model
from fuseboard._deferred import DeferredLogits
from fuseboard._errors import DeferredLogitsError
from fuseboard._head_source import HeadSource
from torch import nn
from torch_side import COMPOSITES, HEAD_ONLY, Bench, assert_same_gradients, pair


@pytest.fixture
def bench(tmp_path: pathlib.Path) -> Bench:
    return Bench(tiny_model("llama"), tmp_path, COMPOSITES)


@pytest.fixture
def native() -> Any:
    return tiny_model("llama")


def both(bench: Bench, native: Any, **inputs: Any) -> tuple[Any, Any]:
    """Logits of both models for one batch."""
    batch = {"input_ids": tiny_batch()["input_ids"], **inputs}
    return bench.model(**batch).logits, native(**batch).logits


def materialised(logits: DeferredLogits) -> bool:
    return logits.recipe.was_read()


SHIFTED_LOSSES: dict[str, Callable[[Any, Any], Any]] = {
    "functional": lambda z, y: F.cross_entropy(
        z[..., :-1, :].contiguous().view(-1, VOCABULARY), y[..., 1:].reshape(-1)
    ),
    "module": lambda z, y: nn.CrossEntropyLoss()(
        z[:, :-1].reshape(-1, VOCABULARY), y[:, 1:].reshape(-1)
    ),
    "float": lambda z, y: F.cross_entropy(
        z.float()[:, :-1].reshape(-1, z.size(-1)), y[:, 1:].reshape(-1)
    ),
    "transposed": lambda z, y: F.cross_entropy(z.transpose(1, 2), y),
    "permuted": lambda z, y: F.cross_entropy(z.permute(0, 2, 1), y),
    "sum": lambda z, y: F.cross_entropy(z.view(-1, VOCABULARY), y.view(-1), reduction="sum") / 7,
    "none": lambda z, y: (
        F.cross_entropy(z.view(-1, VOCABULARY), y.view(-1), reduction="none").square().mean()
    ),
    "none_2d": lambda z, y: F.cross_entropy(z.mT, y, reduction="none").square().mean(),
    "smoothed": lambda z, y: F.cross_entropy(
        z.view(-1, VOCABULARY), y.view(-1), label_smoothing=0.1
    ),
    "weighted": lambda z, y: F.cross_entropy(
        z.view(-1, VOCABULARY), y.view(-1), weight=torch.linspace(0.5, 2, VOCABULARY)
    ),
    "ignored": lambda z, y: F.cross_entropy(z.view(-1, VOCABULARY), y.view(-1), ignore_index=5),
    "scaled": lambda z, y: F.cross_entropy((z * 3 / 2).view(-1, VOCABULARY), y.view(-1)),
    "softcap": lambda z, y: F.cross_entropy(
        (torch.tanh(z / 0.7) * 0.7).view(-1, VOCABULARY), y.view(-1)
    ),
    "tanh_alone": lambda z, y: F.cross_entropy(torch.tanh(z).view(-1, VOCABULARY), y.view(-1)),
    "scaled_softcap": lambda z, y: F.cross_entropy(
        ((z * 2 / 5).tanh() * 4).reshape(-1, VOCABULARY), y.view(-1)
    ),
    "clone": lambda z, y: F.cross_entropy(z.clone().view(-1, VOCABULARY), y.view(-1)),
}


@pytest.mark.parametrize("loss_of", SHIFTED_LOSSES.values(), ids=SHIFTED_LOSSES.keys())
def test_loss_and_gradients_equal_native_without_logits(
    bench: Bench, native: Any, loss_of: Callable[[Any, Any], Any]
) -> None:
    labels = tiny_batch()["input_ids"]
    logits, reference = both(bench, native)
    got, wanted = loss_of(logits, labels), loss_of(reference, labels)
    assert not materialised(logits)
    assert bench.losses_ran() == 1
    assert type(got) is torch.Tensor and got.dtype == wanted.dtype and got.shape == wanted.shape
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=0)
    got.backward()
    wanted.backward()
    assert_same_gradients(bench.model, native)


READS: dict[str, Callable[[Any], Any]] = {
    "print": repr,
    "argmax": lambda z: z.argmax(-1),
    "softmax": lambda z: torch.softmax(z, -1),
    "log_softmax": lambda z: F.log_softmax(z[:, :-1].float(), dim=-1),
    "numpy": lambda z: torch.from_numpy(z.detach().numpy()),
    "cpu": lambda z: z.cpu(),
    "comparison": lambda z: z > 0,
    "item": lambda z: z[0, 0, 0].item(),
    "list": lambda z: z.tolist(),
    "last": lambda z: z[:, -1, :],
    "mask": lambda z: z[torch.ones(2, 11, dtype=torch.bool)],
    "classes": lambda z: z[..., :10],
    "added": lambda z: z + 1,
    "minus_from": lambda z: 1 - z,
    "divisor": lambda z: 1 / (z + 10),
    "half": lambda z: z.half(),
    "double": lambda z: z.double(),
    "tensor_scale": lambda z: z * torch.tensor(2.0),
    "split": lambda z: z.split(1)[0],
    "iterate": lambda z: next(iter(z)),
    "stack": lambda z: torch.stack([z, z]),
    "einsum": lambda z: torch.einsum("btv->bt", z),
    "data": lambda z: z.data,
    "gather": lambda z: z.gather(-1, torch.zeros(2, 11, 1, dtype=torch.long)),
    "strides": lambda z: torch.tensor(z[:, :-1].stride()),
    "unary": lambda z: -z,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_anything_else_reads_what_native_would_give(
    bench: Bench, native: Any, read: Callable[[Any], Any]
) -> None:
    logits, reference = both(bench, native)
    assert isinstance(logits, DeferredLogits)
    got, wanted = read(logits), read(reference)
    if isinstance(wanted, torch.Tensor):
        assert type(got) is torch.Tensor
        assert got.requires_grad == wanted.requires_grad
        assert torch.equal(got, wanted)
    else:
        assert got == wanted or str(got) == str(wanted)
    assert bench.losses_ran() == 0


def test_metadata_is_known_without_values(bench: Bench, native: Any) -> None:
    logits, reference = both(bench, native)
    for name in ("shape", "dtype", "device", "requires_grad", "ndim", "is_leaf", "layout"):
        assert getattr(logits, name) == getattr(reference, name), name
    assert logits.size() == reference.size() and logits.size(-1) == VOCABULARY
    assert logits.dim() == 3 and len(logits) == 2 and logits.numel() == reference.numel()
    assert logits.is_floating_point() and torch.is_tensor(logits)
    assert isinstance(logits, torch.Tensor) and hash(logits) is not None
    assert not materialised(logits)


def test_read_before_the_loss_gives_the_loss_of_what_was_read(bench: Bench, native: Any) -> None:
    labels = tiny_batch()["input_ids"]
    logits, reference = both(bench, native)
    with torch.no_grad():
        assert torch.equal(logits.argmax(-1), reference.argmax(-1))
    got = F.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))
    wanted = F.cross_entropy(reference.view(-1, VOCABULARY), labels.view(-1))
    assert torch.equal(got, wanted) and bench.losses_ran() == 0
    got.backward()
    wanted.backward()
    assert_same_gradients(bench.model, native, exact=True)


def test_loss_first_and_read_after_both_have_gradients(bench: Bench, native: Any) -> None:
    labels = tiny_batch()["input_ids"]
    for logits, model in zip(both(bench, native), (bench.model, native), strict=True):
        loss = F.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))
        (loss + 1e-3 * logits.square().mean()).backward()
        assert model.lm_head.weight.grad is not None
    assert_same_gradients(bench.model, native)


def test_change_in_place_is_seen_by_everything_that_shares_the_values(
    bench: Bench, native: Any
) -> None:
    def use(logits: Any) -> tuple[Any, ...]:
        copied = logits * 2
        view = logits[:, 1:]
        logits[0, :, :5] = 3.0
        logits.mul_(2.0)
        return logits.argmax(-1), copied.sum(), view.sum(), logits.sum()

    with torch.no_grad():
        found = [use(logits) for logits in both(bench, native)]
    for got, wanted in zip(*found, strict=True):
        assert torch.equal(got, wanted)


def test_late_read_raises_with_advice(bench: Bench) -> None:
    optimizer = torch.optim.SGD(bench.model.parameters(), lr=0.1)
    output = bench.model(**tiny_batch())
    output.loss.backward()
    optimizer.step()
    with pytest.raises(DeferredLogitsError, match="before optimizer.step") as raised:
        output.logits.argmax(-1)
    assert raised.value.code == "DEFERRED_LOGITS_LATE"


def test_logits_read_in_time_stay_readable_after_the_step(bench: Bench, native: Any) -> None:
    optimizer = torch.optim.SGD(bench.model.parameters(), lr=0.1)
    output = bench.model(**tiny_batch())
    before = output.logits.detach().clone()
    output.loss.backward()
    optimizer.step()
    assert torch.equal(output.logits, before)


def test_pickle_and_deepcopy_carry_real_values(bench: Bench, native: Any) -> None:
    with torch.no_grad():
        logits, reference = both(bench, native)
    file = io.BytesIO()
    torch.save(logits, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert type(loaded) is torch.Tensor and torch.equal(loaded, reference)
    assert torch.equal(copy.deepcopy(logits), reference)


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "eval"])
def test_loss_has_the_same_value_in_every_mode(bench: Bench, native: Any, mode: str) -> None:
    wanted = native(**tiny_batch()).loss
    context = getattr(torch, mode)() if mode != "eval" else torch.enable_grad()
    bench.model.train(mode != "eval")
    with context:
        output = bench.model(**tiny_batch())
        assert torch.equal(output.loss, wanted)
        assert output.loss.requires_grad == (mode == "eval")
        assert torch.equal(output.logits.argmax(-1), native(**tiny_batch()).logits.argmax(-1))


def test_autocast_gives_logits_and_loss_in_the_dtypes_of_native(bench: Bench, native: Any) -> None:
    losses = []
    for model in (bench.model, native):
        with torch.autocast("cpu", torch.bfloat16):
            output = model(**tiny_batch())
        assert output.logits.dtype == torch.bfloat16
        assert output.loss.dtype == torch.float32
        output.loss.backward()
        losses.append(output.loss)
    assert torch.equal(*losses)
    assert_same_gradients(bench.model, native, exact=True)


def test_read_after_leaving_autocast_is_what_autocast_would_have_given(
    bench: Bench, native: Any
) -> None:
    found = []
    for model in (bench.model, native):
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=tiny_batch()["input_ids"]).logits
        found.append(logits.float().argmax(-1))
        found.append(logits.detach())
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[3])
    assert found[1].dtype == torch.bfloat16


def test_bfloat16_model_returns_the_loss_dtype_of_native(tmp_path: pathlib.Path) -> None:
    model, native = pair(tiny_model("llama").bfloat16())
    bench = Bench(model, tmp_path, COMPOSITES)
    labels = tiny_batch()["labels"].view(-1)
    for cast in (lambda z: z, lambda z: z.float()):
        losses = []
        for m in (model, native):
            logits = cast(m(input_ids=tiny_batch()["input_ids"]).logits)
            losses.append(F.cross_entropy(logits.view(-1, VOCABULARY), labels))
        assert losses[0].dtype == losses[1].dtype
        torch.testing.assert_close(*losses, rtol=1.6e-2, atol=0)
    assert bench.losses_ran() == 2


def test_num_items_in_batch_divides_the_sum(bench: Bench, native: Any) -> None:
    batch = {**tiny_batch(), "num_items_in_batch": torch.tensor(37)}
    got, wanted = bench.model(**batch).loss, native(**batch).loss
    assert torch.equal(got, wanted) and bench.losses_ran() == 1


def test_pre_shifted_labels_are_not_shifted_again(bench: Bench, native: Any) -> None:
    batch = tiny_batch()
    batch["shift_labels"] = F.pad(batch["labels"], (0, 1), value=-100)[:, 1:].contiguous()
    assert torch.equal(bench.model(**batch).loss, native(**batch).loss)
    assert bench.losses_ran() == 1


@pytest.mark.parametrize("keep", [1, 4, torch.tensor([0, 3])], ids=["one", "four", "indices"])
def test_logits_to_keep(bench: Bench, native: Any, keep: Any) -> None:
    got, wanted = both(bench, native, logits_to_keep=keep)
    assert got.shape == wanted.shape and torch.equal(got, wanted)


def test_probabilities_as_target_and_bad_shapes_behave_as_native(bench: Bench, native: Any) -> None:
    target = torch.full((22, VOCABULARY), 1 / VOCABULARY)
    got, wanted = (F.cross_entropy(z.view(-1, VOCABULARY), target) for z in both(bench, native))
    assert torch.equal(got, wanted) and bench.losses_ran() == 0
    for logits in both(bench, native):
        with pytest.raises((ValueError, RuntimeError)):
            F.cross_entropy(logits.view(-1, VOCABULARY), torch.zeros(5, dtype=torch.long))
        with pytest.raises(RuntimeError):
            logits.view(7, -1)


def test_backward_from_the_logits_themselves(bench: Bench, native: Any) -> None:
    for logits in both(bench, native):
        torch.autograd.backward([logits], [torch.ones(logits.shape).cumsum(-1)])
    assert_same_gradients(bench.model, native)
    for logits in both(bench, native):
        torch.autograd.backward([logits.float() * 2], [torch.ones(logits.shape).cumsum(-1)])
    assert_same_gradients(bench.model, native)


def test_backward_with_a_gradient_of_one_number_is_not_taken_for_zero(
    bench: Bench, native: Any
) -> None:
    for logits in both(bench, native):
        torch.autograd.backward([logits], [torch.ones(()).expand(logits.shape)])
    assert_same_gradients(bench.model, native)


def test_fused_loss_wakes_the_node_behind_the_logits_and_computes_nothing_there(
    bench: Bench, native: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interposed(torch.autograd.Function):
        """Stands for DistributedDataParallel: identity that wants to be told of the backward."""

        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            told.append(tuple(grad.shape))
            return grad

    told: list[tuple[int, ...]] = []
    computed: list[object] = []
    gradients_of = HeadSource.gradients
    monkeypatch.setattr(
        HeadSource,
        "gradients",
        lambda self, *args: computed.append(args) or gradients_of(self, *args),
    )
    labels = tiny_batch()["input_ids"].view(-1)
    for logits in both(bench, native):
        passed = Interposed.apply(logits)
        F.cross_entropy(passed.view(-1, VOCABULARY), labels).backward()
    assert told == [(2, 11, VOCABULARY)] * 2 and computed == []
    assert bench.losses_ran() == 1
    assert_same_gradients(bench.model, native)


@pytest.mark.parametrize("frozen", ["head", "body", "all"])
def test_frozen_parts_get_no_gradient(tmp_path: pathlib.Path, frozen: str) -> None:
    model, native = pair(tiny_model("llama"))
    Bench(model, tmp_path, COMPOSITES)
    for m in (model, native):
        for name, parameter in m.named_parameters():
            parameter.requires_grad = frozen != "all" and ("lm_head" in name) != (frozen == "head")
    losses = [m(**tiny_batch()).loss for m in (model, native)]
    assert losses[0].requires_grad == losses[1].requires_grad == (frozen != "all")
    if frozen != "all":
        for loss in losses:
            loss.backward()
        assert_same_gradients(model, native, exact=True)


def test_hook_on_the_logits_gets_their_gradient(bench: Bench, native: Any) -> None:
    seen = []
    for logits in both(bench, native):
        logits.register_hook(lambda grad: seen.append(grad.clone()))
        F.cross_entropy(logits.view(-1, VOCABULARY), tiny_batch()["input_ids"].view(-1)).backward()
    assert torch.equal(seen[0], seen[1])


def test_hook_on_the_head_keeps_it_native(bench: Bench, native: Any) -> None:
    seen = []
    bench.model.lm_head.register_forward_hook(lambda m, args, output: seen.append(output))
    assert torch.equal(bench.model(**tiny_batch()).loss, native(**tiny_batch()).loss)
    assert [type(output) for output in seen] == [torch.Tensor] and bench.losses_ran() == 0


def test_head_bias_is_part_of_the_loss(tmp_path: pathlib.Path) -> None:
    model = tiny_model("llama")
    model.lm_head = nn.Linear(64, VOCABULARY)
    model, native = pair(model)
    bench = Bench(model, tmp_path, COMPOSITES)
    losses = [m(**tiny_batch()).loss for m in (model, native)]
    assert torch.equal(*losses) and bench.losses_ran() == 1
    for loss in losses:
        loss.backward()
    assert_same_gradients(model, native, exact=True)


def test_float64_runs_native(tmp_path: pathlib.Path) -> None:
    model, native = pair(tiny_model("llama").double())
    bench = Bench(model, tmp_path, COMPOSITES)
    assert torch.equal(model(**tiny_batch()).loss, native(**tiny_batch()).loss)
    assert bench.losses_ran() == 0


def test_deferred_logits_false_leaves_the_head_alone(tmp_path: pathlib.Path) -> None:
    bench = Bench(tiny_model("llama"), tmp_path, COMPOSITES, deferred_logits=False)
    assert "forward" not in bench.model.lm_head.__dict__
    assert [r.reason for r in bench.refusals] == ["deferred_logits=False"]
    assert type(bench.model(**tiny_batch()).logits) is torch.Tensor


def test_generation_gives_the_same_tokens(bench: Bench, native: Any) -> None:
    ids = tiny_batch()["input_ids"]
    options = {"max_new_tokens": 5, "do_sample": False}
    got, wanted = (m.eval().generate(ids, **options) for m in (bench.model, native))
    assert torch.equal(got, wanted)


def test_loss_still_works_when_the_head_was_restored_meanwhile(bench: Bench, native: Any) -> None:
    logits, reference = both(bench, native)
    bench.switch(HEAD_ONLY | {"fused_linear_cross_entropy": HEAD_ONLY["swiglu"]})
    labels = tiny_batch()["input_ids"].view(-1)
    got = F.cross_entropy(logits.view(-1, VOCABULARY), labels)
    assert torch.equal(got, F.cross_entropy(reference.view(-1, VOCABULARY), labels))
    assert bench.losses_ran() == 0


def test_every_label_ignored_is_what_the_operator_gives(bench: Bench) -> None:
    batch = tiny_batch()
    batch["labels"] = torch.full_like(batch["labels"], -100)
    bench.model(**batch).loss.backward()  # The fake's mean is torch's NaN: no exception, one call.
    assert bench.losses_ran() == 1


def test_vmap_and_functional_call_run_native(bench: Bench, native: Any) -> None:
    hidden = torch.randn(3, 4, 64)
    got = torch.vmap(bench.model.lm_head)(hidden)
    assert torch.equal(got, torch.vmap(native.lm_head)(hidden))
