"""One rank of test_fully_sharded_patch, started by torch.distributed.run.

Trains a model under `fuseboard.patch` and fully_shard, in either order, and a native one; reads logits late.
"""

from __future__ import annotations

import faulthandler
import pathlib
import sys
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "client_py" / "src"), str(HERE)]

import fuseboard
import torch
from fakes.tiny_models import tiny_batch, tiny_model
from fuseboard import _patch
from fuseboard._plan import DecisionKind
from torch import distributed
from torch.distributed.fsdp import fully_shard

FUSED = ("LlamaForCausalLM", "LlamaMLP", "LlamaRMSNorm")


def shard(model: Any) -> None:
    for layer in model.model.layers:
        fully_shard(layer, reshard_after_forward=True)
    fully_shard(model, reshard_after_forward=True)


def main() -> None:
    faulthandler.dump_traceback_later(240, exit=True)
    torch.set_num_threads(1)
    _patch._START_DEADLINE_S = 60.0  # The machine may be busy.
    distributed.init_process_group("gloo")
    for first in ("patch", "shard"):
        print(f"first: {first}", flush=True)
        check(first)
    distributed.destroy_process_group()


def check(first: str) -> None:
    model, native = tiny_model("llama"), tiny_model("llama")
    steps = {"patch": lambda: fuseboard.patch(model, job="sharded"), "shard": lambda: shard(model)}
    for name in sorted(steps, key=lambda name: name != first):
        steps[name]()
    shard(native)
    assert_runs_fused()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, native)]
    for step in range(3):
        batch = tiny_batch(seed=10 * step + distributed.get_rank())
        outputs = [m(**batch) for m in (model, native)]
        close(*(o.loss.detach() for o in outputs))
        for output in outputs:
            output.loss.backward()
        for got, wanted in zip(model.parameters(), native.parameters(), strict=True):
            close(got.grad.full_tensor(), wanted.grad.full_tensor())
        close(*(o.logits.detach().clone() for o in outputs))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert fuseboard.report().step == 3
    assert_runs_fused()
    fuseboard.unpatch()
    outputs = [m(**tiny_batch()) for m in (model, native)]
    close(*(o.loss.detach() for o in outputs))


def close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def assert_runs_fused() -> None:
    kinds = {site.qualified_name.rpartition(".")[2]: site.kind for site in fuseboard.report().sites}
    assert {name: kinds.get(name) for name in FUSED} == dict.fromkeys(FUSED, DecisionKind.KERNEL)


if __name__ == "__main__":
    main()
