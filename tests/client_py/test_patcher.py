"""Binding and unbinding: nothing is left behind, nothing half applied, nothing outside touched."""

from __future__ import annotations

import copy
import dataclasses
import gc
import inspect
import io
import pathlib
import sys
import types
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from fakes.catalogue import Libraries, plan_for
from fakes.operators import FakeOperators
from fakes.tiny_models import tiny_batch, tiny_model
from fuseboard._binding import Binding, counters
from fuseboard._bound import BoundForward
from fuseboard._errors import ArtifactError
from fuseboard._patcher import ModelPatcher
from fuseboard._plan import DecisionKind, OperationCounter, native_plan
from torch import nn
from torch_side import ALL, COMPOSITES, Bench, assert_same_gradients, pair

NATIVE = dict.fromkeys(ALL, DecisionKind.NATIVE)


def insides(model: nn.Module) -> list[dict[str, int]]:
    """Identity of every attribute of every module."""
    return [{k: id(v) for k, v in m.__dict__.items()} for m in model.modules()]


def outside() -> dict[tuple[str, str], int]:
    """Identity of every global and class attribute of torch.nn and the models' code."""
    found = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith(("transformers.models.llama", "torch.nn", "transformers.loss")):
            continue
        for key, value in list(vars(module).items()):
            found[name, key] = id(value)
            if isinstance(value, type):
                found.update({(f"{name}.{key}", k): id(v) for k, v in list(vars(value).items())})
    return found


@pytest.fixture
def model() -> Any:
    return tiny_model("llama")


def test_restore_leaves_every_attribute_as_it_was(model: Any, tmp_path: pathlib.Path) -> None:
    before = insides(model)
    bench = Bench(model, tmp_path)
    assert insides(model) != before
    model(**tiny_batch()).loss.backward()
    bench.patcher.restore()
    bench.patcher.restore()
    assert insides(model) == before


def test_nothing_outside_the_model_changes(model: Any, tmp_path: pathlib.Path) -> None:
    model(**tiny_batch())
    before = outside()
    Bench(model, tmp_path)
    model(**tiny_batch()).loss.backward()
    assert outside() == before


def test_native_plan_changes_nothing(model: Any, tmp_path: pathlib.Path) -> None:
    before = insides(model)
    bench = Bench(model, tmp_path, NATIVE)
    bench.patcher.apply(bench.patcher.prepare(native_plan(bench.sites, "no daemon")))
    assert insides(model) == before and bench.refusals == ()


def test_switching_follows_each_plan_and_keeps_the_numbers(
    model: Any, tmp_path: pathlib.Path
) -> None:
    model, native = pair(model)
    bench = Bench(model, tmp_path)
    wanted = native(**tiny_batch()).loss
    plans = [None, COMPOSITES, NATIVE, {"swiglu": DecisionKind.NATIVE}, None]
    for kinds in plans:
        bench.switch(kinds)
        bench.operators.calls.clear()
        assert torch.equal(model(**tiny_batch()).loss, wanted)
        for name in ALL:
            kind = (kinds or {}).get(name, DecisionKind.KERNEL)
            handles = set(bench.operators.ran(name)) - {-1}
            assert bool(handles) == (kind == DecisionKind.KERNEL), (kinds, name)
            assert bool(bench.operators.ran(name)) == (kind != DecisionKind.NATIVE)


def test_another_version_of_a_library_gets_another_handle(
    model: Any, tmp_path: pathlib.Path
) -> None:
    bench = Bench(model, tmp_path)
    bench.switch(content="second")
    bench.operators.calls.clear()
    model(**tiny_batch())
    assert {h for _, h, _ in bench.operators.calls if h >= 0}.isdisjoint({0, 1, 2})


def test_prepare_loads_each_kernel_on_the_device_of_the_model(
    model: Any, tmp_path: pathlib.Path
) -> None:
    bench = Bench(model, tmp_path)
    assert sorted(bench.operators.prepared) == [(0, "cpu"), (1, "cpu"), (2, "cpu")]


