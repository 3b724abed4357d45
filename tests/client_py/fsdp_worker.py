"""One rank of test_fully_sharded: folder, world size, rank, and which cases if not all.

Runs every case: each trains or reads a patched model and a native one, sharded alike. Writes what
became of them to <folder>/<rank>.json, by name: "" or a traceback.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import pathlib
import sys
import traceback
from collections.abc import Callable
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "client_py" / "src"), str(HERE)]

import torch
import torch.nn.functional as F
from fakes.tiny_models import VOCABULARY, tiny_batch, tiny_model
from fuseboard import _agreement
from torch import distributed
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch_side import COMPOSITES, Bench, no_second_way, operators

# How a model is cut: where the head's weight is, and whether it is whole after the forward.
LAYOUTS: dict[str, dict[str, Any]] = {
    "root": {},  # Whole until the backward.
    "root_resharded": {"reshard_after_forward": True},  # As accelerate does.
    "head_unit": {"head": True},  # The head is a unit of its own.
}
Case = Callable[["Two"], None]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


class Two:
    """A patched model and a native one, sharded alike, each with an optimizer."""

    def __init__(
        self, folder: pathlib.Path, layout: str, order: str = "sharded_first", **settings: Any
    ) -> None:
        self.rank, self.layout = distributed.get_rank(), layout
        policy = settings.pop("policy", MixedPrecisionPolicy())
        self.model, self.native = (tiny_model("llama", **settings) for _ in range(2))
        if order == "patched_first":
            self.bench = Bench(self.model, folder, COMPOSITES, operators=operators())
        for model in (self.model, self.native):
            shard(model, policy, **LAYOUTS[layout])
        if order == "sharded_first":
            self.bench = Bench(self.model, folder, COMPOSITES, operators=operators())
        assert self.bench.refusals == (), self.bench.refusals
        self.both = (self.model, self.native)
        self.optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in self.both]

    def batch(self, step: int = 0) -> dict[str, torch.Tensor]:
        return tiny_batch(seed=10 * step + self.rank)

    def forward(self, step: int = 0) -> list[Any]:
        return [m(**self.batch(step)) for m in self.both]

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def assert_same_gradients(self, tolerance: float = 1e-5) -> None:
        found, wanted = (gradients(m) for m in self.both)
        assert found.keys() == wanted.keys() and wanted
        for name, gradient in wanted.items():
            difference = (found[name] - gradient).abs().max().item()
            limit = tolerance * max(gradient.abs().max().item(), 0.1)
            assert difference <= limit, f"{name}: {difference} > {limit}"


class Outer(torch.nn.Module):
    """A model around the model."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, **batch: torch.Tensor) -> Any:
        return self.inner(**batch)


def shard(model: Any, policy: Any, head: bool = False, **options: Any) -> None:
    inside = dataclasses.replace(policy, output_dtype=None)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=inside, **options)
    if head:
        fully_shard(model.lm_head, mp_policy=inside, **options)
    fully_shard(model, mp_policy=policy, **options)


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {n: p.grad.full_tensor() for n, p in model.named_parameters() if p.grad is not None}


def same(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(wanted), rtol=1e-5, atol=1e-6)


def refused(read: Callable[[], Any]) -> str:
    """The message of the error that a read ends in."""
    from fuseboard._errors import DeferredLogitsError

    try:
        read()
    except DeferredLogitsError as error:
        return str(error)
    raise AssertionError("the read gave a value")


def refused_without_the_others(read: Callable[[], Any]) -> None:
    """That a read is refused as the other ranks do not take part, without much patience."""
    patience, _agreement.WAIT_S = _agreement.WAIT_S, 1.0
    try:
        assert "the other ranks" in refused(read)
    finally:
        _agreement.WAIT_S = patience


def train(two: Two, steps: int = 3) -> None:
    ran = two.bench.losses_ran()
    for step in range(steps):
        outputs = two.forward(step)
        same(*(o.loss.detach() for o in outputs))
        for output in outputs:
            output.loss.backward()
        two.assert_same_gradients()
        two.step()
    assert two.bench.losses_ran() == ran + steps, two.bench.losses_ran()


@case
def patched_first(two: Two) -> None:
    train(two)


@case
def sharded_first(two: Two) -> None:
    train(two)


@case
def loss_outside_of_the_model(two: Two) -> None:
    for step in range(2):
        losses = []
        for model in two.both:
            ids = two.batch(step)["input_ids"]
            logits = model(input_ids=ids).logits[:, :-1]
            losses.append(F.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1)))
        same(*(loss.detach() for loss in losses))
        with no_second_way():
            for loss in losses:
                loss.backward()
        two.assert_same_gradients()
        two.step()
    assert two.bench.losses_ran() == 2, two.bench.losses_ran()


