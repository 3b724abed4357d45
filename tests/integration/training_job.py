"""A training process for the tests: a tiny Llama on the CPU, one step per line on standard input.

Prints one JSON object per line: first {"ready": true}, then after each step its loss bit for bit, the
step count, the plan in force and what each operation runs. `--lockstep` waits for a line on standard
input before every step, so that a test can act between any two of them.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from typing import Any

import torch
import transformers


def tiny_llama(vocab: int, hidden: int) -> torch.nn.Module:
    """Two layers from a fixed seed, float32."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocab,
        max_position_embeddings=512,
    )
    return transformers.LlamaForCausalLM(config)


class Tokens(torch.utils.data.Dataset[torch.Tensor]):
    """Random token rows, each a function of its index alone."""

    def __init__(self, rows: int, length: int, vocab: int) -> None:
        self.rows, self.length, self.vocab = rows, length, vocab

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        return torch.randint(self.vocab, (self.length,), generator=generator)


def running(state: dict[str, Any]) -> dict[str, str]:
    """What each operation of the plan in force runs: "KERNEL", "COMPOSITE" or "NATIVE"."""
    return {d["operation"]: d["kind"] for d in state["decisions"] if d["operation"]}


def say(**values: object) -> None:
    """Prints one line for the test."""
    print(json.dumps(values), flush=True)


def main() -> None:
    """Trains as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--lockstep", action="store_true")
    parser.add_argument("--native", action="store_true", help="do not patch at all")
    parser.add_argument("--workers", type=int, default=0, help="data-loader workers, forked")
    parser.add_argument("--vocab", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--require", action="append", default=[])
    options = parser.parse_args()
    torch.set_num_threads(2)
    model = tiny_llama(options.vocab, options.hidden)
    if not options.native:
        import fuseboard

        fuseboard.patch(model, require=options.require)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(
        Tokens(options.steps * options.batch, options.length, options.vocab),
        batch_size=options.batch,
        num_workers=options.workers,
        multiprocessing_context="fork" if options.workers else None,
    )
    say(ready=True)
    for step, ids in enumerate(loader):
        if options.lockstep:
            sys.stdin.readline()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state = {} if options.native else fuseboard.state()
        say(
            step=step,
            loss=loss.item().hex(),
            revision=state.get("revision"),
            running=running(state) if state else {},
            peak_kib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        )
    say(done=True)


if __name__ == "__main__":
    main()
