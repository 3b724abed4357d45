"""Deferred logits and bound forwards inside the loops and wrappers that people train with."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import torch.nn.functional as F
from fakes.tiny_models import VOCABULARY, gradients, tiny_batch, tiny_model
from torch_side import COMPOSITES, Bench, assert_same_gradients, pair

from tests import warm

HERE = pathlib.Path(__file__).resolve().parent


def train(model: Any, steps: int = 3, accumulate: int = 1) -> list[float]:
    """A plain loop."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        for micro in range(accumulate):
            loss = model(**tiny_batch(seed=10 * step + micro)).loss / accumulate
            loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("accumulate", [1, 2])
def test_plain_loop(tmp_path: pathlib.Path, accumulate: int) -> None:
    model, native = pair(tiny_model("llama"))
    bench = Bench(model, tmp_path, COMPOSITES)
    assert train(model, accumulate=accumulate) == train(native, accumulate=accumulate)
    assert bench.losses_ran() == 3 * accumulate


def test_custom_loop_with_shift_and_cross_entropy(tmp_path: pathlib.Path) -> None:
    model, native = pair(tiny_model("qwen3"))
    bench = Bench(model, tmp_path, COMPOSITES)
    ids = tiny_batch()["input_ids"]
    for m in (model, native):
        logits = m(input_ids=ids).logits
        loss = F.cross_entropy(
            logits[..., :-1, :].contiguous().view(-1, VOCABULARY),
            ids[..., 1:].contiguous().view(-1),
        )
        loss.backward()
    assert bench.losses_ran() == 1
    assert_same_gradients(model, native)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(tmp_path: pathlib.Path, reentrant: bool) -> None:
    model, native = pair(tiny_model("llama"))
    bench = Bench(model, tmp_path, COMPOSITES)
    for m in (model, native):
        m.gradient_checkpointing_enable({"use_reentrant": reentrant})
        m.train()
        m.enable_input_require_grads()
        m(**tiny_batch()).loss.backward()
    assert bench.losses_ran() == 1
    assert_same_gradients(model, native, exact=True)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_around_the_whole_model(tmp_path: pathlib.Path, reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    model, native = pair(tiny_model("llama"))
    Bench(model, tmp_path, COMPOSITES)
    ids = tiny_batch()["input_ids"]
    for m in (model, native):
        embedded = m.get_input_embeddings()(ids).detach().requires_grad_()
        logits = checkpoint(
            lambda e, m=m: m(inputs_embeds=e, use_cache=False).logits,
            embedded,
            use_reentrant=reentrant,
        )
        F.cross_entropy(logits.view(-1, VOCABULARY), ids.view(-1)).backward()
    assert_same_gradients(model, native)


def test_accelerate_prepare_with_bfloat16(tmp_path: pathlib.Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    model, native = pair(tiny_model("llama"))
    bench = Bench(model, tmp_path, COMPOSITES)
    losses = []
    for m in (model, native):
        accelerator = accelerate.Accelerator(mixed_precision="bf16", cpu=True)
        optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
        prepared, optimizer = accelerator.prepare(m, optimizer)
        output = prepared(**tiny_batch())
        assert output.logits.dtype == torch.float32
        accelerator.backward(output.loss)
        losses.append(output.loss)
    assert torch.equal(*losses) and bench.losses_ran() == 1
    assert_same_gradients(model, native, exact=True)


def test_patch_after_accelerate_prepare_still_finds_the_head(tmp_path: pathlib.Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    model = accelerate.Accelerator(mixed_precision="bf16", cpu=True).prepare(tiny_model("llama"))
    bench = Bench(model, tmp_path, COMPOSITES)
    model(**tiny_batch()).loss.backward()
    assert bench.refusals == () and bench.losses_ran() == 1


class _Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {k: v[0] for k, v in tiny_batch(rows=1, seed=index).items()}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_trainer_trains_and_evaluates_as_native(tmp_path: pathlib.Path, smoothing: float) -> None:
    pytest.importorskip("accelerate")
    model, native = pair(tiny_model("llama"))
    bench = Bench(model, tmp_path, COMPOSITES)
    found = []
    for m in (model, native):
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=2,
                per_device_eval_batch_size=2,
                gradient_accumulation_steps=2,
                max_steps=2,
                label_smoothing_factor=smoothing,
                use_cpu=True,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
                logging_strategy="no",
            )
            trainer = transformers.Trainer(
                model=m,
                args=arguments,
                train_dataset=_Rows(),
                eval_dataset=_Rows(),
                compute_metrics=lambda p: {"sum": float(p.predictions.argmax(-1).sum())},
            )
            result = trainer.train()
            scores = trainer.evaluate()
        found.append((result.training_loss, scores["eval_loss"], scores["eval_sum"]))
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    assert (bench.losses_ran() > 0) == (smoothing == 0.0)


@pytest.mark.parametrize("reference", ["sites", "patched"])
def test_lora_on_attention_trains_and_keeps_the_fused_loss(
    tmp_path: pathlib.Path, reference: str
) -> None:
    peft = pytest.importorskip("peft")
    model, native = pair(tiny_model("llama"))
    config = peft.LoraConfig(target_modules=["q_proj", "gate_proj"], r=2, init_lora_weights=False)
    benches = []
    if reference == "patched":
        benches.append(Bench(model, tmp_path, COMPOSITES))
    wrapped = []
    for m in (model, native):
        torch.manual_seed(0)
        wrapped.append(peft.get_peft_model(m, config))
    if reference == "sites":
        benches.append(Bench(wrapped[0], tmp_path, COMPOSITES))
    for m in wrapped:
        m(**tiny_batch()).loss.backward()
    assert benches[0].losses_ran() == 1
    assert any("lora" in name for name in gradients(wrapped[0]))
    assert_same_gradients(wrapped[0], wrapped[1], exact=True)


@pytest.mark.parametrize("order", ["patched_first", "wrapped_first"])
@pytest.mark.parametrize("how", ["lora", "modules_to_save"])
def test_adapter_on_the_head_trains(tmp_path: pathlib.Path, order: str, how: str) -> None:
    peft = pytest.importorskip("peft")
    model, native = pair(tiny_model("llama"))
    options: dict[str, Any] = {"target_modules": ["lm_head"]}
    if how == "modules_to_save":
        options = {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}
    config = peft.LoraConfig(r=2, init_lora_weights=False, **options)
    if order == "patched_first":
        Bench(model, tmp_path, COMPOSITES)
    wrapped = []
    for m in (model, native):
        torch.manual_seed(0)
        wrapped.append(peft.get_peft_model(m, config))
    if order == "wrapped_first":
        bench = Bench(wrapped[0], tmp_path, COMPOSITES)
        assert bench.losses_ran() == 0
    losses = [m(**tiny_batch()).loss for m in wrapped]
    torch.testing.assert_close(*losses, rtol=1e-6, atol=0)
    for loss in losses:
        loss.backward()
    assert any("lm_head" in name for name in gradients(wrapped[0]))
    assert_same_gradients(wrapped[0], wrapped[1])


def test_compiled_model_gives_the_numbers_of_native(tmp_path: pathlib.Path) -> None:
    torch._dynamo.reset()
    model, native = pair(tiny_model("llama"))
    bench = Bench(model, tmp_path, COMPOSITES)
    compiled = torch.compile(model, backend="eager")  # test_compiled.py has them with aot_eager.
    for seed in (1, 2):
        losses = [m(**tiny_batch(seed=seed)).loss for m in (compiled, native)]
        torch.testing.assert_close(*losses, rtol=1e-6, atol=0)
        for loss in losses:
            loss.backward()
    assert_same_gradients(model, native)
    assert bench.losses_ran() == 0  # Deferred logits cannot be traced: the head declines.
    bench.patcher.restore()
    torch.testing.assert_close(compiled(**tiny_batch()).loss, native(**tiny_batch()).loss)


def test_data_parallel_replicas_run_native(tmp_path: pathlib.Path) -> None:
    model = tiny_model("llama")
    Bench(model, tmp_path, COMPOSITES)
    for module in model.modules():
        replica = module._replicate_for_data_parallel()
        assert "forward" not in replica.__dict__
        assert "_replicate_for_data_parallel" not in replica.__dict__


@pytest.mark.parametrize("ranks", [2])
def test_distributed_data_parallel(ranks: int) -> None:
    """Default, find_unused_parameters and static_graph, with the loss in and out of the model."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = warm.run_ranks(HERE / "ddp_worker.py", folder, ranks)
    for code, output in outputs:
        assert code == 0, output
        assert "all equal" in output