@case
def two_forwards_before_the_backward(two: Two) -> None:
    for model in two.both:
        first, second = (model(**two.batch(step)) for step in (0, 1))
        loss = first.loss + second.loss + (first.logits - second.logits).square().mean()
        loss.backward()
    two.assert_same_gradients()


@case
def logits_read_before_the_backward(two: Two) -> None:
    outputs = two.forward()
    same(*(o.logits.detach().clone() for o in outputs))
    for output in outputs:
        output.loss.backward()
    two.assert_same_gradients()


@case
def logits_read_after_the_backward(two: Two) -> None:
    outputs = two.forward()
    for output in outputs:
        output.loss.backward()
    same(*(o.logits.detach().clone() for o in outputs))
    two.assert_same_gradients()
    two.step()
    same(*(o.loss.detach() for o in two.forward(1)))


@case
def gradient_through_logits(two: Two) -> None:
    for output in two.forward():
        (output.loss + output.logits.square().mean()).backward()
    two.assert_same_gradients()


@case
def gradient_through_a_sum_of_logits(two: Two) -> None:
    """Its gradient is one number, seen as a whole tensor."""
    for output in two.forward():
        output.logits.sum().backward()
    two.assert_same_gradients()


@case
def logits_read_after_the_step_are_refused(two: Two) -> None:
    (output, _) = outputs = two.forward()
    for o in outputs:
        o.loss.backward()
    two.step()
    assert "after the weights of the head changed" in refused(lambda: output.logits.sum())
    two.forward(1)
    assert "after the weights of the head changed" in refused(lambda: output.logits.sum())


@case
def logits_of_an_earlier_micro_batch(two: Two) -> None:
    """The weights were gathered anew since, but they are the same."""
    first = two.forward(0)
    for output in first:
        output.loss.backward()
    second = two.forward(1)
    same(*(o.logits.detach().clone() for o in first))
    for output in second:
        output.loss.backward()
    two.assert_same_gradients()


@case
def evaluation_and_then_training(two: Two) -> None:
    with torch.no_grad():
        outputs = two.forward()
        same(*(o.loss for o in outputs))
        same(*(o.logits.clone() for o in outputs))
    train(two)


@case
def only_one_rank_reads(two: Two) -> None:
    """Where that would need the other ranks, it is refused; nobody hangs and training goes on."""
    outputs = two.forward()
    for output in outputs:
        output.loss.backward()
    if two.rank == 0:
        assert "not computed" in str(outputs[0])
        refused_without_the_others(lambda: outputs[0].logits.sum())
    distributed.barrier()
    if two.rank == 1:  # Too late: rank 0 has given up.
        refused_without_the_others(lambda: outputs[0].logits.sum())
    two.step()
    for step in (1, 2):
        outputs = two.forward(step)
        same(*(o.loss.detach() for o in outputs))
        for output in outputs:
            output.loss.backward()
        same(*(o.logits.detach().clone() for o in outputs))
        two.step()


@case
def only_one_rank_computes_a_loss(two: Two) -> None:
    outputs = two.forward()
    ids = two.batch()["input_ids"]
    for output in outputs:
        output.loss.backward()
    if two.rank == 0:
        with torch.no_grad():
            refused_without_the_others(
                lambda: F.cross_entropy(outputs[0].logits.view(-1, VOCABULARY), ids.view(-1))
            )
    distributed.barrier()
    two.step()
    same(*(o.loss.detach() for o in two.forward(1)))


@case
def gradient_checkpointing(two: Two) -> None:
    for model in two.both:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    train(two)


@case
def accumulation_without_synchronisation(two: Two) -> None:
    for model in two.both:
        for micro in range(2):
            model.set_requires_gradient_sync(micro == 1)
            model(**two.batch(micro)).loss.backward()
    two.assert_same_gradients()


@case
def unpatched_in_the_middle(two: Two) -> None:
    train(two)
    ran = two.bench.losses_ran()
    outputs = two.forward(5)
    two.bench.patcher.restore()
    for output in outputs:
        output.loss.backward()
    two.assert_same_gradients()
    two.step()
    same(*(o.loss.detach() for o in two.forward(6)))
    assert two.bench.losses_ran() == ran + 1


@case
def one_rank_reads_before_the_backward(two: Two) -> None:
    """Without help where the weight is still whole."""
    outputs = two.forward()
    if two.layout == "root" and two.rank == 0:
        same(*(o.logits.detach().clone() for o in outputs))
    distributed.barrier()
    for output in outputs:
        output.loss.backward()
    two.assert_same_gradients()


@case
def changes_that_no_version_tells_of_are_noticed(two: Two) -> None:
    optimizer = torch.optim.AdamW(two.model.parameters(), lr=1e-2, fused=True)
    output = two.forward()[0]
    output.loss.backward()
    optimizer.step()
    assert "an optimizer stepped" in refused(lambda: output.logits.sum())


