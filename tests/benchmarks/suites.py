"""Which cases a run measures. The first shape of each operation decides; others follow."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tests.benchmarks import (
    activation_cases,
    linear_loss_cases,
    loss_cases,
    norm_cases,
    rotation_cases,
)
from tests.benchmarks.case import Bench, Case

Factory = Callable[..., Case]
Shape = tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Suite:
    """Operations with their shapes.

    Attributes:
        factories: By operation.
        shapes: By operation; the arguments of its factory, that which decides first.
        tiny: Instead of them for a run that only tries everything, where _TINY will not do.
        groups: Operations that share a picture, by its name; empty: a picture for each.
        quick: How many shapes of each operation `--quick` takes.
        compiled: How many shapes of each operation torch.compile takes part in; compiling takes
            seconds.
        scaled: How many shapes of each loss are measured with an upstream gradient that is not 1
            too, as a case of their own.
    """

    factories: Mapping[str, Factory]
    shapes: Mapping[str, Sequence[Shape]]
    tiny: Mapping[str, Sequence[Shape]]
    groups: Mapping[str, Sequence[str]]
    quick: Mapping[str, int]
    compiled: int
    scaled: int


# The widths of models that are no powers of two, then rows too wide for one block: 512 MiB each, as the start
# and the end of a launch are a tenth of 128 MiB, and the widest at that size too.
_ODD = [(16384, 2880), (16384, 3584), (16384, 5120), (16384, 4097)]
_WIDE = [(16384, 16384), (4096, 65536), (2048, 131072), (1024, 262144), (256, 262144)]
_ROWS = [(16384, 4096), (64, 4096), *_WIDE, *_ODD]
_GATES = [(8192, 14336), (64, 14336), (8192, 2880), (8192, 14337), (4096, 8192), (8, 2048)]
_HEADS = [
    (4, 4096, (32, 8), 128),
    (1, 64, (32, 8), 128),
    (4, 2048, (32, 32), 80),
    (8, 2048, (64, 8), 64),
    (2, 4096, (16, 8), 256),
]
_CLASSES = [
    (4096, 128256),
    (64, 128256),
    (4096, 32001),
    (4096, 50257),
    (4096, 151936),
    (2048, 262144),
]
_TINY_HEADS = [(2, 3, (4, 2), 8), (1, 2, (2, 2), 6)]
_TINY_HEAD = [(8, 16, 32), (5, 16, 33)]
_TINY_HEAD_IGNORED = [(8, 16, 32), (8, 16, 33, 0.5)]
_TINY = [(4, 16), (3, 9)]
_HEAD_LOSSES = [(8192, 4096, 128256), (64, 4096, 128256), (4096, 2880, 50257), (4096, 2048, 151936)]

_KERNELS = Suite(
    factories={
        "rms_norm": norm_cases.rms_norm,
        "fused_add_rms_norm": norm_cases.fused_add_rms_norm,
        "modulated_rms_norm": norm_cases.modulated_rms_norm,
        "layer_norm": norm_cases.layer_norm,
        "group_norm": norm_cases.group_norm,
        "softmax": norm_cases.softmax,
        "rope": rotation_cases.rope,
        "qk_norm_rope": rotation_cases.qk_norm_rope,
        "swiglu": activation_cases.swiglu,
        "geglu_tanh": functools.partial(activation_cases.geglu, approximate="tanh"),
        "geglu_exact": functools.partial(activation_cases.geglu, approximate="none"),
        "relu_squared": activation_cases.relu_squared,
        "cross_entropy": loss_cases.cross_entropy,
        "kl_div": loss_cases.kl_div,
        "jsd": loss_cases.jsd,
        "tvd": loss_cases.tvd,
        "fused_linear_cross_entropy": linear_loss_cases.fused_linear_cross_entropy,
        "selected_log_probs": linear_loss_cases.selected_log_probs,
        "fused_linear_scaled_cross_entropy": linear_loss_cases.fused_linear_scaled_cross_entropy,
        "fused_linear_jsd": linear_loss_cases.fused_linear_jsd,
    },
    shapes={
        "rms_norm": [*_ROWS, (16384, 8192), (4096, 2048), (64, 2048), (8, 2048)],
        **dict.fromkeys(("fused_add_rms_norm", "modulated_rms_norm", "layer_norm"), _ROWS),
        "group_norm": [
            (32, 512, 4096, 32),
            (1, 64, 1024, 8),
            (32, 320, 3969, 32),
            (8, 320, 4096, 32),
        ],
        "fused_linear_cross_entropy": [
            (8192, 4096, 128256),
            (64, 4096, 128256),
            (1024, 4096, 128256),
            (8192, 4096, 128256, 0.5),
            (8192, 2048, 151936),
            (8192, 4096, 32000),
            (8192, 2880, 32001),
            (8192, 3584, 50257),
            (4096, 5120, 262144),
            (16384, 4096, 128256),
        ],
        **dict.fromkeys(("selected_log_probs", "fused_linear_scaled_cross_entropy"), _HEAD_LOSSES),
        "fused_linear_jsd": [(1024, 4096, 128256), (64, 4096, 128256), (4096, 4096, 128256)],
        "softmax": [
            (8192, 4096),
            (2048, 32768),
            (64, 4096),
            (2048, 50257),
            (512, 131072),
            (512, 262144),
            (8, 2048),
        ],
        **dict.fromkeys(("rope", "qk_norm_rope"), _HEADS),
        **dict.fromkeys(("swiglu", "geglu_tanh", "geglu_exact", "relu_squared"), _GATES),
        "cross_entropy": [
            (8192, 128256),
            (64, 128256),
            (8192, 32000),
            (8192, 128256, 0.5),
            (8192, 32001),
            (8192, 50257),
            (8192, 151936),
            (4096, 262144),
            (8, 32000),
        ],
        "kl_div": [(8192, 128256), *_CLASSES[1:]],
        **dict.fromkeys(("jsd", "tvd"), _CLASSES),
    },
    tiny={
        **dict.fromkeys(("rope", "qk_norm_rope"), _TINY_HEADS),
        "modulated_rms_norm": [(32, 16), (3, 9)],
        "group_norm": [(3, 8, 5, 4), (2, 6, 7, 1)],
        "fused_linear_cross_entropy": _TINY_HEAD_IGNORED,
        "cross_entropy": [(4, 16), (8, 9, 0.5)],
        **dict.fromkeys(
            ("selected_log_probs", "fused_linear_scaled_cross_entropy", "fused_linear_jsd"),
            _TINY_HEAD,
        ),
    },
    groups={
        "norms": (
            "rms_norm",
            "fused_add_rms_norm",
            "modulated_rms_norm",
            "layer_norm",
            "softmax",
            "group_norm",
        ),
        "rotations": ("rope", "qk_norm_rope"),
        "activations": ("swiglu", "geglu_tanh", "geglu_exact", "relu_squared"),
        "losses": ("cross_entropy", "kl_div", "jsd", "tvd"),
        "heads": (
            "fused_linear_cross_entropy",
            "selected_log_probs",
            "fused_linear_scaled_cross_entropy",
            "fused_linear_jsd",
        ),
    },
    quick={},
    compiled=2,
    scaled=2,
)

_FOUNDATION = Suite(
    factories={
        "rms_norm": norm_cases.rms_norm,
        "swiglu": activation_cases.swiglu,
        "cross_entropy": loss_cases.cross_entropy,
        "fused_linear_cross_entropy": linear_loss_cases.fused_linear_cross_entropy,
    },
    shapes={
        "rms_norm": [
            (16384, 4096),
            (16384, 8192),
            (4096, 2048),
            (64, 2048),
            (16384, 1024),
            (16384, 2880),
            (16384, 5120),
            (4096, 16384),
            (1024, 65536),
        ],
        "swiglu": [(8192, 14336), (64, 2048), (8192, 8192)],
        "cross_entropy": [
            (8192, 32000),
            (8192, 128256),
            (1024, 128256),
            (8192, 50257),
            (4096, 262144),
        ],
        "fused_linear_cross_entropy": [
            (1024, 4096, 128256),
            (8192, 4096, 128256),
            (8192, 4096, 128256, 0.5),
            (16384, 4096, 128256),
            (8192, 2048, 151936),
            (8192, 4096, 32000),
        ],
    },
    tiny={"fused_linear_cross_entropy": _TINY_HEAD_IGNORED},
    groups={},
    quick={"rms_norm": 3, "cross_entropy": 2, "fused_linear_cross_entropy": 3},
    compiled=99,
    scaled=1,
)

# What is not 1: a loss scaler's factor, or that of a sum of losses.
_UPSTREAM = 0.5
_LOSSES = (
    "cross_entropy", "kl_div", "jsd", "tvd", "fused_linear_cross_entropy", "fused_linear_jsd",
)  # fmt: skip

SUITES = {"foundation": _FOUNDATION, "kernels": _KERNELS}


def _library(operation: str) -> str:
    if operation == "fused_linear_jsd":
        return "jsd"
    if operation == "selected_log_probs" or operation.startswith("fused_linear"):
        return "cross_entropy"
    return operation.removesuffix("_tanh").removesuffix("_exact")


def _shapes(suite: Suite, operation: str, quick: bool, tiny: bool) -> Sequence[Shape]:
    if tiny:
        return suite.tiny.get(operation, _TINY)
    return suite.shapes[operation][: suite.quick.get(operation, 1) if quick else None]


def _scaled(case: Case) -> Case:
    name = f"{case.shape} upstream {_UPSTREAM}"
    return dataclasses.replace(case, shape=name, upstream=_UPSTREAM)


def cases_of(
    suite: Suite,
    bench: Bench,
    operations: Collection[str] = (),
    *,
    quick: bool = False,
    tiny: bool = False,
) -> list[Case]:
    """The cases of a suite: the first shape of every operation, then the second of each, and so on.

    A loss has a second case of its first shapes, with an upstream gradient that is not 1.

    Args:
        suite: One of SUITES.
        bench: What they run with.
        operations: Only these; empty: all whose kernels are there.
        quick: Only the shapes that decide.
        tiny: Tiny shapes instead.

    Raises:
        ValueError: An operation that the suite does not have.
    """
    for name in operations:
        if name not in suite.factories:
            known = ", ".join(suite.factories)
            raise ValueError(f"no operation is called {name!r}, want one of {known}")
    found: list[tuple[int, Case]] = []
    for operation in operations or [n for n in suite.factories if _library(n) in bench.kernels]:
        for index, shape in enumerate(_shapes(suite, operation, quick, tiny)):
            case = suite.factories[operation](bench, *shape)
            if index >= suite.compiled and not tiny:
                del case.forwards["torch.compile"]
            host = tiny or shape[0] in (1, 8, 64)  # Few rows: what counts is the launch.
            found.append((index, dataclasses.replace(case, host=host)))
            if operation in _LOSSES and index < suite.scaled and not quick:
                found.append((index, _scaled(found[-1][1])))
    return [case for _, case in sorted(found, key=lambda pair: pair[0])]
