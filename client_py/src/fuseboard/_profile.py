"""Measuring windows by step: what ran, how long a step took, how much memory it needed.

A window never disturbs training: whatever goes wrong becomes its `error`. Counting slows a step down
(operator counting by a multiple), so the time of a step is taken from the warm-up steps, which run
without instruments.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

from fuseboard._devices import CpuDevice, CudaDevice
from fuseboard._measure import MAX_KERNELS, Measurement, Method, Variant, Window
from fuseboard._schedule import Phase, Schedule
from fuseboard._sources import Counts, Source, SourceError

# Windows that StepWindows keeps; the oldest go first.
_MOST_KEPT = 64


def default_source(device_type: str) -> Source:
    """What counts on a device.

    Raises:
        SourceError: Nothing can; says why.
    """
    if device_type == "cuda":
        from fuseboard import _cupti

        return _cupti.CuptiSource(_cupti.open_library())
    from fuseboard._operator_counts import OperatorCountSource

    return OperatorCountSource()


@dataclasses.dataclass
class _Open:
    """A round that has begun: its warm-up or its window."""

    first_step: int
    revision: int
    started_at_us: int
    warmup_ms: list[float] = dataclasses.field(default_factory=list)
    steps: int = 0
    counting: bool = False
    error: str = ""


class StepWindows:
    """Opens and closes windows as steps go by. All of it runs on the training thread.

    Call `boundary` before every step, and `close` at the end:

        >>> windows = StepWindows(Schedule(active=2, warmup=1), Variant.NATIVE)
        >>> for step in range(3):
        ...     windows.boundary()
        ...     _ = sum(range(10))
        >>> windows.close()
        >>> windows.finished[0].error  # Nothing of the framework ran.
        'window holds no operator call'
    """

    def __init__(
        self,
        schedule: Schedule,
        variant: Variant,
        *,
        device_type: str = "cpu",
        revision: Callable[[], int] = lambda: 0,
        on_window: Callable[[Window], None] | None = None,
        source: Source | None = None,
    ) -> None:
        """Touches nothing yet.

        Args:
            schedule: Which steps are measured.
            variant: What runs during them.
            device_type: "cpu" or "cuda".
            revision: The plan in force, asked when a window begins.
            on_window: Gets each window as it ends. What it raises is dropped.
            source: What counts; default: by device type.
        """
        self.schedule = schedule
        self.finished: list[Window] = []
        self.problem = ""
        self._variant = variant
        self._device: Any = CudaDevice() if device_type == "cuda" else CpuDevice()
        self._device_type = device_type
        self._revision = revision
        self._on_window = on_window
        self._source = source
        self._step = -1
        self._open: _Open | None = None
        self._began_at = 0.0
        self._closed = False

    @property
    def done(self) -> bool:
        """Whether no further window will begin."""
        repeat = self.schedule.repeat
        return self._closed or (repeat > 0 and self.schedule.completed(self._step + 1) >= repeat)

    def boundary(self, step: int | None = None) -> None:
        """Ends the step that runs, if any, and begins the next.

        Args:
            step: The number that the next step has to the caller; for the report only.
        """
        if self._closed:
            return
        try:
            self._end_step()
            self._step += 1
            self._begin_step(self._step if step is None else step)
        except Exception as error:  # noqa: BLE001  A fault of ours must not end training.
            self._give_up(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Ends the last step. A window that it leaves unfinished is reported as such. Idempotent."""
        if self._closed:
            return
        try:
            self._end_step()
            self._step += 1
            if self._open is not None:
                active = self.schedule.active
                self._give_up(f"ended after {self._open.steps} of {active} steps of the window")
        except Exception as error:  # noqa: BLE001
            self._give_up(f"{type(error).__name__}: {error}")
        self._closed = True
        if not self.finished:
            self.problem = (
                f"no window: {self._step} steps ran, the first window would end after "
                f"{self.schedule.first_active + self.schedule.active}"
            )

    def _begin_step(self, label: int) -> None:
        phase = self.schedule.phase(self._step)
        if self.schedule.begins(self._step):
            self._open = _Open(label, self._revision(), time.time_ns() // 1000)
            self._device.synchronize()
            self._device.reset_peak()
        if phase is Phase.IDLE or self._open is None:
            return
        if phase is Phase.ACTIVE:
            self._count_step(self._open, label)
        self._began_at = time.perf_counter()

    def _count_step(self, window: _Open, label: int) -> None:
        try:
            if window.steps == 0:
                window.first_step = label
                if self._source is None:
                    self._source = default_source(self._device_type)
                self._source.start()
                window.counting = True
            if window.counting and self._source is not None:
                self._source.mark(label)
        except SourceError as error:
            window.error = str(error)
            if window.counting and self._source is not None:
                self._source.abandon()
            window.counting = False

    def _end_step(self) -> None:
        window = self._open
        if window is None or self._step < 0:
            return
        self._device.synchronize()
        if self.schedule.phase(self._step) is Phase.WARMUP:
            window.warmup_ms.append((time.perf_counter() - self._began_at) * 1e3)
            return
        window.steps += 1
        if window.steps == self.schedule.active:
            self._open = None
            counts = Counts(error=window.error)
            if window.counting and self._source is not None:
                counts = self._source.stop()
            self._finish(self._window(window, counts))

    def _window(self, window: _Open, counts: Counts) -> Window:
        method = self._source.method if self._source is not None else Method.CUPTI
        return Window(
            variant=self._variant,
            first_step=window.first_step,
            steps=window.steps,
            revision=window.revision,
            launches_per_step=_median(counts.launches, method),
            device_ms_per_step=_median(counts.device_ms, method),
            copies_per_step=_median(counts.copies, method),
            step_ms=_median(window.warmup_ms, Method.WALL_CLOCK),
            peak_bytes=self._device.peak(),
            kernels=counts.kernels[:MAX_KERNELS],
            dropped_records=counts.dropped_records,
            error=counts.error or self._changed_plan(window),
            started_at_us=window.started_at_us,
        )

    def _changed_plan(self, window: _Open) -> str:
        now = self._revision()
        if now == window.revision:
            return ""
        return f"the plan changed from revision {window.revision} to {now} during the window"

    def _give_up(self, why: str) -> None:
        window, self._open = self._open, None
        if window is None:
            self.problem = why
            return
        if window.counting and self._source is not None:
            self._source.abandon()
        self._finish(
            Window(
                variant=self._variant,
                first_step=window.first_step,
                steps=window.steps,
                revision=window.revision,
                step_ms=_median(window.warmup_ms, Method.WALL_CLOCK),
                error=why,
                started_at_us=window.started_at_us,
            )
        )

    def _finish(self, window: Window) -> None:
        self.finished = [*self.finished, window][-_MOST_KEPT:]
        if self._on_window is not None:
            try:
                self._on_window(window)
            except Exception as error:  # noqa: BLE001
                self.problem = f"window not handed on: {type(error).__name__}: {error}"


def _median(values: Any, method: Method) -> Measurement | None:
    if not values:
        return None
    return Measurement(float(statistics.median(values)), method, len(values))


def measure_window(
    run_step: Callable[[], object],
    *,
    variant: Variant,
    steps: int = 5,
    warmup: int = 3,
    device_type: str = "cpu",
    source: Source | None = None,
) -> Window:
    """Runs `warmup` timed and then `steps` counted steps; returns the window.

    Args:
        run_step: One whole training step. What it raises passes through, after the instruments are off.
        variant: What runs.
        steps: Counted steps, at least 1.
        warmup: Timed steps before them; with 0 the window has no step time.
        device_type: "cpu" or "cuda".
        source: What counts; default: by device type.
    """
    windows = StepWindows(
        Schedule(active=steps, warmup=warmup), variant, device_type=device_type, source=source
    )
    try:
        for _ in range(steps + warmup):
            windows.boundary()
            run_step()
    finally:
        windows.close()
    return windows.finished[0]
