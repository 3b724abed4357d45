"""Whole training on a GPU through the real daemon: the fused run must be as good as a native one."""

from __future__ import annotations

import pathlib

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.gpu

STEPS = 100
SEEDS = (0, 1, 2)  # One trajectory is too few: 100 bf16 steps make chance of a flipped bit.


def text_batches(batch: int, length: int) -> torch.Tensor:
    """Byte tokens of this project's own sources, [STEPS, batch, length], on the GPU."""
    root = pathlib.Path(__file__).resolve().parents[2]
    text = b"".join(p.read_bytes() for p in sorted(root.glob("**/*.py")) if "build" not in p.parts)
    need = STEPS * batch * length
    tokens = torch.frombuffer(bytearray(text * (need // len(text) + 1)), dtype=torch.uint8)[:need]
    return tokens.view(STEPS, batch, length).long().cuda()


def losses(fused: bool, attention: str, seed: int = 0) -> list[float]:
    """Losses of STEPS bf16 AdamW steps of a 4-layer Llama."""
    import fuseboard

    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=32000,
        attn_implementation="sdpa",
    )
    model = transformers.LlamaForCausalLM(config).to("cuda", torch.bfloat16)
    if fused:
        fuseboard.patch(model, require=["rms_norm", "swiglu", "fused_linear_cross_entropy"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    backend = {
        "math": torch.nn.attention.SDPBackend.MATH,
        "flash": torch.nn.attention.SDPBackend.FLASH_ATTENTION,
    }[attention]
    found = []
    with torch.nn.attention.sdpa_kernel(backend):
        for ids in text_batches(8, 512):
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.detach())
    if fused:
        fuseboard.unpatch(model)
    return torch.stack(found).float().tolist()


def test_fused_loss_stays_within_twice_the_spread_of_two_native_variants() -> None:
    spreads, distances = [], []
    for seed in SEEDS:
        math, flash = losses(False, "math", seed), losses(False, "flash", seed)
        fused = losses(True, "flash", seed)
        steps = list(zip(fused, math, flash, strict=True))
        spreads.append(max(abs(a - b) for _, a, b in steps))
        distances.append(max(min(abs(f - a), abs(f - b)) for f, a, b in steps))
        assert fused[-1] < 0.7 * fused[0], "it must learn for the comparison to mean anything"
    assert max(distances) <= 2 * max(spreads), f"fused is {distances} off, natives {spreads}"


def test_two_fused_runs_are_bit_equal() -> None:
    assert losses(True, "math") == losses(True, "math")