def test_library_that_differs_from_its_digest_is_refused_and_the_old_plan_stays(
    model: Any, tmp_path: pathlib.Path
) -> None:
    bench = Bench(model, tmp_path)
    before = insides(model)
    plan = plan_for(bench.sites, Libraries(tmp_path), content="new")
    pathlib.Path(plan.artifacts[0].path).write_text("tampered")
    with pytest.raises(ArtifactError, match="has sha256 .* the plan says") as raised:
        bench.patcher.prepare(plan)
    assert raised.value.code == "DIGEST_MISMATCH" and insides(model) == before


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda path: path.unlink(), "ARTIFACT_MISSING"),
        (lambda path: path.write_text("broken"), "KERNEL_UNLOADABLE"),
    ],
    ids=["missing", "broken"],
)
def test_library_that_cannot_be_loaded_is_refused(
    model: Any, tmp_path: pathlib.Path, damage: Any, code: str
) -> None:
    patcher = ModelPatcher(model, binding=Binding(FakeOperators()))
    content = "broken" if code == "KERNEL_UNLOADABLE" else ""
    plan = plan_for(patcher.sites(), Libraries(tmp_path), content=content)
    if not content:
        damage(pathlib.Path(plan.artifacts[0].path))
    with pytest.raises(ArtifactError) as raised:
        patcher.prepare(plan)
    assert raised.value.code == code


def test_plan_without_binding_is_refused(model: Any, tmp_path: pathlib.Path) -> None:
    patcher = ModelPatcher(model, binding=Binding())
    plan = plan_for(patcher.sites(), Libraries(tmp_path))
    with pytest.raises(ArtifactError, match="names no binding"):
        patcher.prepare(plan)


def test_decision_whose_library_is_not_in_the_plan_is_refused(
    model: Any, tmp_path: pathlib.Path
) -> None:
    patcher = ModelPatcher(model, binding=Binding(FakeOperators()))
    plan = dataclasses.replace(plan_for(patcher.sites(), Libraries(tmp_path)), artifacts=())
    with pytest.raises(ArtifactError, match="not among the plan's artifacts"):
        patcher.prepare(plan)


def test_unknown_adapter_and_bad_parameter_run_native_with_the_reason(
    model: Any, tmp_path: pathlib.Path
) -> None:
    patcher = ModelPatcher(model, binding=Binding(FakeOperators()))
    plan = plan_for(patcher.sites(), Libraries(tmp_path))
    changes = {
        "rms_norm": {"adapter": "norm_of_tomorrow"},
        "swiglu": {"parameters": {"gate": "gate_proj", "activation": "act_fn"}},
    }
    decisions = tuple(
        dataclasses.replace(d, **changes.get(d.operation, {})) for d in plan.decisions
    )
    refused = patcher.apply(patcher.prepare(dataclasses.replace(plan, decisions=decisions)))
    assert [(r.count, r.reason) for r in refused] == [
        (2, "parameter up is missing"),
        (5, "adapter 'norm_of_tomorrow' is unknown to this client"),
    ]
    assert [n for n, m in model.named_modules() if "forward" in m.__dict__] == ["lm_head"]


