"""The real binding and kernel libraries of a build, under real models, on the CPU."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from fakes.catalogue import Libraries, plan_for
from fakes.tiny_models import VOCABULARY, gradients, tiny_batch, tiny_model
from fuseboard._binding import Binding, counters, process_binding
from fuseboard._errors import ArtifactError
from fuseboard._patcher import ModelPatcher
from fuseboard._plan import Artifact, ArtifactKind
from torch_side import pair

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The library whose handle an operation needs.
LIBRARY = {"fused_linear_cross_entropy": "cross_entropy"}


def built(pattern: str) -> pathlib.Path:
    """The newest file of any build."""
    found = sorted(
        ROOT.glob(f"build/*/stage/lib/fuseboard/{pattern}"), key=lambda p: p.stat().st_mtime
    )
    found = [p for p in found if "asan" not in p.parts[-6] and "tsan" not in p.parts[-6]]
    if not found:
        pytest.skip(f"no build has {pattern}")
    return found[-1]


class BuiltLibraries(Libraries):
    """Artifacts of a build."""

    def __init__(self) -> None:
        super().__init__(ROOT)

    def artifact(self, name: str, content: str = "") -> Artifact:
        library = LIBRARY.get(name, name)
        return artifact(ArtifactKind.KERNEL, library, built(f"kernels/{library}.so"))


def artifact(kind: ArtifactKind, name: str, path: pathlib.Path) -> Artifact:
    return Artifact(kind, name, "0.1.0", str(path), hashlib.sha256(path.read_bytes()).hexdigest())


def binding_artifact() -> Artifact:
    short = ".".join(torch.__version__.split("+")[0].split(".")[:3])
    return artifact(
        ArtifactKind.BINDING, "fuseboard_torch", built(f"torch/{short}-*/libfuseboard_torch.so")
    )


def patched(model: Any) -> ModelPatcher:
    patcher = ModelPatcher(model)
    plan = plan_for(patcher.sites(), BuiltLibraries())
    plan = dataclasses.replace(plan, artifacts=(binding_artifact(), *plan.artifacts))
    assert patcher.apply(patcher.prepare(plan)) == ()
    return patcher


@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_kernels_train_as_native(model_type: str) -> None:
    model, native = pair(tiny_model(model_type))
    patcher = patched(model)
    before = {c.operation: c.fused_calls for c in counters()}
    for m in (model, native):
        optimizer = torch.optim.SGD(m.parameters(), lr=0.05)
        m.losses = []
        for seed in range(3):
            loss = m(**tiny_batch(seed=seed)).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            m.losses.append(loss.item())
    assert model.losses == pytest.approx(native.losses, rel=1e-5)
    assert patcher.refusals() == ()
    after = {c.operation: c.fused_calls for c in counters()}
    for operation in ("rms_norm", "swiglu", "fused_linear_cross_entropy"):
        assert after[operation] > before.get(operation, 0)


def outcome(model: Any, batch: dict[str, torch.Tensor]) -> Any:
    """The kind of error that a step raises, or which of the loss and the gradients are finite."""
    try:
        loss = model(**batch).loss
        loss.backward()
    except (IndexError, RuntimeError, ValueError) as error:
        return type(error)
    finite = {n: bool(g.isfinite().all()) for n, g in gradients(model).items()}
    return bool(loss.isfinite()), finite


@pytest.mark.parametrize("bad", [VOCABULARY, -7, "no rows"])
def test_a_bad_batch_raises_as_natively_and_spoils_no_later_one(bad: int | str) -> None:
    batch = tiny_batch()
    if isinstance(bad, int):
        batch["labels"][1, 5] = bad
    else:
        batch = {name: tensor[:0] for name, tensor in batch.items()}
    model, native = pair(tiny_model("llama"))
    patched(model)
    assert outcome(model, batch) is outcome(native, batch) in (IndexError, RuntimeError)
    for m in (model, native):
        m.zero_grad()
        assert outcome(m, tiny_batch())[0]
    for name, gradient in gradients(native).items():
        torch.testing.assert_close(model.get_parameter(name).grad, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("part", ["lm_head", "model.norm", "model.layers.1.mlp.gate_proj"])
def test_a_weight_of_nan_spoils_what_it_spoils_natively(part: str) -> None:
    model, native = pair(tiny_model("llama"))
    for m in (model, native):
        m.get_parameter(f"{part}.weight").data.view(-1)[1] = float("nan")
    patched(model)
    assert outcome(model, tiny_batch()) == outcome(native, tiny_batch())
    assert not outcome(model, tiny_batch())[0]


def test_second_binding_in_a_process_is_refused(tmp_path: pathlib.Path) -> None:
    wanted = binding_artifact()
    process_binding().load(wanted)
    other = tmp_path / "libother.so"
    other.write_bytes(pathlib.Path(wanted.path).read_bytes() + b"\0")
    with pytest.raises(ArtifactError, match="keeps its binding") as raised:
        process_binding().load(artifact(ArtifactKind.BINDING, "fuseboard_torch", other))
    assert raised.value.code == "BINDING_IN_USE"


def test_file_that_is_no_library_is_refused(tmp_path: pathlib.Path) -> None:
    text = tmp_path / "libtext.so"
    text.write_text("not a library")
    with pytest.raises(ArtifactError) as raised:
        Binding().load(artifact(ArtifactKind.BINDING, "fuseboard_torch", text))
    assert raised.value.code == "BINDING_UNLOADABLE"
    binding = Binding()
    binding.load(binding_artifact())
    with pytest.raises(ArtifactError) as raised:
        binding.load_kernel(artifact(ArtifactKind.KERNEL, "text", text))
    assert raised.value.code == "KERNEL_UNLOADABLE"
