"""Every operation as a maker of problems, for tests that ask the same of all of them."""

import math

import torch
import torch.nn.functional as F

from tests.client_py.ops.linear_jsd import call_linear_jsd, linear_jsd
from tests.client_py.ops.problems import Operation, Problem, largest, wide
from tests.client_py.ops.reference import (
    GEMMA,
    LLAMA,
    MEAN,
    NONE,
    NONE_CASTING,
    SUM,
    call_cross_entropy,
    call_linear_cross_entropy,
    call_qk_norm_rope,
    call_rms_norm,
    call_rope,
    call_scaled_cross_entropy,
    call_selected_log_probs,
    cross_entropy,
    linear_cross_entropy,
    norm_heads,
    rope,
    token_losses,
)
from tests.client_py.ops.row_losses import LOSSES, REDUCTIONS

ops = torch.ops.fuseboard
EPS = 1e-6


# ---- norms ----


def _rms_norm(x, weight, offset=0.0, casting=LLAMA):
    y = wide(x)
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + EPS)
    if casting == LLAMA:
        y = y.to(x.dtype)
        return y if weight is None else y * (weight + offset if offset else weight)
    return (y if weight is None else y * (wide(weight) + offset)).to(x.dtype)


def _norm_options(source):
    return {
        "offset": source.one_of([0.0, 1.0]),
        "casting": source.one_of([LLAMA, GEMMA, NONE_CASTING]),
    }


def _weight(source, size, mean=1.0):
    dtype, present = source.other_dtype(), source.rng.randrange(4) > 0
    weight = source.tensor(size, dtype=dtype, scale=0.3, mean=mean)
    return weight if present else None


def _steepness(x, *factors, eps=EPS, centred=False, dim=-1):
    """The largest reciprocal of a row's root mean square, at least 1, times the largest factor."""
    if not x.numel():
        return 1.0
    rows = x.detach().double()
    rows = rows - rows.mean(dim, keepdim=True) if centred else rows
    return largest(torch.rsqrt(rows.square().mean(dim) + eps)) * (1 + largest(*factors))


def rms_norm(source, length):
    """Any casting, offset, weight or none."""
    width, options = source.width(), _norm_options(source)
    tensors = [source.tensor(length, width), _weight(source, width)]
    return Problem(
        tensors,
        lambda t, kernel: call_rms_norm(*t, **options, kernel=kernel),
        lambda t: _rms_norm(*t, **options),
        rows=(0,),
        terms=lambda t: _steepness(*t),
    )


def fused_add_rms_norm(source, length):
    """The sum is a result too."""
    width, options = source.width(), _norm_options(source)
    tensors = [source.tensor(length, width) for _ in range(2)] + [_weight(source, width)]

    def formula(t):
        total = t[0] + t[1]
        return _rms_norm(total, t[2], **options), total

    def call(t, kernel):
        return ops.fused_add_rms_norm(*t, EPS, options["offset"], options["casting"], kernel)

    return Problem(
        tensors, call, formula, rows=(0, 1), terms=lambda t: _steepness(t[0] + t[1], t[2])
    )


def modulated_rms_norm(source, length):
    """A scale and a shift for each example."""
    width, options = source.width(), _norm_options(source)
    positions = source.one_of([2, 3, 4])  # Of one: test_modulated_rms_norm.
    x = source.tensor(length, positions, width)
    modulation = [source.tensor(length, width, scale=0.5) for _ in range(2)]

    def formula(t):
        y = _rms_norm(t[0], t[1], **options)
        return y * (1 + t[2][:, None]) + t[3][:, None]

    def call(t, kernel):
        return ops.modulated_rms_norm(*t, EPS, options["offset"], options["casting"], kernel)

    return Problem(
        [x, _weight(source, width), *modulation],
        call,
        formula,
        rows=(0, 2, 3),
        slack=2,
        terms=lambda t: _steepness(t[0], t[1]) * (1 + largest(t[2])),
    )


def layer_norm(source, length):
    """Weight or bias may be missing."""
    width = source.width()
    tensors = [source.tensor(length, width), _weight(source, width), _weight(source, width, 0.0)]

    def formula(t):
        x, weight, bias = (None if v is None else wide(v) for v in t)
        return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5).to(t[0].dtype)

    return Problem(
        tensors,
        lambda t, kernel: ops.layer_norm(*t, 1e-5, kernel),
        formula,
        rows=(0,),
        terms=lambda t: _steepness(t[0], t[1], eps=1e-5, centred=True),
    )


def group_norm(source, length):
    """Length is the images' height, at least 1: torch's gradients of no elements are NaN."""
    length = max(1, length)
    groups, channels = source.one_of([(1, 3), (2, 2), (4, 3), (8, 1)])
    channels *= groups
    shape = source.one_of(
        [(2, channels, length), (3, channels, length, 5), (1, channels, length, 8)]
    )
    tensors = [source.tensor(*shape), _weight(source, channels), _weight(source, channels, 0.0)]

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
        return _steepness(rows, t[1], eps=1e-5, centred=True)

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


