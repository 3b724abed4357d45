"""The steps between an output projection and a loss that need no logits: what each does to rows.

A step maps Rows to Rows, or says None: then the logits have to exist. Steps are told apart by the
name of the torch function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch


@dataclasses.dataclass(frozen=True)
class Rows:
    """What a fused loss needs to know of logits that do not exist.

    The logits stand for  cap(logit_scale * (hidden @ weight.T)),  see final_scale and final_softcap.

    Attributes:
        hidden: Hidden states of the rows still in view, [..., hidden].
        vocabulary: Number of classes.
        dtype: dtype of the logits.
        factor: Product of the scales so far.
        outer: Scale behind the tanh, or None before a tanh.
        capped: A tanh and the scale behind it were met: no further scale can be expressed.
        transposed: Classes stand before the last dimension, as cross_entropy wants them for
            [batch, classes, time].
    """

    hidden: torch.Tensor
    vocabulary: int
    dtype: torch.dtype
    factor: float = 1.0
    outer: float | None = None
    capped: bool = False
    transposed: bool = False

    @property
    def device(self) -> torch.device:
        return self.hidden.device

    def shape(self) -> tuple[int, ...]:
        """Shape of the logits."""
        leading = tuple(self.hidden.shape[:-1])
        if self.transposed:
            return (*leading[:-1], self.vocabulary, leading[-1])
        return (*leading, self.vocabulary)

    def target_shape(self) -> tuple[int, ...] | None:
        """Shape of class indices that cross_entropy takes with these logits, or None."""
        leading = tuple(self.hidden.shape[:-1])
        wanted = 2 if self.transposed else 1
        return leading if len(leading) == wanted else None

    def final_softcap(self) -> float:
        """softcap of kernels/abi/cross_entropy.h."""
        return 0.0 if self.outer is None else self.outer

    def final_scale(self) -> float:
        """logit_scale of kernels/abi/cross_entropy.h: outer * tanh(factor * x) is cap(outer * factor * x)."""
        return self.factor if self.outer is None else self.factor * self.outer


def step_name(func: Any) -> str:
    """Name of a torch function; of a property, the property's."""
    name: str = getattr(func, "__name__", "")
    if name == "__get__":
        return getattr(func.__self__, "__name__", "")
    return name


