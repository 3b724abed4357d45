"""Model types of the catalogue against their own code: loss, every gradient, and what matches."""

from __future__ import annotations

import pathlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from fakes.catalogue import catalogue, entry_for
from fakes.tiny_models import tiny_batch, tiny_model
from torch_side import ALL, COMPOSITES, Bench, assert_same_gradients, pair

MODELS = sorted(model.model_type for model in catalogue().models)


def test_catalogue_names_llama_and_qwen3() -> None:
    assert {"llama", "qwen3"} <= set(MODELS)


@pytest.mark.parametrize("model_type", MODELS)
def test_model_matches_exactly_the_entries_that_the_catalogue_lists(model_type: str) -> None:
    from fuseboard._sites import discover

    model = next(m for m in catalogue().models if m.model_type == model_type)
    found = (entry_for(group.site) for group in discover(tiny_model(model_type)))
    assert {e.id for e in found if e is not None} == set(model.entries)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("model_type", MODELS)
def test_loss_and_all_gradients_equal_native(
    model_type: str, tied: bool, tmp_path: pathlib.Path
) -> None:
    model, native = pair(tiny_model(model_type, tie_word_embeddings=tied))
    bench = Bench(model, tmp_path, COMPOSITES)
    assert bench.refusals == ()
    batch = tiny_batch()
    got, wanted = model(**batch).loss, native(**batch).loss
    got.backward()
    wanted.backward()
    assert torch.equal(got, wanted)
    assert_same_gradients(model, native, exact=True)
    assert {name for name, _, _ in bench.operators.calls} == set(ALL)
    assert bench.losses_ran() == 1


@pytest.mark.parametrize("model_type", MODELS)
def test_every_norm_is_bound_including_those_of_queries_and_keys(
    model_type: str, tmp_path: pathlib.Path
) -> None:
    model = tiny_model(model_type)
    norms = [n for n, m in model.named_modules() if type(m).__name__.endswith("RMSNorm")]
    Bench(model, tmp_path)
    assert norms == [
        n for n, m in model.named_modules() if "forward" in m.__dict__ and n.endswith("norm")
    ]