# ---- rotations ----


def _heads_and_tables(source, length, dims):
    batch, counts = source.one_of([1, 2, 3]), source.one_of([(4, 2), (3, 3), (1, 1), (8, 1)])
    dim = source.width(dims)
    rotary = source.one_of([dim, dim, max(2, dim // 4 * 2)])
    interleaved, inside = source.maybe(), source.maybe()

    def heads(count):
        if inside:
            x = source.tensor(batch, length, count, dim).detach()
            return x.transpose(1, 2).requires_grad_()
        return source.tensor(batch, count, length, dim)

    q, k = heads(counts[0]), heads(counts[1])
    angle = source.randn(source.one_of([1, batch]), length, rotary // 2) * 3
    angle = angle.repeat_interleave(2, -1) if interleaved else torch.cat([angle, angle], -1)
    dtype = source.other_dtype()
    tables = [source.laid_out(f(angle).to(dtype)) for f in (torch.cos, torch.sin)]
    return q, k, tables, interleaved


def rope_(source, length):
    """Both orders of pairs, partial, a table for each example or for all."""
    q, k, tables, interleaved = _heads_and_tables(source, length, [2, 6, 16, 64, 72, 80, 128])
    rounded = source.maybe()

    def call(t, kernel):
        return call_rope(
            *t,
            rotary_dim=t[2].shape[-1],
            interleaved=interleaved,
            round_products=rounded,
            kernel=kernel,
        )

    def formula(t):
        return tuple(rope(x, t[2], t[3], interleaved).to(x.dtype) for x in t[:2])

    return Problem([q, k, *tables], call, formula, slack=2)


def qk_norm_rope(source, length):
    """As rope, after the norm of each head or of all heads of a position."""
    q, k, tables, interleaved = _heads_and_tables(source, length, [2, 6, 16, 64, 72, 128])
    options, all_heads = _norm_options(source), source.maybe()
    dim = q.shape[-1]
    sizes = [x.shape[1] * dim if all_heads else dim for x in (q, k)]
    weights = [_weight(source, size) for size in sizes]

    def call(t, kernel):
        return call_qk_norm_rope(
            t[0], t[1], t[4], t[5], t[2], t[3], EPS, **options, all_heads=all_heads,
            rotary_dim=t[2].shape[-1], interleaved=interleaved, kernel=kernel,
        )  # fmt: skip

    def formula(t):
        def one(x, weight):
            y = norm_heads(lambda a, w: _rms_norm(a, w, **options), x, weight, all_heads)
            return rope(y, t[2], t[3], interleaved)

        return one(t[0], t[4]), one(t[1], t[5])

    return Problem(
        [q, k, *tables, *weights],
        call,
        formula,
        slack=3,
        terms=lambda t: max(_steepness(t[0], t[4]), _steepness(t[1], t[5])),
    )


# ---- activations ----


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


# ---- losses ----


CLASSES = [1, 2, 7, 64, 127, 129, 500]


def _loss_options(source):
    return {
        "label_smoothing": source.one_of([0.0, 0.1]),
        "softcap": source.one_of([0.0, 4.0]),
        "logit_scale": source.one_of([1.0, 0.5]),
        "z_loss_scale": source.one_of([0.0, 1e-3]),
        "z_loss_in_loss": source.maybe(),
        "reduction": source.one_of([NONE, MEAN, SUM]),
    }


def cross_entropy_(source, length):
    """Every option but class weights and a divisor; the loss alone is compared."""
    classes, options = source.width(CLASSES), _loss_options(source)
    logits = source.tensor(length, classes, scale=2.0)
    target = source.labels(length, classes)
    return Problem(
        [logits, target],
        lambda t, kernel: call_cross_entropy(*t, **options, kernel=kernel)[0],
        lambda t: cross_entropy(wide(t[0]), t[1], **options)[0],
        rows=(0, 1) if options["reduction"] == NONE else (),
    )


def _row_loss(loss):
    def make(source, length):
        classes, reduction = source.width(CLASSES), source.one_of(REDUCTIONS)

        def distribution(index):
            function = torch.softmax if loss.of_probabilities[index] else torch.log_softmax
            values = function(source.randn(length, classes).double() * 2, -1)
            return source.laid_out(values.to(source.dtype))

        x, y = distribution(0).requires_grad_(), distribution(1)
        label = source.labels(length, classes)
        label = label if source.maybe() else None
        return Problem(
            [x, y, label],
            lambda t, kernel: loss.call(*t, reduction, kernel),
            lambda t: loss.reference(wide(t[0]), wide(t[1]), t[2], reduction),
            rows=((0, 1) if label is None else (0, 1, 2)) if not reduction else (),
            slack=2,
        )

    return make


def _head(source, length, classes):
    """Hidden states, weight, bias or none, labels."""
    width, has_bias = source.one_of([1, 8, 24, 40]), source.maybe()
    hidden = source.tensor(length, width)
    weight = source.tensor(classes, width, scale=width**-0.5)
    bias = source.tensor(classes)
    return [hidden, weight, bias if has_bias else None, source.labels(length, classes)]


def _cut(source):
    return {
        "chunk_bytes": source.one_of([0, 1, 4096]),
        # 2: added up in fp32.
        "dweight_dtype": 2 if source.accurate else source.one_of([0, 1, 2]),
    }


def fused_linear_cross_entropy(source, length):
    """Any chunks and either dtype of dW."""
    classes, options, cut = source.width(CLASSES), _loss_options(source), _cut(source)
    return Problem(
        _head(source, length, classes),
        lambda t, kernel: call_linear_cross_entropy(*t, **options, **cut, kernel=kernel)[0],
        lambda t: linear_cross_entropy(*t, **options)[0],
        slack=4,
        terms=lambda t: largest(*t[:2]),
    )


def _token_options(source):
    return {
        "softcap": source.one_of([0.0, 4.0]),
        "logit_scale": source.one_of([1.0, 0.5]),
        "temperature": source.one_of([1.0, 0.7]),
    }


def selected_log_probs(source, length):
    """A value for each row."""
    classes, options, cut = source.width(CLASSES), _token_options(source), _cut(source)
    return Problem(
        _head(source, length, classes),
        lambda t, kernel: call_selected_log_probs(*t, **options, **cut, kernel=kernel),
        lambda t: -token_losses(*t, **options)[0],
        slack=4,
        terms=lambda t: largest(*t[:2]),
    )


def fused_linear_scaled_cross_entropy(source, length):
    """Two values for each row."""
    classes, options, cut = source.width(CLASSES), _token_options(source), _cut(source)
    return Problem(
        _head(source, length, classes),
        lambda t, kernel: call_scaled_cross_entropy(*t, **options, **cut, kernel=kernel),
        lambda t: token_losses(*t, **options),
        slack=4,
        terms=lambda t: largest(*t[:2]),
    )


def fused_linear_jsd(source, length):
    """A teacher of another width."""
    classes, cut = source.width(CLASSES), _cut(source)
    beta, temperature = source.one_of([0.0, 0.3, 0.5, 1.0]), source.one_of([1.0, 0.7])
    *student, label = _head(source, length, classes)
    teacher = [
        source.tensor(length, 10, grad=False),
        source.tensor(classes, 10, scale=0.3, grad=False),
    ]
    label = label if source.maybe() else None

    def call(t, kernel):
        return call_linear_jsd(
            t[:3], (t[3], t[4], None), t[5], beta, temperature=temperature, **cut, kernel=kernel
        )

    return Problem(
        [*student, *teacher, label],
        call,
        lambda t: linear_jsd(t[:3], (t[3], t[4], None), t[5], beta, temperature=temperature),
        slack=4,
        terms=lambda t: largest(*t[:2]),
    )


def name_of(operation):
    """An operation's test id."""
    return operation.name.replace(" ", "_").replace(",", "")


OPERATIONS = [
    Operation("rms_norm", "rms_norm", rms_norm),
    Operation("fused_add_rms_norm", "fused_add_rms_norm", fused_add_rms_norm),
    Operation("modulated_rms_norm", "modulated_rms_norm", modulated_rms_norm),
    Operation("layer_norm", "layer_norm", layer_norm),
    Operation("group_norm", "group_norm", group_norm),
    Operation("softmax", "softmax", softmax),
    Operation("rope", "rope", rope_),
    Operation("qk_norm_rope", "qk_norm_rope", qk_norm_rope),
    Operation("swiglu", "swiglu", swiglu),
    Operation("swiglu_packed", "swiglu", swiglu_packed),
    Operation("geglu", "geglu", geglu),
    Operation("geglu_packed", "geglu", geglu_packed),
    Operation("relu_squared", "relu_squared", relu_squared),
    Operation("cross_entropy", "cross_entropy", cross_entropy_, True),
    *(Operation(name, loss.operation, _row_loss(loss), True) for name, loss in LOSSES.items()),
    Operation("fused_linear_cross_entropy", "cross_entropy", fused_linear_cross_entropy, True),
    Operation("selected_log_probs", "cross_entropy", selected_log_probs, True),
    Operation(
        "fused_linear_scaled_cross_entropy",
        "cross_entropy",
        fused_linear_scaled_cross_entropy,
        True,
    ),
    Operation("fused_linear_jsd", "jsd", fused_linear_jsd, True),
]