def is_in_place(name: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call changes one of its tensors."""
    if name in ("__setitem__", "__set__") or kwargs.get("out") is not None:
        return True
    if kwargs.get("inplace"):
        return True
    if name.startswith("__") and name.endswith("__"):
        return name in _IN_PLACE_OPERATORS
    return name.endswith("_")


_IN_PLACE_OPERATORS = frozenset(
    {
        "__iadd__",
        "__isub__",
        "__imul__",
        "__idiv__",
        "__itruediv__",
        "__ifloordiv__",
        "__imod__",
        "__ipow__",
        "__iand__",
        "__ior__",
        "__ixor__",
        "__ilshift__",
        "__irshift__",
    }
)

# Made for people's eyes.
PRINTED = frozenset({"__repr__", "__format__"})

# Answered by the tensor's own header, without values.
METADATA = frozenset(
    {
        "shape",
        "dtype",
        "device",
        "requires_grad",
        "ndim",
        "layout",
        "is_leaf",
        "grad_fn",
        "is_cuda",
        "is_cpu",
        "is_sparse",
        "is_meta",
        "is_quantized",
        "is_nested",
        "is_mps",
        "is_xpu",
        "itemsize",
        "output_nr",
        "names",
        "size",
        "dim",
        "ndimension",
        "numel",
        "nelement",
        "element_size",
        "is_floating_point",
        "is_complex",
        "is_signed",
        "get_device",
        "__len__",
        "__hash__",
        "is_inference",
        "has_names",
    }
)


def _cast(rows: Rows, dtype: torch.dtype) -> Rows | None:
    """Up to float32: the fused loss computes in float32 anyway. Else rounding would be lost."""
    if dtype == rows.dtype:
        return rows
    return dataclasses.replace(rows, dtype=dtype) if dtype == torch.float32 else None


def _to(rows: Rows, *args: Any, **kwargs: Any) -> Rows | None:
    if kwargs.pop("copy", False) or kwargs.pop("memory_format", None) not in (
        None,
        torch.preserve_format,
    ):
        return None
    kwargs.pop("non_blocking", None)
    dtype = rows.dtype
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, str | torch.device):
            wanted = torch.device(value)
            if wanted.type != rows.device.type or wanted.index not in (None, rows.device.index):
                return None
        elif value is not None:
            return None
    return _cast(rows, dtype)


def _scale(rows: Rows, factor: object, invert: bool = False) -> Rows | None:
    if isinstance(factor, bool) or not isinstance(factor, int | float) or factor == 0:
        return None
    value = 1.0 / factor if invert else float(factor)
    if rows.outer is None:
        return dataclasses.replace(rows, factor=rows.factor * value)
    if rows.capped or value <= 0:
        return None
    return dataclasses.replace(rows, outer=value, capped=True)


def _divide(rows: Rows, divisor: object) -> Rows | None:
    return _scale(rows, divisor, invert=True)


def _tanh(rows: Rows) -> Rows | None:
    return None if rows.outer is not None else dataclasses.replace(rows, outer=1.0)


def _reshape(rows: Rows, *shape: Any) -> Rows | None:
    """Any shape that leaves the classes last."""
    if rows.transposed or any(isinstance(size, torch.dtype) for size in shape):
        return None
    after = torch.empty(rows.shape(), device="meta").reshape(*shape).shape
    if len(after) == 0 or after[-1] != rows.vocabulary:
        return None
    width = rows.hidden.shape[-1]
    return dataclasses.replace(rows, hidden=rows.hidden.reshape(*after[:-1], width))


def _select(rows: Rows, index: Any) -> Rows | None:
    """Slices that leave all classes in view."""
    if rows.transposed:
        return None
    entries = list(index) if isinstance(index, tuple) else [index]
    dims = len(rows.shape())
    if sum(entry is Ellipsis for entry in entries) > 1:
        return None
    if Ellipsis in entries:
        at = entries.index(Ellipsis)
        entries[at : at + 1] = [slice(None)] * (dims - len(entries) + 1)
    if len(entries) > dims or not all(_is_plain_slice(entry) for entry in entries):
        return None
    if len(entries) == dims and entries.pop() != slice(None):
        return None
    return dataclasses.replace(rows, hidden=rows.hidden[tuple(entries)])


def _is_plain_slice(entry: object) -> bool:
    return isinstance(entry, slice) and all(
        part is None or type(part) is int for part in (entry.start, entry.stop, entry.step)
    )


def _transpose(rows: Rows, first: int, second: int) -> Rows | None:
    dims = len(rows.shape())
    if dims != 3 or {first % dims, second % dims} != {1, 2}:
        return None
    return dataclasses.replace(rows, transposed=not rows.transposed)


def _permute(rows: Rows, *order: Any) -> Rows | None:
    flat = order[0] if len(order) == 1 and isinstance(order[0], tuple | list) else order
    return _transpose(rows, 1, 2) if tuple(d % 3 for d in flat) == (0, 2, 1) else None


def _copy(rows: Rows, memory_format: object = None) -> Rows | None:
    if memory_format not in (None, torch.preserve_format, torch.contiguous_format):
        return None
    return dataclasses.replace(rows)


LAZY_STEPS: Mapping[str, Callable[..., Rows | None]] = {
    "float": lambda rows: _cast(rows, torch.float32),
    "half": lambda rows: _cast(rows, torch.float16),
    "bfloat16": lambda rows: _cast(rows, torch.bfloat16),
    "to": _to,
    "mul": _scale,
    "multiply": _scale,
    "__mul__": _scale,
    "__rmul__": _scale,
    "div": _divide,
    "divide": _divide,
    "true_divide": _divide,
    "__truediv__": _divide,
    "tanh": _tanh,
    "view": _reshape,
    "reshape": _reshape,
    "__getitem__": _select,
    "transpose": _transpose,
    "swapaxes": _transpose,
    "permute": _permute,
    "mT": lambda rows: _transpose(rows, -1, -2),
    "contiguous": _copy,
    "clone": _copy,
}
