"""Starts the training processes and takes down what they say."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from fuseboard._demo.config import DemoConfig
from fuseboard._demo.daemon import DemoDaemon, DemoError

# Longest wait for a switch. A step of the small model takes seconds on a loaded machine.
_SWITCH_S = 240.0
_END_S = 1800.0
# In this order; each but the last two leaves the model less fused.
SWITCHES = (
    ("disable", "rms_norm"),
    ("kill", "fused_linear_cross_entropy"),
    ("unkill", "fused_linear_cross_entropy"),
    ("enable", "rms_norm"),
)


@dataclasses.dataclass(frozen=True)
class Switch:
    """What an operator did to the live run."""

    what: str
    operation: str
    requested_at: int
    applied_step: int


@dataclasses.dataclass
class Run:
    """All that one process said."""

    device: str = ""
    problem: str = ""
    steps: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    sites: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    window: dict[str, Any] = dataclasses.field(default_factory=dict)
    peak: int | None = None

    @property
    def losses(self) -> list[float]:
        """Loss of each step."""
        return [step["loss"] for step in self.steps]


class Process:
    """A worker that runs. Its words are read by a thread of our own, so it never waits for us."""

    def __init__(self, order: dict[str, Any], progress: Callable[[str], None]) -> None:
        self.run = Run()
        self._progress = progress
        self._news = threading.Condition()
        self._ended = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fuseboard._demo.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for_step(self, step: int) -> None:
        """Waits until `step` steps are done.

        Raises:
            DemoError: The process ended before.
        """
        with self._news:
            self._news.wait_for(lambda: len(self.run.steps) >= step or self._ended, _END_S)
            if len(self.run.steps) < step:
                raise DemoError(f"training ended after {len(self.run.steps)} steps, want {step}")

    @property
    def steps_done(self) -> int:
        """Steps so far."""
        return len(self.run.steps)

    def finish(self) -> Run:
        """Closes the worker's input and waits for its end.

        Raises:
            DemoError: It failed.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DemoError(f"training did not end within {_END_S:.0f} s") from None
        except BaseException:
            self.kill()
            raise
        self._reader.join()
        if code != 0:
            raise DemoError(f"training ended with exit code {code}")
        return self.run

    def kill(self) -> None:
        """Ends the worker at once."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._take(json.loads(line))
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _take(self, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        with self._news:
            if kind == "step":
                self.run.steps.append(event)
                self._progress(f"step {event['step']}: loss {event['loss']:.6f}")
            elif kind == "device":
                self.run.device = event["name"]
            elif kind == "peak":
                self.run.peak = event["bytes"]
            elif kind == "window":
                self.run.window = event
            elif kind in ("patched", "sites"):
                self.run.problem = event.get("problem", self.run.problem)
                self.run.sites = event["sites"]
            self._news.notify_all()


def order(
    variant: str, config: DemoConfig, text_path: str, daemon: DemoDaemon, job: str
) -> dict[str, Any]:
    """What a worker is told."""
    return {
        "variant": variant,
        "config": config.to_json(),
        "text_path": text_path,
        "address": daemon.address,
        "job": job,
    }


def run_live(
    process: Process, daemon: DemoDaemon, gap: int, progress: Callable[[str], None]
) -> tuple[Run, list[Switch]]:
    """Switches kernels of a live run, `gap` steps apart, and lets it go on `gap` steps at the end."""
    switches = []
    try:
        process.wait_for_step(gap)
        for command, operation in SWITCHES:
            requested_at = process.steps_done
            applied = daemon.switch(command, operation, _SWITCH_S)
            switches.append(Switch(f"{command} {operation}", operation, requested_at, applied))
            progress(f"fusectl {command} {operation}: in force from step {applied}")
            process.wait_for_step(applied + gap)
        return process.finish(), switches
    except BaseException:
        process.kill()
        raise
