"""Models of transformers small enough to train in a test, by model type."""

from __future__ import annotations

from typing import Any

import torch

VOCABULARY = 96


def tiny_model(model_type: str, **settings: Any) -> Any:
    """Two layers, hidden size 64, the same random weights at each call."""
    import transformers

    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(
        model_type,
        **{
            "hidden_size": 64,
            "intermediate_size": 112,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "attn_implementation": "eager",
            **settings,
        },
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # Norm weights of exactly 1 would hide a missing product.
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def tiny_batch(rows: int = 2, length: int = 11, seed: int = 3) -> dict[str, torch.Tensor]:
    """Ids and labels; some labels are ignored."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (rows, length), generator=generator)
    labels = ids.clone()
    labels[0, : length // 3] = -100
    return {"input_ids": ids, "labels": labels}


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Copies of all gradients."""
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