def test_apply_that_fails_leaves_everything_as_it_was(
    model: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(model, tmp_path, {"rms_norm": DecisionKind.NATIVE})
    before = insides(model)
    made = []

    def fail_late(self: BoundForward, module: nn.Module, operation: Any) -> None:
        made.append(module)
        if len(made) == 3:
            raise MemoryError

    monkeypatch.setattr(BoundForward, "__init__", fail_late)
    with pytest.raises(MemoryError):
        bench.switch(COMPOSITES)
    assert insides(model) == before


def test_forward_replaced_after_discovery_runs_native(model: Any, tmp_path: pathlib.Path) -> None:
    operators = FakeOperators()
    patcher = ModelPatcher(model, binding=Binding(operators))
    plan = plan_for(patcher.sites(), Libraries(tmp_path))
    mine = types.MethodType(lambda self, x: x, model.model.norm)
    model.model.norm.forward = mine
    (refusal,) = patcher.apply(patcher.prepare(plan))
    assert (refusal.count, "replaced" in refusal.reason) == (1, True)
    assert model.model.norm.forward is mine


def test_wrapper_put_around_a_bound_forward_survives_restore(
    model: Any, tmp_path: pathlib.Path
) -> None:
    model, native = pair(model)
    bench = Bench(model, tmp_path)
    norm = model.model.norm
    inner = norm.forward
    norm.forward = lambda x: inner(x)
    bench.patcher.restore()
    bench.operators.calls.clear()
    assert torch.equal(model(**tiny_batch()).loss, native(**tiny_batch()).loss)
    assert bench.operators.calls == []


def test_signature_repr_isinstance_and_state_dict_are_those_of_native(
    model: Any, tmp_path: pathlib.Path
) -> None:
    model, native = pair(model)
    Bench(model, tmp_path)
    assert repr(model) == repr(native)
    for mine, theirs in zip(model.modules(), native.modules(), strict=True):
        assert type(mine) is type(theirs)
        assert inspect.signature(mine.forward) == inspect.signature(theirs.forward)
        assert mine.forward.__name__ == theirs.forward.__name__
    state = model.state_dict()
    assert list(state) == list(native.state_dict())
    model.load_state_dict(native.state_dict(), strict=True)
    model.apply(model._init_weights)


def test_arguments_are_taken_and_refused_as_native_does(model: Any, tmp_path: pathlib.Path) -> None:
    Bench(model, tmp_path)
    norm, x = model.model.norm, torch.randn(2, 64)
    assert torch.equal(norm(hidden_states=x), norm(x))
    for args, kwargs in (((), {}), ((x, x), {}), ((x,), {"y": 1}), ((), {"x": x})):
        with pytest.raises(TypeError):
            norm(*args, **kwargs)


def test_deepcopy_and_pickle_are_native_and_on_their_own(
    model: Any, tmp_path: pathlib.Path
) -> None:
    bench = Bench(model, tmp_path)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.mul_(1.5)
        bench.operators.calls.clear()
        twin(**tiny_batch()).loss.backward()
        assert bench.operators.calls == []
        assert twin.lm_head.weight.grad is not None and model.lm_head.weight.grad is None
        assert twin.model.norm.forward.__self__ is twin.model.norm
        again = ModelPatcher(twin, binding=Binding(FakeOperators()))
        assert again.sites() == bench.sites


def test_patched_model_is_freed_without_the_garbage_collector(tmp_path: pathlib.Path) -> None:
    model = nn.Sequential(tiny_model("llama").model.norm)
    bench = Bench(model, tmp_path)
    assert "forward" in model[0].__dict__
    reference = weakref.ref(model[0])
    bench.model = None
    gc.collect()
    gc.disable()
    try:
        del model
        assert reference() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernel_that_differs_at_first_use_runs_native_and_is_reported(
    tmp_path: pathlib.Path, dtype: torch.dtype
) -> None:
    model, native = pair(tiny_model("llama").to(dtype))
    bench = Bench(model, tmp_path, skew=1.05)
    losses = [m(**tiny_batch()).loss for m in (model, native)]
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    assert_same_gradients(model, native, exact=True)
    reported = {r.site_id.split("/")[0]: r for r in bench.patcher.refusals()}
    assert reported.keys() == {"LlamaRMSNorm", "LlamaMLP", "LlamaForCausalLM"}
    assert "differs from native by 0.0" in reported["LlamaMLP"].reason
    assert reported["LlamaRMSNorm"].count == 5


def test_first_use_compares_once_per_site(model: Any, tmp_path: pathlib.Path) -> None:
    bench = Bench(model, tmp_path)
    for _ in range(2):
        model(**tiny_batch()).loss.backward()
        bench.switch(COMPOSITES)
        bench.switch()
    for name, modules in zip(ALL, (5, 2, 1), strict=True):
        handles = bench.operators.ran(name)
        assert handles.count(-1) == 1 and len(handles) == 2 * modules + 2, name


def test_activation_with_a_hook_stays_native(model: Any, tmp_path: pathlib.Path) -> None:
    model.model.layers[0].mlp.act_fn.register_forward_hook(lambda m, args, out: out * 2)
    bench = Bench(model, tmp_path, COMPOSITES)
    assert [r.reason for r in bench.refusals] == ["activation act_fn is hooked"]


def test_counters_are_read_from_the_operators(model: Any, tmp_path: pathlib.Path) -> None:
    bench = Bench(model, tmp_path, COMPOSITES)
    model(**tiny_batch())
    binding = bench.patcher._binding
    assert OperationCounter("swiglu", 0, {"no kernel": 2}) in counters(binding)
    assert counters(Binding()) == ()


def test_quantised_and_subclassed_inputs_run_native(model: Any, tmp_path: pathlib.Path) -> None:
    class Tagged(torch.Tensor):
        pass

    bench = Bench(model, tmp_path)
    x = torch.randn(2, 64).as_subclass(Tagged)
    assert type(model.model.norm(x)) is Tagged
    assert type(model.model.layers[0].mlp(x)) is Tagged
    assert bench.operators.calls == []