def _rough(two: Two, tolerance: float) -> None:
    for step in range(2):
        outputs = two.forward(step)
        assert len({o.loss.dtype for o in outputs}) == len({o.logits.dtype for o in outputs}) == 1
        got, wanted = (o.loss.detach().float() for o in outputs)
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=0)
        for output in outputs:
            output.loss.backward()
        two.assert_same_gradients(tolerance)
        two.step()


@case
def bfloat16(two: Two) -> None:
    """Native rounds its logits to bfloat16; the fused loss does not."""
    _rough(two, 3e-2)


@case
def bfloat16_with_outputs_in_float32(two: Two) -> None:
    _rough(two, 3e-2)


@case
def patched_inside_of_what_is_sharded(two: Two) -> None:
    """The module that gathers the head's weight is not the one that was patched."""
    outer = [Outer(tiny_model("llama")) for _ in range(2)]
    bench = Bench(outer[0].inner, two.bench.folder, COMPOSITES, operators=operators())
    for model in outer:
        fully_shard(model, reshard_after_forward=True)
        output = model(**two.batch())
        (output.loss + output.logits.square().mean()).backward()
    found, wanted = (gradients(m) for m in outer)
    assert found.keys() == wanted.keys() and bench.losses_ran() == 1
    for name, gradient in wanted.items():
        same(found[name], gradient)


@case
def head_left_out_of_sharding(two: Two) -> None:
    models = [tiny_model("llama") for _ in range(2)]
    for model in models:
        fully_shard(model, ignored_params={model.lm_head.weight})
    bench = Bench(models[0], two.bench.folder, COMPOSITES, operators=operators())
    outputs = [m(**two.batch()) for m in models]
    for output in outputs:
        output.loss.backward()
    same(*(m.lm_head.weight.grad for m in models))
    if two.rank == 0:
        same(*(o.logits.detach().clone() for o in outputs))
    assert bench.losses_ran() == 1


@case
def tied(two: Two) -> None:
    train(two)


@case
def in_fsdp1(two: Two) -> None:
    """In FullyShardedDataParallel: fused if patched before it; late reads are refused."""
    for original in (False, True):
        models = [tiny_model("llama") for _ in range(2)]
        bench = Bench(models[0], two.bench.folder, COMPOSITES, operators=operators())
        layers = ModuleWrapPolicy({type(models[0].model.layers[0])})
        wrapped = [
            FullyShardedDataParallel(
                m,
                auto_wrap_policy=layers,
                use_orig_params=original,
                device_id=torch.device("cpu"),
            )
            for m in models
        ]
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in wrapped]
        for step in range(3):
            outputs = [m(**two.batch(step)) for m in wrapped]
            same(*(o.loss.detach() for o in outputs))
            if step == 1:
                same(*(o.logits.detach().clone() for o in outputs))
            for output in outputs:
                extra = output.logits.square().mean() if step == 1 else 0.0
                (output.loss + extra).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        assert bench.losses_ran() == 3, bench.losses_ran()
        late = outputs[0].logits
        assert "after the weights of the head changed" in refused(late.sum)


SETTINGS: dict[str, dict[str, Any]] = {
    "patched_first": {"order": "patched_first"},
    "tied": {"tie_word_embeddings": True},
    "bfloat16": {"policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)},
    "bfloat16_with_outputs_in_float32": {
        "policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    },
}


def cases(layout: str) -> list[str]:
    """Names of the cases that a layout has."""
    # fully_shard refuses a parameter that two units share.
    left_out = {("tied", "head_unit")}
    once = ("in_fsdp1", "patched_inside_of_what_is_sharded", "head_left_out_of_sharding")
    left_out |= {(name, other) for name in once for other in LAYOUTS if other != "root"}
    return [name for name in CASES if (name, layout) not in left_out]


def every_case() -> list[tuple[str, str]]:
    """Layouts with the names of their cases."""
    return [(layout, name) for layout in LAYOUTS for name in cases(layout)]


def run(name: str, folder: pathlib.Path, layout: str) -> str:
    """Runs a case; returns "" or the traceback."""
    try:
        CASES[name](Two(folder, layout, **SETTINGS.get(name, {})))
    except Exception:  # noqa: BLE001
        return traceback.format_exc()
    return ""


def main(folder: str, world_size: int, rank: int, *only: str) -> None:
    torch.set_num_threads(1)
    _agreement.WAIT_S = 5.0
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", world_size=world_size, rank=rank
    )
    own = pathlib.Path(folder) / str(rank)
    own.mkdir(exist_ok=True)
    results = {}
    for layout, name in every_case():
        if only and name not in only:
            continue
        faulthandler.dump_traceback_later(120, exit=True)  # A hang, not a busy machine.
        results[f"{layout} {name}"] = run(name, own, layout)
        faulthandler.cancel_dump_traceback_later()
        distributed.barrier()
    own.with_suffix(".json").write_text(json.dumps(results))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
