"""What a measuring window found, as frozen dataclasses.

Fields mean what `proto/fuseboard/v1/profile.proto` says of the fields of the same name; `_messages`
converts. A quantity that could not be measured is None, never zero.
"""

from __future__ import annotations

import dataclasses
import enum

MAX_KERNELS = 256
"""Most kernels that a window lists: the limit of the wire contract."""


class Method(enum.IntEnum):
    """How a number was got; numbers as on the wire."""

    CUPTI = 1
    OPERATOR_COUNT = 2
    ALLOCATOR = 3
    PEAK_RSS = 4
    WALL_CLOCK = 5
    MODELLED = 6


METHOD_TEXT = {
    Method.CUPTI: "kernel records of the driver (CUPTI)",
    Method.OPERATOR_COUNT: "operators counted as the framework dispatched them",
    Method.ALLOCATOR: "peak of the framework's allocator",
    Method.PEAK_RSS: "peak resident set of a process of its own",
    Method.WALL_CLOCK: "wall clock, device synchronised",
    Method.MODELLED: "computed from shapes, not measured",
}
"""For people: what each method is."""


class Variant(enum.IntEnum):
    """What ran during a window; numbers as on the wire."""

    NATIVE = 1
    PLAN = 2


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A number with its origin.

    Attributes:
        value: The median over `samples` steps, in the unit that the field's name carries.
        method: How it was got.
        samples: Steps it is the median of.
    """

    value: float
    method: Method
    samples: int


@dataclasses.dataclass(frozen=True)
class KernelCount:
    """How often one kernel or operator ran in a window, and for how long on the device."""

    name: str
    count: int
    device_ns: int | None = None


@dataclasses.dataclass(frozen=True)
class Window:
    """One finished window over steps [first_step, first_step + steps).

    `error` is empty, or says why the window failed or is incomplete; what could still be measured
    stands beside it.
    """

    variant: Variant
    first_step: int
    steps: int
    revision: int = 0
    launches_per_step: Measurement | None = None
    device_ms_per_step: Measurement | None = None
    copies_per_step: Measurement | None = None
    step_ms: Measurement | None = None
    peak_bytes: Measurement | None = None
    kernels: tuple[KernelCount, ...] = ()
    dropped_records: int = 0
    error: str = ""
    started_at_us: int = 0
