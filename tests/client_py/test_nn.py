"""fuseboard.nn against torch.nn: constructors, states, values."""

from __future__ import annotations

import copy
import doctest
import inspect
import pickle

import pytest

torch = pytest.importorskip("torch")

import fuseboard.nn
import torch.nn.functional as F
from torch import nn

from tests.client_py.ops import reference
from tests.client_py.ops.linear_jsd import linear_jsd
from tests.client_py.ops.reference import assert_near

ours = fuseboard.nn


class Gated(nn.Module):
    """The feed-forward of transformers' Llama and Gemma."""

    def __init__(self, act, bias=False):
        super().__init__()
        self.gate_proj = nn.Linear(8, 16, bias)
        self.up_proj = nn.Linear(8, 16, bias)
        self.down_proj = nn.Linear(16, 8, bias)
        self.act_fn = act

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Head(nn.Module):
    """nn.Linear followed by its loss, under the Linear's keys."""

    def __init__(self, bias=False, **options):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(7, 8))
        self.bias = nn.Parameter(torch.randn(7)) if bias else None
        self.options = options

    def forward(self, x, target):
        return F.cross_entropy(F.linear(x, self.weight, self.bias), target, **self.options)


class Student(Head):
    """nn.Linear followed by its divergence from a teacher's, under the Linear's keys."""

    def forward(self, x, teacher, teacher_weight, teacher_bias=None, label=None):
        student = x, self.weight, self.bias
        return linear_jsd(student, (teacher, teacher_weight, teacher_bias), label, **self.options)


class Heads(nn.Module):
    """Norms and rotation of Qwen3's attention."""

    def __init__(self):
        super().__init__()
        self.q_norm, self.k_norm = nn.RMSNorm(16, 1e-6), nn.RMSNorm(16, 1e-6)

    def forward(self, q, k, cos, sin):
        return tuple(
            reference.rope(norm(x), cos, sin) for norm, x in ((self.q_norm, q), (self.k_norm, k))
        )


class Modulated(nn.RMSNorm):
    """The norm of a diffusion transformer's block."""

    def forward(self, x, scale, shift):
        return super().forward(x) * (1 + scale[:, None]) + shift[:, None]


class AddNorm(nn.RMSNorm):
    """The end of a residual block."""

    def forward(self, x, residual):
        return super().forward(x + residual), x + residual


class SquaredRelu(nn.Module):
    """Of Primer and Nemotron."""

    def forward(self, x):
        return F.relu(x).square()


def randn(*shape):
    return torch.randn(shape)


def logarithms(*shape):
    return torch.log_softmax(torch.randn(shape), -1)


TARGET = torch.tensor([1, -100, 4, 0, 6])

