"""One rank of test_training_flows.test_distributed_data_parallel: folder, world size, rank."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "client_py" / "src"), str(HERE)]

import torch
import torch.nn.functional as F
from fakes.operators import FakeOperators
from fakes.tiny_models import VOCABULARY, tiny_batch, tiny_model
from fuseboard._errors import DeferredLogitsError
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch_side import COMPOSITES, Bench, assert_same_gradients, no_second_way, operators, pair

VARIANTS: list[dict[str, bool]] = [
    {},
    {"gradient_as_bucket_view": True},
    {"find_unused_parameters": True},
    {"static_graph": True},
]


def main(folder: str, world_size: int, rank: int) -> None:
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        world_size=world_size,
        rank=rank,
    )
    for options in VARIANTS:
        for inside in (True, False):
            check(options, inside, rank, pathlib.Path(folder) / str(rank))
            if not isinstance(operators(), FakeOperators):  # Whose loss is NaN as natively.
                labels_on_one_rank(options, inside, rank, pathlib.Path(folder) / str(rank))
    read_on_one_rank(rank, pathlib.Path(folder) / str(rank))
    distributed.destroy_process_group()
    print("all equal")


def check(options: dict[str, bool], inside: bool, rank: int, folder: pathlib.Path) -> None:
    """Two steps of both models; the last gradients must be equal."""
    folder.mkdir(exist_ok=True)
    model, native = pair(tiny_model("llama"))
    bench = Bench(model, folder, COMPOSITES)
    for m in (model, native):
        wrapped = DistributedDataParallel(m, **options)
        for step in range(2):
            batch = tiny_batch(seed=10 * step + rank)
            m.zero_grad()
            with no_second_way():
                loss_of(wrapped, batch, inside).backward()
    assert bench.losses_ran() == 2, (options, inside, bench.losses_ran())
    assert_same_gradients(model, native)


def loss_of(model: Any, batch: dict[str, torch.Tensor], inside: bool) -> torch.Tensor:
    if inside:
        return model(**batch).loss
    logits = model(input_ids=batch["input_ids"]).logits
    return F.cross_entropy(logits.view(-1, VOCABULARY), batch["labels"].view(-1))


def labels_on_one_rank(
    options: dict[str, bool], inside: bool, rank: int, folder: pathlib.Path
) -> None:
    """The others' loss is 0, natively NaN, and their gradients are none: what comes is the first rank's."""
    model, native = pair(tiny_model("llama"))
    bench = Bench(model, folder, COMPOSITES, operators=operators())
    wrapped = DistributedDataParallel(model, **options)
    for step in range(2):
        batch = tiny_batch(seed=step)
        native.zero_grad()
        (loss_of(native, batch, inside) / distributed.get_world_size()).backward()
        if rank > 0:
            batch["labels"].fill_(-100)
        model.zero_grad()
        loss = loss_of(wrapped, batch, inside)
        assert (loss.item() == 0) == (rank > 0)
        with no_second_way():
            loss.backward()
    assert bench.losses_ran() == 2
    assert_same_gradients(model, native)


def read_on_one_rank(rank: int, folder: pathlib.Path) -> None:
    """Needs no other rank, gives native's numbers until the step, and is refused after it."""
    model, native = pair(tiny_model("llama"))
    Bench(model, folder, COMPOSITES)
    both = [DistributedDataParallel(m) for m in (model, native)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in both]
    for reader in range(2):
        outputs = [m(**tiny_batch(seed=rank)) for m in both]
        unread = outputs[0].logits.float().view(-1, VOCABULARY)
        for output in outputs:
            output.loss.backward()
        if rank == reader:
            assert torch.equal(outputs[0].logits + 0, outputs[1].logits)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if rank != reader:
            try:
                unread.sum()
            except DeferredLogitsError as error:
                assert error.code == "DEFERRED_LOGITS_LATE"
            else:
                raise AssertionError("a late read gave a value")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
