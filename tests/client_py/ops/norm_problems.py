"""Problems of the norms and of softmax."""

import torch
import torch.nn.functional as F

from tests.client_py.ops.problems import Problem, largest, wide
from tests.client_py.ops.reference import GEMMA, LLAMA, NONE_CASTING, call_rms_norm

ops = torch.ops.fuseboard
EPS = 1e-6


def rms_norm_formula(x, weight, offset=0.0, casting=LLAMA):
    y = wide(x)
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + EPS)
    if casting == LLAMA:
        y = y.to(x.dtype)
        return y if weight is None else y * (weight + offset if offset else weight)
    return (y if weight is None else y * (wide(weight) + offset)).to(x.dtype)


def norm_options(source):
    return {
        "offset": source.one_of([0.0, 1.0]),
        "casting": source.one_of([LLAMA, GEMMA, NONE_CASTING]),
    }


def weight_of(source, size, mean=1.0):
    dtype, present = source.other_dtype(), source.rng.randrange(4) > 0
    weight = source.tensor(size, dtype=dtype, scale=0.3, mean=mean)
    return weight if present else None


def steepness(x, *factors, eps=EPS, centred=False, dim=-1):
    """The largest reciprocal of a row's root mean square, at least 1, times the largest factor."""
    if not x.numel():
        return 1.0
    rows = x.detach().double()
    rows = rows - rows.mean(dim, keepdim=True) if centred else rows
    return largest(torch.rsqrt(rows.square().mean(dim) + eps)) * (1 + largest(*factors))


def rms_norm(source, length):
    """Any casting, offset, weight or none."""
    width, options = source.width(), norm_options(source)
    tensors = [source.tensor(length, width), weight_of(source, width)]
    return Problem(
        tensors,
        lambda t, kernel: call_rms_norm(*t, **options, kernel=kernel),
        lambda t: rms_norm_formula(*t, **options),
        rows=(0,),
        terms=lambda t: steepness(*t),
    )


def fused_add_rms_norm(source, length):
    """The sum is a result too."""
    width, options = source.width(), norm_options(source)
    tensors = [source.tensor(length, width) for _ in range(2)] + [weight_of(source, width)]

    def formula(t):
        total = t[0] + t[1]
        return rms_norm_formula(total, t[2], **options), total

    def call(t, kernel):
        return ops.fused_add_rms_norm(*t, EPS, options["offset"], options["casting"], kernel)

    return Problem(
        tensors, call, formula, rows=(0, 1), terms=lambda t: steepness(t[0] + t[1], t[2])
    )


def modulated_rms_norm(source, length):
    """A scale and a shift for each example."""
    width, options = source.width(), norm_options(source)
    positions = source.one_of([1, 2, 3, 4])
    x = source.tensor(length, positions, width)
    modulation = [source.tensor(length, width, scale=0.5) for _ in range(2)]

    def formula(t):
        y = rms_norm_formula(t[0], t[1], **options)
        return y * (1 + t[2][:, None]) + t[3][:, None]

    def call(t, kernel):
        return ops.modulated_rms_norm(*t, EPS, options["offset"], options["casting"], kernel)

    return Problem(
        [x, weight_of(source, width), *modulation],
        call,
        formula,
        rows=(0, 2, 3),
        slack=2,
        terms=lambda t: steepness(t[0], t[1]) * (1 + largest(t[2])),
    )


def layer_norm(source, length):
    """Weight or bias may be missing."""
    width = source.width()
    tensors = [
        source.tensor(length, width),
        weight_of(source, width),
        weight_of(source, width, 0.0),
    ]

    def formula(t):
        x, weight, bias = (None if v is None else wide(v) for v in t)
        return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5).to(t[0].dtype)

    return Problem(
        tensors,
        lambda t, kernel: ops.layer_norm(*t, 1e-5, kernel),
        formula,
        rows=(0,),
        terms=lambda t: steepness(t[0], t[1], eps=1e-5, centred=True),
    )


def group_norm(source, length):
    """Length is the images' height, at least 1: torch's gradients of no elements are NaN."""
    length = max(1, length)
    groups, channels = source.one_of([(1, 3), (2, 2), (4, 3), (8, 1)])
    channels *= groups
    shape = source.one_of(
        [(2, channels, length), (3, channels, length, 5), (1, channels, length, 8)]
    )
    tensors = [source.tensor(*shape), weight_of(source, channels), weight_of(source, channels, 0.0)]

    def formula(t):
        x = t[0]
        y = F.group_norm(
            wide(x), groups, None, None, 1e-5
        )  # torch fails for a bias without a weight.
        weight, bias = (
            None if v is None else wide(v).view(-1, *[1] * (x.dim() - 2)) for v in t[1:]
        )
        y = y if weight is None else y * weight
        return (y if bias is None else y + bias).to(x.dtype)

    def call(t, kernel):
        return ops.group_norm(t[0], groups, *t[1:], 1e-5, kernel)

    def terms(t):
        rows = t[0].reshape(t[0].shape[0], groups, -1)
        return steepness(rows, t[1], eps=1e-5, centred=True)

    return Problem(tensors, call, formula, terms=terms)


def softmax(source, length):
    """Of logits of several sizes."""
    x = source.tensor(length, source.width(), scale=source.one_of([0.1, 1.0, 8.0]))
    return Problem(
        [x],
        lambda t, kernel: ops.softmax(t[0], kernel),
        lambda t: F.softmax(t[0], -1),
        rows=(0,),
        slack=2,
        # The backward starts from the rounded result.
        terms=lambda t: F.softmax(t[0].double(), -1).max().item() if t[0].numel() else 0.0,
    )
