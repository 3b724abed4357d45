"""Discovery: few groups, stable ids, all that a decision needs."""

from __future__ import annotations

import pathlib
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from fakes.tiny_models import VOCABULARY, tiny_model
from fuseboard._plan import ParameterShape, Site
from fuseboard._sites import discover
from torch import nn


def sites(model: nn.Module) -> dict[str, Site]:
    return {group.site.site_id: group.site for group in discover(model)}


def of_class(model: nn.Module, name: str) -> list[Site]:
    return [s for s in sites(model).values() if s.qualified_name.endswith("." + name)]


def test_norms_of_one_size_are_one_group_and_those_of_heads_another() -> None:
    found = of_class(tiny_model("qwen3"), "Qwen3RMSNorm")
    assert sorted((s.count, s.parameters["weight"].shape) for s in found) == [
        (4, (16,)),
        (5, (64,)),
    ]
    assert all(s.attributes == {"variance_epsilon": 1e-6} for s in found)


def test_site_describes_children_and_plain_attributes() -> None:
    (mlp,) = of_class(tiny_model("llama"), "LlamaMLP")
    assert mlp.children["act_fn"] == "transformers.activations.SiLUActivation"
    assert mlp.children["gate_proj"] == "torch.nn.modules.linear.Linear"
    assert mlp.attributes == {"hidden_size": 64, "intermediate_size": 112} and mlp.count == 2
    assert mlp.role == "module" and mlp.site_id.startswith("LlamaMLP/")


def test_head_is_described_by_its_owner() -> None:
    (head,) = [s for s in sites(tiny_model("llama")).values() if s.role == "lm_head"]
    assert head.qualified_name == "transformers.models.llama.modeling_llama.LlamaForCausalLM"
    assert head.children == {"head": "torch.nn.modules.linear.Linear"}
    assert head.parameters == {"weight": ParameterShape((VOCABULARY, 64), "float32")}
    assert head.attributes["vocab_size"] == VOCABULARY
    assert head.attributes["model_type"] == "llama" and head.count == 1


def test_torch_layers_and_containers_are_not_sites() -> None:
    found = sites(tiny_model("llama")).values()
    assert not [s.qualified_name for s in found if s.qualified_name.startswith("torch.")]
    assert sites(nn.Sequential(nn.Linear(2, 2), nn.ModuleList([nn.ReLU()]))) == {}


def test_ids_are_the_same_at_each_discovery_and_for_each_copy() -> None:
    assert sites(tiny_model("llama")) == sites(tiny_model("llama"))


def test_ids_depend_on_all_that_decides() -> None:
    one = {s.site_id for s in of_class(tiny_model("llama"), "LlamaRMSNorm")}
    other = {s.site_id for s in of_class(tiny_model("llama", rms_norm_eps=1e-5), "LlamaRMSNorm")}
    half = {s.site_id for s in of_class(tiny_model("llama").bfloat16(), "LlamaRMSNorm")}
    assert len(one | other | half) == 3


def test_model_without_sites_and_model_with_a_head_that_raises_are_harmless() -> None:
    class Odd(nn.Module):
        def get_output_embeddings(self) -> Any:
            raise NotImplementedError

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    (site,) = sites(Odd()).values()
    assert site.role == "module"


def test_module_with_too_many_children_is_left_out() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for i in range(65):
                self.add_module(f"m{i}", nn.Identity())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    assert sites(Wide()) == {}


def test_eighty_layers_take_few_groups_and_little_time() -> None:
    with torch.device("meta"):
        config = transformers.LlamaConfig(num_hidden_layers=80, vocab_size=128)
        model = transformers.LlamaForCausalLM(config)
    discover(model)
    started = time.process_time()
    found = sites(model)
    assert len(found) < 12
    # Under 0.1 s of processor time when measured; the limit allows for a slow machine.
    assert time.process_time() - started < 5


def test_sites_are_the_same_after_fully_shard(tmp_path: pathlib.Path) -> None:
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    model = tiny_model("llama")
    wanted = [group.site for group in discover(model)]
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", world_size=1, rank=0
    )
    try:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
        for part in (*model.model.layers, model.model.norm, model.lm_head, model):
            fully_shard(part, mesh=mesh)
        assert [group.site for group in discover(model)] == wanted
    finally:
        distributed.destroy_process_group()
