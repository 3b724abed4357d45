"""Models, or parts of one, whose code or numbers no entry of the catalogue has: native, and the report says why."""

from __future__ import annotations

import copy
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import fuseboard

from tests.client_py.fakes.tiny_models import VOCABULARY, gradients, tiny_batch, tiny_model
from tests.integration.test_training import HOME, running


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory(prefix="fb-") as folder,
        running(pathlib.Path(folder)) as daemon,
    ):
        yield f"unix:{daemon.job_socket}"


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FUSEBOARD_HOME", str(HOME))
    yield
    fuseboard.unpatch()


def reasons(model: Any, address: str) -> dict[str, tuple[str, str]]:
    """Patches it. By class: what runs, and why."""
    report = fuseboard.patch(model, address=address).report()
    if "keeps its binding" in report.problem:
        pytest.skip("an earlier test of this process took another build's binding")
    assert not report.problem
    return {s.qualified_name.rpartition(".")[2]: (s.runs, s.reason) for s in report.sites}


def trained(model: Any) -> tuple[float, dict[str, Any]]:
    loss = model(**tiny_batch()).loss
    loss.backward()
    return loss.item(), gradients(model)


def test_a_model_type_without_an_entry_is_left_as_it_is(address: str) -> None:
    torch.manual_seed(7)
    config = transformers.GPT2Config(
        n_layer=1, n_head=2, n_embd=32, vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    native = copy.deepcopy(model)
    found = reasons(model, address)
    assert {"GPT2LMHeadModel", "GPT2MLP", "GPT2Attention"} <= found.keys()
    for name, (runs, reason) in found.items():
        assert runs == "native", name
        assert "no catalogue entry" in reason or "has no fingerprint" in reason, (name, reason)
    assert [name for name, m in model.named_modules() if "forward" in m.__dict__] == []
    (loss, got), (want_loss, want) = trained(model), trained(native)
    assert loss == want_loss and got.keys() == want.keys()
    assert all(torch.equal(got[name], gradient) for name, gradient in want.items())


@pytest.mark.parametrize("activation", ["gelu", "gelu_pytorch_tanh", "relu"])
def test_an_mlp_with_another_activation_is_native_beside_kernels(
    address: str, activation: str
) -> None:
    model = tiny_model("llama", num_hidden_layers=1, hidden_act=activation)
    native = copy.deepcopy(model)
    found = reasons(model, address)
    assert found["LlamaMLP"][0] == "native" and "submodule act_fn is" in found["LlamaMLP"][1]
    assert found["LlamaRMSNorm"][0].startswith("rms_norm")
    assert found["LlamaForCausalLM"][0].startswith("fused_linear_cross_entropy")
    (loss, got), (want_loss, want) = trained(model), trained(native)
    assert loss == pytest.approx(want_loss, rel=1e-6)
    for name, gradient in want.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-4, atol=1e-6)


def test_logits_that_a_softcap_saturates_are_natives(address: str) -> None:
    model = tiny_model(
        "gemma2", num_hidden_layers=1, final_logit_softcapping=1.0, tie_word_embeddings=False
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(100)
    native = copy.deepcopy(model)
    found = reasons(model, address)
    assert found["Gemma2MLP"][0] == "native" and "submodule act_fn is" in found["Gemma2MLP"][1]
    assert found["Gemma2ForCausalLM"][0] == "native"
    logits = native(**tiny_batch()).logits.abs()
    assert 0.999 < logits.max() <= 1 and logits.median() > 0.9
    assert trained(model)[0] == pytest.approx(trained(native)[0], rel=1e-6)
