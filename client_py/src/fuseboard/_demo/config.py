"""What the demonstration trains, on which machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

# Relative difference of losses that a dtype allows. float32: rounding in another order. bfloat16: the
# parameters themselves are rounded to 8 bits at every step, and native variants differ as much.
LOSS_TOLERANCE: Mapping[str, float] = {"float32": 1e-5, "bfloat16": 2e-2}
# How much a kill of the fused loss may add to the peak.
KILL_TOLERANCE = 1.10


@dataclasses.dataclass(frozen=True)
class DemoConfig:
    """Sizes of the model and of a run.

    The vocabulary is padded far beyond the 256 bytes that occur: it is the vocabulary that makes the
    loss large, and a byte-level tokenizer needs no download.

    Attributes:
        steps: Of the native and of the fused run.
        counted: Steps at their end that run with instruments.
        skip: Steps at their begin that are not timed.
        gap: Steps of the live run between two switches.
    """

    device_type: str = "cpu"
    dtype: str = "float32"
    hidden: int = 256
    intermediate: int = 704
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    vocab: int = 32768
    length: int = 256
    batch: int = 4
    steps: int = 10
    counted: int = 2
    skip: int = 1
    gap: int = 2
    learning_rate: float = 1e-3
    seed: int = 0
    max_live_steps: int = 400

    @property
    def timed(self) -> int:
        """Steps whose time counts: the middle ones."""
        return self.steps - self.skip - self.counted

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one step trains on."""
        return self.batch * self.length

    @property
    def loss_tolerance(self) -> float:
        """Largest relative difference of losses that counts as agreement."""
        return LOSS_TOLERANCE[self.dtype]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return dataclasses.asdict(self)


def default_config(device_type: str) -> DemoConfig:
    """What ends within minutes: a small model on two CPU cores, a large one on a GPU."""
    if device_type != "cuda":
        return DemoConfig()
    return DemoConfig(
        device_type="cuda",
        dtype="bfloat16",
        hidden=2048,
        intermediate=5632,
        layers=8,
        heads=16,
        kv_heads=8,
        vocab=128256,
        length=2048,
        batch=4,
        steps=30,
        counted=5,
        skip=5,
        gap=5,
        learning_rate=3e-4,
    )
