"""From what the runs said to numbers, claims and demo.json."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from fuseboard._demo.config import KILL_TOLERANCE, DemoConfig
from fuseboard._demo.runs import Run, Switch
from fuseboard._measure import METHOD_TEXT, Method

_KILLED = "fused_linear_cross_entropy"


@dataclasses.dataclass(frozen=True)
class Pair:
    """A quantity of the native and of the fused run; None: not measured."""

    native: float | None
    fused: float | None
    method: Method
    samples: int = 1

    @property
    def saved(self) -> float | None:
        """The part of the native value that the fused run saves, or None."""
        if not self.native or self.fused is None:
            return None
        return 1.0 - self.fused / self.native

    @property
    def method_text(self) -> str:
        """For people: how it was got, and from how many samples."""
        times = "1 sample" if self.samples == 1 else f"median of {self.samples} samples"
        return f"{METHOD_TEXT[self.method]}; {times}"


@dataclasses.dataclass(frozen=True)
class Claim:
    """Something the demonstration says, and whether it held. None: it could not be measured."""

    text: str
    held: bool | None
    found: str


@dataclasses.dataclass(frozen=True)
class DemoResult:
    """Everything that the table, demo.json and the page show."""

    config: DemoConfig
    corpus: str
    device: str
    native: Run
    fused: Run
    live: Run
    switches: list[Switch]
    notes: list[str]

    @property
    def max_rel_loss_diff(self) -> float:
        """Largest relative difference between the losses of the native and the fused run."""
        return _largest(relative_differences(self.native.losses, self.fused.losses))

    @property
    def launches(self) -> Pair:
        """Kernel launches (GPU) or operator calls (CPU) per step."""
        method = Method.CUPTI if self.config.device_type == "cuda" else Method.OPERATOR_COUNT
        return _pair(self, "launches", method)

    @property
    def step_ms(self) -> Pair:
        """Time of a step without instruments."""
        return _pair(self, "step_ms", Method.WALL_CLOCK)

    @property
    def peak(self) -> Pair:
        """Peak memory in bytes."""
        method = Method.ALLOCATOR if self.config.device_type == "cuda" else Method.PEAK_RSS
        return Pair(self.native.peak, self.fused.peak, method)

    def to_json(self) -> dict[str, Any]:
        """The content of demo.json."""
        return {
            "device": self.device,
            "steps": self.config.steps,
            "loss_native": [_finite(loss) for loss in self.native.losses],
            "loss_fused": [_finite(loss) for loss in self.fused.losses],
            "max_rel_loss_diff": _finite(self.max_rel_loss_diff),
            "launches_per_step": _plain(self.launches, with_method=True),
            "peak_bytes": _plain(self.peak, with_method=True),
            "step_ms": _plain(self.step_ms, with_method=False),
            "switches": [
                {
                    "what": switch.what,
                    "requested_at": switch.requested_at,
                    "applied_step": switch.applied_step,
                }
                for switch in self.switches
            ],
            "sites": [
                {name: site[name] for name in ("site", "count", "decision", "reason")}
                for site in self.fused.sites
            ],
        }

    def claims(self) -> list[Claim]:
        """What must hold for the demonstration to have succeeded."""
        return [
            _losses_agree(self),
            _kernels_run(self),
            *(_switch_took_effect(self, switch) for switch in self.switches),
            _switching_keeps_losses(self),
            _saves(self.launches, "operations per step fall"),
            _saves(self.peak, "peak memory falls"),
            _kill_keeps_memory(self),
        ]


def _largest(values: list[float]) -> float:
    """The largest value; not a number if any is not (max() would pass over it)."""
    return math.nan if any(math.isnan(v) for v in values) else max(values, default=0.0)


def _finite(value: float) -> float | None:
    """JSON has no word for what is not finite."""
    return value if math.isfinite(value) else None


def relative_differences(one: list[float], other: list[float]) -> list[float]:
    """|a - b| / |a|, step by step, as far as both go."""
    return [abs(a - b) / max(abs(a), 1e-300) for a, b in zip(one, other)]


def _pair(result: DemoResult, name: str, method: Method) -> Pair:
    native, fused = result.native.window.get(name), result.fused.window.get(name)
    return Pair(
        native["value"] if native else None,
        fused["value"] if fused else None,
        method,
        min(side["samples"] for side in (native, fused) if side) if native or fused else 0,
    )


def _plain(pair: Pair, with_method: bool) -> dict[str, Any]:
    def number(value: float | None) -> float | int | None:
        return int(value) if value is not None and float(value).is_integer() else value

    plain: dict[str, Any] = {"native": number(pair.native), "fused": number(pair.fused)}
    if with_method:
        plain["method"] = f"METHOD_{pair.method.name}"
    return plain


def _losses_agree(result: DemoResult) -> Claim:
    tolerance = result.config.loss_tolerance
    found = result.max_rel_loss_diff
    whole = len(result.native.losses) == len(result.fused.losses) == result.config.steps
    return Claim(
        f"fused and native losses agree within {tolerance:g} relative ({result.config.dtype})",
        whole and found <= tolerance,
        f"largest difference {found:.2e} over {result.config.steps} steps",
    )


def _kernels_run(result: DemoResult) -> Claim:
    running = sum(site["count"] for site in result.fused.sites if site["kind"] == "kernel")
    of = sum(site["count"] for site in result.fused.sites)
    problem = f" ({result.fused.problem})" if result.fused.problem else ""
    return Claim("fused kernels run", running > 0, f"{running} of {of} modules{problem}")


def _kind_at(result: DemoResult, step: int, operation: str) -> str:
    return str(result.live.steps[step]["runs"].get(operation, "")) if step >= 0 else ""


def _switch_took_effect(result: DemoResult, switch: Switch) -> Claim:
    """The job's own record must show the change at exactly the step that the daemon was told."""
    before = _kind_at(result, switch.applied_step - 1, switch.operation)
    after = _kind_at(result, switch.applied_step, switch.operation)
    back = switch.what.startswith(("enable", "unkill"))
    held = before != after and (after == "kernel") == back
    return Claim(
        f"'{switch.what}' takes effect while training runs",
        held and switch.applied_step >= switch.requested_at,
        f"asked after step {switch.requested_at - 1}, {before or '?'} -> {after or '?'} "
        f"from step {switch.applied_step}",
    )


