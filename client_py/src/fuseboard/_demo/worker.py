"""One training run, in a process of its own: its peak memory is nobody else's.

Reads a JSON object from its first line of standard input and writes one JSON object a line to standard
output. A live run ends when standard input does.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from fuseboard._demo.config import DemoConfig
from fuseboard._demo.corpus import batch_of
from fuseboard._devices import peak_rss_bytes
from fuseboard._measure import Variant, Window
from fuseboard._profile import StepWindows
from fuseboard._schedule import Schedule


def _emit(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


class Trainer:
    """The model, its optimizer and its text; the same for all variants."""

    def __init__(self, config: DemoConfig, text: bytes) -> None:
        import torch
        import transformers

        torch.manual_seed(config.seed)
        self.config = config
        self._text = text
        self._device = torch.device(config.device_type)
        llama = transformers.LlamaConfig(
            hidden_size=config.hidden,
            intermediate_size=config.intermediate,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            vocab_size=config.vocab,
            max_position_embeddings=config.length,
            tie_word_embeddings=False,
            use_cache=False,
        )
        model: Any = transformers.LlamaForCausalLM(llama)  # type: ignore[no-untyped-call]
        self.model = model.to(self._device, getattr(torch, config.dtype)).train()
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)

    def step(self, number: int) -> float:
        """Trains one step; returns its loss."""
        import torch

        rows = batch_of(self._text, number, self.config.batch, self.config.length)
        tokens = torch.tensor(rows, device=self._device)
        loss = self.model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    @property
    def device_name(self) -> str:
        """The GPU's name, or "cpu"."""
        import torch

        if self._device.type != "cuda":
            return "cpu"
        return str(torch.cuda.get_device_name(self._device))

    def reset_peak(self) -> None:
        """Begins a new peak, where the device can."""
        import torch

        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def peak_bytes(self) -> int | None:
        """Peak since `reset_peak` (GPU) or since the process began (CPU)."""
        import torch

        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated())
        return peak_rss_bytes()


def _sites(patched: Any) -> list[dict[str, Any]]:
    """Decisions, those about known operations first."""
    sites = sorted(patched.report().sites, key=lambda site: not site.operation)
    return [
        {
            "site": site.site_id,
            "count": site.count,
            "decision": site.runs,
            "reason": "; ".join((site.reason, *site.refusals)),
            "operation": site.operation,
            "kind": "native" if site.refusals else site.kind.name.lower(),
        }
        for site in sites
    ]


def _runs(patched: Any) -> dict[str, str]:
    """What each operation runs as now."""
    return {s["operation"]: s["kind"] for s in _sites(patched) if s["operation"]}


def _window_fields(window: Window) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return None if value is None else {"value": value.value, "samples": value.samples}

    method = window.launches_per_step.method.name if window.launches_per_step else ""
    return {
        "launches": plain(window.launches_per_step),
        "device_ms": plain(window.device_ms_per_step),
        "step_ms": plain(window.step_ms),
        "method": method,
        "error": window.error,
        "kernels": [(k.name, k.count) for k in window.kernels],
    }


def _run_fixed(trainer: Trainer, variant: Variant, revision: int) -> Window:
    """The native or the fused run: a fixed number of steps, the last ones with instruments."""
    config = trainer.config
    windows = StepWindows(
        Schedule(skip=config.skip, warmup=config.timed, active=config.counted),
        variant,
        device_type=config.device_type,
        revision=lambda: revision,
    )
    for number in range(config.steps):
        if number == config.skip + config.timed:
            # Before instruments cost memory of their own.
            _emit(event="peak", bytes=trainer.peak_bytes())
        windows.boundary()
        _emit(event="step", step=number, loss=trainer.step(number))
    windows.close()
    return windows.finished[0]


def _run_live(trainer: Trainer, patched: Any) -> None:
    """Trains until standard input ends; operators switch kernels meanwhile."""
    ended = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    for number in range(trainer.config.max_live_steps):
        trainer.reset_peak()
        loss = trainer.step(number)
        _emit(
            event="step",
            step=number,
            loss=loss,
            runs=_runs(patched),
            peak=trainer.peak_bytes(),
            at=time.time(),
        )
        if ended.is_set():
            break


def main() -> None:
    """Runs what the first line of standard input asks for."""
    order = json.loads(sys.stdin.readline())
    config = DemoConfig(**order["config"])
    with open(order["text_path"], "rb") as file:
        text = file.read()
    import fuseboard

    trainer = Trainer(config, text)
    _emit(event="device", name=trainer.device_name)
    options = {"address": order["address"], "job": order["job"]}
    if order["variant"] == "native":
        window = _run_fixed(trainer, Variant.NATIVE, 0)
        # Only now: the native run must not know of Fuseboard. This brings its window to the daemon.
        patched = fuseboard.patch(trainer.model, disable=["*"], **options)
    else:
        patched = fuseboard.patch(trainer.model, **options)
        _emit(event="patched", problem=patched.problem, sites=_sites(patched))
        if order["variant"] == "live":
            _run_live(trainer, patched)
            _emit(event="sites", sites=_sites(patched))
            return
        window = _run_fixed(trainer, Variant.PLAN, patched.report().revision)
    patched.add_window(window, trainer.device_name)
    _emit(event="window", **_window_fields(window))


if __name__ == "__main__":
    main()