# Name: ours, torch's, the inputs of a call.
MODULES = {
    "RMSNorm": (lambda: ours.RMSNorm(8, 1e-6), lambda: nn.RMSNorm(8, 1e-6), lambda: (randn(5, 8),)),
    "RMSNorm by default, of two dimensions": (
        lambda: ours.RMSNorm((2, 4)),
        lambda: nn.RMSNorm((2, 4)),
        lambda: (randn(5, 2, 4),),
    ),
    "RMSNorm without weight": (
        lambda: ours.RMSNorm(8, elementwise_affine=False),
        lambda: nn.RMSNorm(8, elementwise_affine=False),
        lambda: (randn(5, 8),),
    ),
    "FusedAddRMSNorm": (
        lambda: ours.FusedAddRMSNorm(8, 1e-6),
        lambda: AddNorm(8, 1e-6),
        lambda: (randn(5, 8), randn(5, 8)),
    ),
    "ModulatedRMSNorm": (
        lambda: ours.ModulatedRMSNorm(8, 1e-6),
        lambda: Modulated(8, 1e-6),
        lambda: (randn(2, 5, 8), randn(2, 8), randn(2, 8)),
    ),
    "LayerNorm": (lambda: ours.LayerNorm(8), lambda: nn.LayerNorm(8), lambda: (randn(5, 8),)),
    "LayerNorm without bias": (
        lambda: ours.LayerNorm((2, 4), 1e-3, bias=False),
        lambda: nn.LayerNorm((2, 4), 1e-3, bias=False),
        lambda: (randn(5, 2, 4),),
    ),
    "GroupNorm": (
        lambda: ours.GroupNorm(4, 8),
        lambda: nn.GroupNorm(4, 8),
        lambda: (randn(3, 8, 5),),
    ),
    "GroupNorm without parameters": (
        lambda: ours.GroupNorm(8, 8, 1e-3, affine=False),
        lambda: nn.GroupNorm(8, 8, 1e-3, affine=False),
        lambda: (randn(3, 8, 4, 5),),
    ),
    "Softmax": (lambda: ours.Softmax(-1), lambda: nn.Softmax(-1), lambda: (randn(5, 8),)),
    "QKNormRope": (
        lambda: ours.QKNormRope(16),
        Heads,
        lambda: (randn(2, 4, 5, 16), randn(2, 2, 5, 16), randn(5, 16), randn(5, 16)),
    ),
    "SwiGLU": (lambda: ours.SwiGLU(8, 16), lambda: Gated(nn.SiLU()), lambda: (randn(5, 8),)),
    "SwiGLU with bias": (
        lambda: ours.SwiGLU(8, 16, bias=True),
        lambda: Gated(nn.SiLU(), bias=True),
        lambda: (randn(5, 8),),
    ),
    "GEGLU": (lambda: ours.GEGLU(8, 16), lambda: Gated(nn.GELU()), lambda: (randn(5, 8),)),
    "GEGLU by tanh": (
        lambda: ours.GEGLU(8, 16, approximate="tanh"),
        lambda: Gated(nn.GELU("tanh")),
        lambda: (randn(5, 8),),
    ),
    "ReLUSquared": (ours.ReLUSquared, SquaredRelu, lambda: (randn(5, 8),)),
    "CrossEntropyLoss": (
        ours.CrossEntropyLoss,
        nn.CrossEntropyLoss,
        lambda: (randn(5, 7), TARGET),
    ),
    "CrossEntropyLoss with weights": (
        lambda: ours.CrossEntropyLoss(torch.arange(1.0, 8.0), label_smoothing=0.1),
        lambda: nn.CrossEntropyLoss(torch.arange(1.0, 8.0), label_smoothing=0.1),
        lambda: (randn(5, 7), TARGET),
    ),
    "LinearCrossEntropyLoss": (
        lambda: ours.LinearCrossEntropyLoss(8, 7),
        Head,
        lambda: (randn(5, 8), TARGET),
    ),
    "LinearCrossEntropyLoss with bias": (
        lambda: ours.LinearCrossEntropyLoss(8, 7, bias=True, label_smoothing=0.1),
        lambda: Head(bias=True, label_smoothing=0.1),
        lambda: (randn(5, 8), TARGET),
    ),
    "LinearJSDLoss": (
        lambda: ours.LinearJSDLoss(8, 7),
        Student,
        lambda: (randn(5, 8), randn(5, 6), randn(7, 6)),
    ),
    "LinearJSDLoss with biases and labels": (
        lambda: ours.LinearJSDLoss(8, 7, bias=True, beta=0.25, temperature=2.0),
        lambda: Student(bias=True, beta=0.25, temperature=2.0),
        lambda: (randn(5, 8), randn(5, 6), randn(7, 6), randn(7), TARGET),
    ),
    "KLDivLoss": (
        lambda: ours.KLDivLoss(reduction="batchmean", log_target=True),
        lambda: nn.KLDivLoss(reduction="batchmean", log_target=True),
        lambda: (logarithms(5, 7), logarithms(5, 7)),
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_values_are_those_of_torch_with_its_checkpoint(name):
    torch.manual_seed(0)
    make, make_theirs, inputs = MODULES[name]
    module, theirs = make(), make_theirs()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    state = theirs.state_dict()
    assert list(module.state_dict()) == list(state)
    module.load_state_dict(state)
    theirs.load_state_dict(module.state_dict())
    values = inputs()
    got, want = module(*values), theirs(*values)
    for g, w in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
        assert_near(g, w, torch.float32)
    for g, w in zip(module.parameters(), theirs.parameters(), strict=True):
        (gradient,) = torch.autograd.grad(_sum(module(*values)), g, allow_unused=True)
        (wanted,) = torch.autograd.grad(_sum(theirs(*values)), w, allow_unused=True)
        assert_near(gradient, wanted, torch.float32)


def _sum(result):
    return sum(r.sum() for r in result) if isinstance(result, tuple) else result.sum()


@pytest.mark.parametrize("name", MODULES)
def test_copies_and_pickles_compute_the_same(name):
    make, _, inputs = MODULES[name]
    module, values = make(), inputs()
    want = _sum(module(*values))
    assert torch.equal(_sum(copy.deepcopy(module)(*values)), want)
    assert torch.equal(_sum(pickle.loads(pickle.dumps(module))(*values)), want)


@pytest.mark.parametrize(
    "name", ["RMSNorm", "LayerNorm", "GroupNorm", "Softmax", "CrossEntropyLoss", "KLDivLoss"]
)
def test_what_torch_has_is_a_subclass(name):
    assert issubclass(getattr(ours, name), getattr(nn, name))


def test_device_and_dtype_are_taken_as_in_torch():
    for module in (
        ours.RMSNorm(8, device="meta", dtype=torch.bfloat16),
        ours.SwiGLU(8, 16, device="meta", dtype=torch.bfloat16),
        ours.GroupNorm(2, 8, device="meta", dtype=torch.bfloat16),
        ours.LinearJSDLoss(8, 7, True, "meta", torch.bfloat16),
        ours.LinearCrossEntropyLoss(8, 7, True, "meta", torch.bfloat16),
        ours.QKNormRope(8, device="meta", dtype=torch.bfloat16),
    ):
        for parameter in module.parameters():
            assert parameter.dtype == torch.bfloat16 and parameter.is_meta


def test_a_norm_with_an_offset_begins_as_the_identity():
    x = randn(5, 8)
    module = ours.RMSNorm(8, 1e-6, offset=1.0, casting="gemma")
    assert torch.equal(module.weight, torch.zeros(8))
    assert_near(module(x), nn.RMSNorm(8, 1e-6)(x), torch.float32)
    assert "offset=1.0, casting='gemma'" in repr(module)


def test_divergences_leave_out_ignored_rows():
    x, y = logarithms(5, 7), logarithms(5, 7)
    kept = TARGET != -100
    assert_near(ours.JSDLoss()(x, y, TARGET), ours.JSDLoss()(x[kept], y[kept]), torch.float32)
    p, q = x.exp(), y.exp()
    assert_near(ours.TVDLoss()(p, q, TARGET), ours.TVDLoss()(p[kept], q[kept]), torch.float32)


def test_a_teachers_head_gets_no_gradient():
    teacher = nn.Linear(6, 7)
    hidden = randn(5, 6).requires_grad_()
    module = ours.LinearJSDLoss(8, 7)
    module(randn(5, 8), hidden, teacher.weight, teacher.bias).backward()
    assert module.weight.grad is not None
    assert hidden.grad is None and teacher.weight.grad is None and teacher.bias.grad is None


def test_all_heads_are_normed_together():
    q, k = randn(2, 4, 5, 16), randn(2, 2, 5, 16)
    module = ours.QKNormRope((64, 32), all_heads=True)
    tables = torch.ones(5, 16), torch.zeros(5, 16)
    got, _ = module(q, k, *tables)
    rows = q.transpose(1, 2).flatten(2)
    assert_near(got.transpose(1, 2).flatten(2), F.rms_norm(rows, (64,), eps=1e-6), torch.float32)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: ours.RMSNorm(8, casting="lama"), "casting is 'lama'"),
        (lambda: ours.QKNormRope(8, all_heads=True), "head_dim is 8, want a pair"),
        (lambda: ours.QKNormRope((8, 8)), r"head_dim is \(8, 8\), want a number"),
        (lambda: ours.GEGLU(8, 8, approximate="erf"), "approximate is 'erf'"),
        (lambda: ours.CrossEntropyLoss(reduction="avg"), "reduction is 'avg'"),
        (lambda: ours.LinearCrossEntropyLoss(8, 8, reduction="avg"), "reduction is 'avg'"),
        (lambda: ours.LinearCrossEntropyLoss(8, 8, accumulate="fp32"), "accumulate is 'fp32'"),
        (lambda: ours.GroupNorm(3, 8), "num_channels.*divisible by num_groups"),
        (lambda: ours.LinearJSDLoss(8, 8, beta=2.0), "beta is 2.0, want 0 to 1"),
        (lambda: ours.LinearJSDLoss(8, 8, temperature=0.0), "temperature is 0.0, want more"),
        (lambda: ours.LinearJSDLoss(8, 8, accumulate="fp32"), "accumulate is 'fp32'"),
        (lambda: ours.KLDivLoss(reduction="avg"), "reduction is 'avg'"),
        (lambda: ours.JSDLoss(2.0), "beta is 2.0, want 0 to 1"),
        (lambda: ours.TVDLoss(reduction="avg"), "reduction is 'avg'"),
    ],
)
def test_bad_arguments_are_refused_at_construction(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", ours.__all__)
def test_the_example_of_every_module_runs(name):
    module = getattr(ours, name)
    examples = doctest.DocTestParser().get_doctest(
        inspect.getdoc(module), {"nn": ours, "torch": torch}, name, None, 0
    )
    assert examples.examples
    assert doctest.DocTestRunner().run(examples).failed == 0