def _switching_keeps_losses(result: DemoResult) -> Claim:
    differences = relative_differences(result.native.losses, result.live.losses)
    found = _largest(differences)
    return Claim(
        "switching changes no loss beyond that tolerance",
        bool(differences) and found <= result.config.loss_tolerance,
        f"largest difference {found:.2e} over {len(differences)} common steps",
    )


def _saves(pair: Pair, text: str) -> Claim:
    if pair.saved is None:
        return Claim(text, None, "not measured")
    return Claim(text, pair.saved > 0, f"by {pair.saved:.1%}")


def kill_peaks(result: DemoResult) -> tuple[int, int] | None:
    """Peak of the live run with the fused loss killed, and the peak to compare it with.

    On a GPU each step has its own peak. On the CPU a process has one: the live run's, which went
    through the kill, against the fused run's.
    """
    peaks = [step["peak"] for step in result.live.steps]
    killed = [i for i in range(len(peaks)) if _kind_at(result, i, _KILLED) == "composite"]
    if not killed or any(peak is None for peak in peaks):
        return None
    if result.config.device_type != "cuda":
        return (peaks[killed[-1]], result.fused.peak) if result.fused.peak else None
    before = [peaks[i] for i in range(1, len(peaks)) if _kind_at(result, i, _KILLED) == "kernel"]
    return (max(peaks[i] for i in killed), max(before)) if before else None


def _kill_keeps_memory(result: DemoResult) -> Claim:
    text = f"a kill of the fused loss raises the peak by at most {KILL_TOLERANCE - 1:.0%}"
    peaks = kill_peaks(result)
    if peaks is None:
        return Claim(text, None, "not measured")
    with_kill, without = peaks
    return Claim(text, with_kill <= without * KILL_TOLERANCE, f"{with_kill / without - 1:+.1%}")
