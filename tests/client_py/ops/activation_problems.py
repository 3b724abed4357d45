"""Problems of the gated activations and the squared rectifier."""

import math

import torch
import torch.nn.functional as F

from tests.client_py.ops.problems import Problem, wide

ops = torch.ops.fuseboard
GATES = [
    {},
    {"gate_multiplier": 0.375},
    {"limit": 1.5, "alpha": 1.702, "up_offset": 1.0},
    {"limit": 1.25},
    {"out_multiplier": -2.5},
]


def _swiglu(gate, up, gate_multiplier=1.0, out_multiplier=1.0, alpha=1.0, limit=0.0, up_offset=0.0):  # fmt: skip
    dtype = gate.dtype
    gate, up = wide(gate) * gate_multiplier, wide(up)
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    activation = (gate * torch.sigmoid(gate * alpha)).to(dtype)
    return (wide(activation) * (up + up_offset) * out_multiplier).to(dtype)


def _gelu(gate, up, tanh):
    x = wide(gate)
    if tanh:
        activation = x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    else:
        activation = x * torch.special.erfc(-x / math.sqrt(2)) / 2
    return (wide(activation.to(gate.dtype)) * wide(up)).to(gate.dtype)


def _parts(packed, interleaved):
    return (packed[..., ::2], packed[..., 1::2]) if interleaved else packed.chunk(2, -1)


def swiglu(source, length):
    """With the options of the models that have some."""
    options, rounded, width = source.one_of(GATES), source.maybe(), source.width()
    tensors = [source.tensor(length, width) for _ in range(2)]
    return Problem(
        tensors,
        lambda t, kernel: ops.swiglu(*t, rounded, kernel, **options),
        lambda t: _swiglu(*t, **options),
        rows=(0, 1),
    )


def swiglu_packed(source, length):
    """Halves or pairs."""
    options, rounded, width = source.one_of(GATES), source.maybe(), source.width()
    interleaved = source.maybe()
    return Problem(
        [source.tensor(length, 2 * width)],
        lambda t, kernel: ops.swiglu_packed(t[0], interleaved, rounded, kernel, **options),
        lambda t: _swiglu(*_parts(t[0], interleaved), **options),
        rows=(0,),
    )


def geglu(source, length):
    """Both flavours."""
    tanh, rounded, width = source.maybe(), source.maybe(), source.width()
    tensors = [source.tensor(length, width) for _ in range(2)]
    return Problem(
        tensors,
        lambda t, kernel: ops.geglu(*t, tanh, rounded, kernel),
        lambda t: _gelu(*t, tanh),
        rows=(0, 1),
    )


def geglu_packed(source, length):
    """Both flavours, halves or pairs."""
    tanh, rounded, width = source.maybe(), source.maybe(), source.width()
    interleaved = source.maybe()
    return Problem(
        [source.tensor(length, 2 * width)],
        lambda t, kernel: ops.geglu_packed(t[0], interleaved, tanh, rounded, kernel),
        lambda t: _gelu(*_parts(t[0], interleaved), tanh),
        rows=(0,),
    )


def relu_squared(source, length):
    """No options."""
    return Problem(
        [source.tensor(length, source.width())],
        lambda t, kernel: ops.relu_squared(t[0], kernel),
        lambda t: F.relu(t[0]).square(),
        rows=(0,),
    )
