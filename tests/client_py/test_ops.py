"""fuseboard.ops against torch's own functions in float64: values, gradients, arguments, errors."""

from __future__ import annotations

import inspect
import math

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F
from fuseboard import ops

from tests.client_py.ops import reference
from tests.client_py.ops.linear_jsd import linear_jsd
from tests.client_py.ops.reference import assert_near

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
GPU = pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])


def leaf(*shape):
    return torch.randn(shape).requires_grad_()


def log_probabilities(*shape):
    return torch.log_softmax(torch.randn(shape), -1)


def tables(positions, dim, batch=()):
    angles = torch.randn(*batch, positions, dim // 2).repeat(*[1] * len(batch), 1, 2)
    return angles.cos(), angles.sin()


def jensen_shannon(x, y):
    m = torch.logaddexp(x, y) - math.log(2)
    both = F.kl_div(m, x, reduction="sum", log_target=True)
    both = both + F.kl_div(m, y, reduction="sum", log_target=True)
    return both / 2 / x[..., 0].numel()


def scaled_reference(h, w, t):
    logits = F.linear(h, w) / 2
    logp = torch.log_softmax(logits, -1)
    entropy = -(logp.exp() * logp).sum(-1)
    return F.cross_entropy(logits, t, reduction="none"), torch.where(t == -100, 0.0, entropy)


def qk_reference(q, k, w, v, cos, sin):
    return tuple(
        reference.qk_norm_rope(heads, weight, cos, sin) for heads, weight in ((q, w), (k, v))
    )


LABELS = torch.tensor([1, -100, 4, 0, 6, 2])

# Name of a case: what is called, torch's own, the inputs.
CASES = {
    "rms_norm": (
        lambda x, w: ops.rms_norm(x, 33, w, 1e-6),
        lambda x, w: F.rms_norm(x, (33,), w, 1e-6),
        lambda: (leaf(6, 33), leaf(33)),
    ),
    "rms_norm of two dimensions, without weight": (
        lambda x: ops.rms_norm(x, (3, 8), eps=1e-5),
        lambda x: F.rms_norm(x, (3, 8), eps=1e-5),
        lambda: (leaf(5, 3, 8),),
    ),
    "fused_add_rms_norm": (
        lambda x, r, w: ops.fused_add_rms_norm(x, r, [24], w, 1e-6),
        lambda x, r, w: (F.rms_norm(x + r, (24,), w, 1e-6), x + r),
        lambda: (leaf(2, 3, 24), leaf(2, 3, 24), leaf(24)),
    ),
    "modulated_rms_norm": (
        lambda x, a, b, w: ops.modulated_rms_norm(x, 24, a, b, w, 1e-6),
        lambda x, a, b, w: (1 + a[:, None]) * F.rms_norm(x, (24,), w, 1e-6) + b[:, None],
        lambda: (leaf(2, 3, 24), leaf(2, 24), leaf(2, 24), leaf(24)),
    ),
    "layer_norm": (
        lambda x, w, b: ops.layer_norm(x, (40,), w, b),
        lambda x, w, b: F.layer_norm(x, (40,), w, b),
        lambda: (leaf(7, 40), leaf(40), leaf(40)),
    ),
    "layer_norm of two dimensions": (
        lambda x, w: ops.layer_norm(x, (5, 8), w),
        lambda x, w: F.layer_norm(x, (5, 8), w),
        lambda: (leaf(2, 5, 8), leaf(5, 8)),
    ),
    "group_norm": (
        lambda x, w, b: ops.group_norm(x, 4, w, b),
        lambda x, w, b: F.group_norm(x, 4, w, b),
        lambda: (leaf(3, 8, 5), leaf(8), leaf(8)),
    ),
    "group_norm of channels last, without parameters": (
        lambda x: ops.group_norm(x.movedim(-1, 1), 2),
        lambda x: F.group_norm(x.movedim(-1, 1), 2),
        lambda: (leaf(2, 4, 5, 6),),
    ),
    "softmax": (ops.softmax, lambda x: F.softmax(x, -1), lambda: (leaf(5, 19),)),
    "softmax of the first dimension": (
        lambda x: ops.softmax(x, 0),
        lambda x: F.softmax(x, 0),
        lambda: (leaf(5, 3, 2),),
    ),
    "softmax of a number": (
        lambda x: ops.softmax(x, 0),
        lambda x: F.softmax(x, 0),
        lambda: (leaf(),),
    ),
    "rope": (
        ops.rope,
        lambda q, k, cos, sin: tuple(reference.rope(x, cos, sin) for x in (q, k)),
        lambda: (leaf(2, 4, 5, 16), leaf(2, 2, 5, 16), *tables(5, 16)),
    ),
    "rope of positions before heads, in part": (
        lambda q, k, cos, sin: ops.rope(q, k, cos, sin, unsqueeze_dim=2),
        lambda q, k, cos, sin: tuple(
            reference.rope(x.transpose(1, 2), cos, sin).transpose(1, 2) for x in (q, k)
        ),
        lambda: (leaf(2, 5, 4, 16), leaf(2, 5, 2, 16), *tables(5, 8, (2,))),
    ),
    "qk_norm_rope": (
        ops.qk_norm_rope,
        qk_reference,
        lambda: (leaf(2, 4, 5, 16), leaf(2, 2, 5, 16), leaf(16), leaf(16), *tables(5, 16)),
    ),
    "swiglu": (
        ops.swiglu,
        lambda a, b: F.silu(a) * b,
        lambda: (leaf(3, 21), leaf(3, 21)),
    ),
    "swiglu_packed": (
        ops.swiglu_packed,
        lambda x: F.silu(x[..., :21]) * x[..., 21:],
        lambda: (leaf(3, 42),),
    ),
    "swiglu as GPT-OSS has it": (
        lambda x: ops.swiglu_packed(x, interleaved=True, alpha=1.702, limit=1.0, up_offset=1.0),
        lambda x: (
            x[..., ::2].clamp(max=1)
            * torch.sigmoid(1.702 * x[..., ::2].clamp(max=1))
            * (x[..., 1::2].clamp(-1, 1) + 1)
        ),
        lambda: (leaf(3, 42),),
    ),
    "geglu": (ops.geglu, lambda a, b: F.gelu(a) * b, lambda: (leaf(3, 21), leaf(3, 21))),
    "geglu by tanh": (
        lambda a, b: ops.geglu(a, b, approximate="tanh"),
        lambda a, b: F.gelu(a, approximate="tanh") * b,
        lambda: (leaf(3, 21), leaf(3, 21)),
    ),
    "geglu_packed": (
        ops.geglu_packed,
        lambda x: F.gelu(x[..., :20]) * x[..., 20:],
        lambda: (leaf(3, 40),),
    ),
    "relu_squared": (ops.relu_squared, lambda x: F.relu(x).square(), lambda: (leaf(3, 21),)),
    "cross_entropy": (
        ops.cross_entropy,
        F.cross_entropy,
        lambda: (leaf(6, 7), LABELS, torch.rand(7) + 0.5),
    ),
    "cross_entropy of images, smoothed, without reduction": (
        lambda x, t: ops.cross_entropy(x, t, reduction="none", label_smoothing=0.1),
        lambda x, t: F.cross_entropy(x, t, reduction="none", label_smoothing=0.1),
        lambda: (leaf(2, 7, 3), LABELS.view(2, 3)),
    ),
    "cross_entropy of one row": (
        ops.cross_entropy,
        F.cross_entropy,
        lambda: (leaf(7), LABELS[2]),
    ),
    "cross_entropy and its z-loss": (
        lambda x, t: ops.cross_entropy(x, t, z_loss_scale=0.1, softcap=2.0, return_z_loss=True)[0],
        lambda x, t: reference.cross_entropy(
            x, t, z_loss_scale=0.1, softcap=2.0, z_loss_in_loss=True
        )[0],
        lambda: (leaf(6, 7), LABELS),
    ),
    "fused_linear_cross_entropy": (
        ops.fused_linear_cross_entropy,
        lambda h, w, t, b: F.cross_entropy(F.linear(h, w, b).flatten(0, 1), t.flatten()),
        lambda: (leaf(2, 3, 5), leaf(7, 5), LABELS.view(2, 3), leaf(7)),
    ),
    "fused_linear_cross_entropy without reduction": (
        lambda h, w, t: ops.fused_linear_cross_entropy(h, w, t, reduction="none"),
        lambda h, w, t: F.cross_entropy(F.linear(h, w).movedim(-1, 1), t, reduction="none"),
        lambda: (leaf(2, 3, 5), leaf(7, 5), LABELS.view(2, 3)),
    ),
    "selected_log_probs": (
        lambda h, w, t, b: ops.selected_log_probs(h, w, t, b, temperature=2.0),
        lambda h, w, t, b: (
            -F.cross_entropy((F.linear(h, w, b) / 2).movedim(-1, 1), t, reduction="none")
        ),
        lambda: (leaf(2, 3, 5), leaf(7, 5), LABELS.view(2, 3), leaf(7)),
    ),
    "fused_linear_scaled_cross_entropy": (
        lambda h, w, t: ops.fused_linear_scaled_cross_entropy(h, w, t, temperature=2.0),
        scaled_reference,
        lambda: (leaf(6, 5), leaf(7, 5), LABELS),
    ),
    "fused_linear_jsd": (
        lambda h, w, g, v: ops.fused_linear_jsd(h, w, g, v, label=LABELS.to(h.device)),
        lambda h, w, g, v: jensen_shannon(
            *(
                torch.log_softmax(F.linear(x, y), -1)[LABELS.to(h.device) != -100]
                for x, y in ((h, w), (g, v))
            )
        ),
        lambda: (leaf(6, 5), leaf(7, 5), torch.randn(6, 4), torch.randn(7, 4)),
    ),
    "fused_linear_scaled_cross_entropy of capped logits": (
        lambda h, w, t: ops.fused_linear_scaled_cross_entropy(
            h, w, t, temperature=0.7, softcap=2.0, return_entropy=True
        ),
        lambda h, w, t: tuple(
            value.view(2, 3)
            for value in reference.token_losses(
                h.flatten(0, 1), w, None, t.flatten(), temperature=0.7, softcap=2.0
            )
        ),
        lambda: (leaf(2, 3, 5), leaf(7, 5), LABELS.view(2, 3)),
    ),
    "fused_linear_jsd of labelled rows": (
        lambda h, w, g, v, b, c, t: ops.fused_linear_jsd(
            h, w, g, v, b, c, label=t, beta=0.25, temperature=2.0
        ),
        lambda h, w, g, v, b, c, t: linear_jsd((h, w, b), (g, v, c), t, 0.25, temperature=2.0),
        lambda: (
            *(leaf(6, 5), leaf(7, 5), torch.randn(6, 4), torch.randn(7, 4)),
            *(leaf(7), torch.randn(7), LABELS),
        ),
    ),
    "kl_div": (
        ops.kl_div,
        F.kl_div,
        lambda: (log_probabilities(4, 9).requires_grad_(), log_probabilities(4, 9).exp()),
    ),
    "kl_div of logarithms": (
        lambda x, y: ops.kl_div(x, y, reduction="batchmean", log_target=True),
        lambda x, y: F.kl_div(x, y, reduction="batchmean", log_target=True),
        lambda: (log_probabilities(4, 9).requires_grad_(), log_probabilities(4, 9)),
    ),
    "jsd": (
        ops.jsd,
        jensen_shannon,
        lambda: (log_probabilities(4, 9).requires_grad_(), log_probabilities(4, 9)),
    ),
    "tvd": (
        ops.tvd,
        lambda x, y: (x - y).abs().sum() / 2 / 4,
        lambda: (
            log_probabilities(4, 9).exp().requires_grad_(),
            log_probabilities(4, 9).exp(),
        ),
    ),
}


def outputs(result):
    return result if isinstance(result, tuple) else (result,)


def converted(tensors, dtype, device):
    return tuple(
        t.detach().to(device, dtype if t.is_floating_point() else t.dtype)
        .requires_grad_(t.requires_grad)
        for t in tensors
    )  # fmt: skip


def values_and_gradients(function, inputs):
    results = outputs(function(*inputs))
    leaves = [t for t in inputs if t.requires_grad]
    upstream = [torch.full_like(r, 0.5) + r.detach() * 0 for r in results]
    return [r.detach() for r in results], torch.autograd.grad(results, leaves, upstream)


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # F.kl_div's, of its default.
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_torch(name, dtype, device):
    torch.manual_seed(0)
    ours, theirs, make = CASES[name]
    inputs = converted(make(), dtype, device)
    before = [t.detach().clone() for t in inputs]
    got, got_gradients = values_and_gradients(ours, inputs)
    wanted, wanted_gradients = values_and_gradients(
        theirs, converted(inputs, torch.float64, device)
    )
    for g, w in zip([*got, *got_gradients], [*wanted, *wanted_gradients], strict=True):
        assert_near(g, w, dtype)
    for gradient, tensor in zip(got_gradients, [t for t in inputs if t.requires_grad], strict=True):
        assert gradient.dtype == tensor.dtype
    for tensor, old in zip(inputs, before, strict=True):
        assert torch.equal(tensor.detach(), old)


def test_every_function_has_a_case_and_says_what_it_takes():
    for name in ops.__all__:
        assert any(case.split(" ")[0] == name for case in CASES), name
        function = getattr(ops, name)
        text = inspect.getdoc(function)
        for parameter in inspect.signature(function).parameters:
            assert f"    {parameter}: " in text, (name, parameter)
        for section in ("Args:", "Returns:", "Raises:", "Example:"):
            assert section in text, (name, section)


@pytest.mark.parametrize("name", ops.__all__)
def test_the_example_of_every_function_runs(name):
    _run_example(getattr(ops, name), {"ops": ops, "torch": torch})


def _run_example(described, names):
    import doctest

    examples = doctest.DocTestParser().get_doctest(
        inspect.getdoc(described), names, described.__name__, None, 0
    )
    assert examples.examples
    assert doctest.DocTestRunner().run(examples).failed == 0


@pytest.mark.parametrize("name", CASES)
def test_compiles_without_a_graph_break(name):
    torch._dynamo.reset()
    ours, _, make = CASES[name]
    inputs = make()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for got, want in zip(outputs(compiled(*inputs)), outputs(ours(*inputs)), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda x: ops.rms_norm(x, 9), r"normalized_shape is \[9\].*input.*\[4, 8\]"),
        (lambda x: ops.rms_norm(x, 8, x[0, :7]), r"weight has shape \[7\].*\[8\]"),
        (lambda x: ops.rms_norm(x, 8, casting="lama"), "casting is 'lama', want one of 'llama'"),
        (lambda x: ops.layer_norm(x, 8, bias=x), r"bias has shape \[4, 8\].*\[8\]"),
        (lambda x: ops.layer_norm(x, ()), r"normalized_shape is \[\]"),
        (lambda x: ops.modulated_rms_norm(x, (4, 8), x, x), r"is \[4, 8\], want one dimension"),
        (lambda x: ops.group_norm(x, 3), r"num_groups is 3.*\[4, 8\]"),
        (lambda x: ops.group_norm(x, 2, x[0, :7]), r"(?s)group_norm: weight.*7.*8"),
        (lambda x: ops.group_norm(x[0], 2), r"num_groups is 2.*\[8\]"),
        (lambda x: ops.softmax(x, 2), "dim is 2, but input has 2 dimensions"),
        (lambda x: ops.swiglu(x, x[:2]), r"(?s)swiglu.*4.*2"),
        (lambda x: ops.swiglu_packed(x[:, :7]), "swiglu_packed.*7"),
        (lambda x: ops.geglu(x, x, approximate="erf"), "approximate is 'erf', want one of 'none'"),
        (lambda x: ops.kl_div(x, x, reduction="avg"), "reduction is 'avg', want one of 'none'"),
        (lambda x: ops.cross_entropy(x, LABELS), r"target has shape \[6\].*input.*\[4, 8\]"),
        (lambda x: ops.cross_entropy(x, x), "target has dtype torch.float32, want int64"),
        (lambda x: ops.cross_entropy(x, LABELS[:4] + 9), r"target\[0\] is 10, want \[0, 8\)"),
        (
            lambda x: ops.cross_entropy(x, LABELS[:4], reduction="batchmean"),
            "reduction is 'batchmean'",
        ),
        (
            lambda x: ops.fused_linear_cross_entropy(x, x, LABELS),
            r"target has shape \[6\].*input.*\[4, 8\]",
        ),
        (
            lambda x: ops.fused_linear_cross_entropy(x, x, LABELS[:4], accumulate="fp32"),
            "accumulate is 'fp32', want one of 'auto'",
        ),
        (
            lambda x: ops.selected_log_probs(x, x, LABELS),
            r"target has shape \[6\].*input.*\[4, 8\]",
        ),
        (lambda x: ops.selected_log_probs(x, x, x), "target has dtype torch.float32, want int64"),
        (
            lambda x: ops.selected_log_probs(x, x, LABELS[:4], temperature=0.0),
            "temperature is 0, want",
        ),
        (
            lambda x: ops.fused_linear_scaled_cross_entropy(x, x, LABELS),
            r"target has shape \[6\].*input.*\[4, 8\]",
        ),
        (
            lambda x: ops.fused_linear_scaled_cross_entropy(x, x, LABELS[:4], accumulate="fp32"),
            "accumulate is 'fp32', want one of 'auto'",
        ),
        (
            lambda x: ops.fused_linear_jsd(x, x, x[:3], x),
            r"teacher_input has shape \[3, 8\].*input.*\[4, 8\]",
        ),
        (
            lambda x: ops.fused_linear_jsd(x, x, x, x, label=LABELS),
            r"label has shape \[6\].*input.*\[4, 8\]",
        ),
        (lambda x: ops.fused_linear_jsd(x, x, x, x, beta=2.0), "beta is 2"),
        (lambda x: ops.fused_linear_jsd(x, x, x.requires_grad_(), x.detach()), "teacher_hidden"),
        (
            lambda x: ops.rope(x[None], None, x, x, unsqueeze_dim=0),
            "unsqueeze_dim is 0, want 1 or 2",
        ),
        (lambda x: ops.rope(x[None], None, x, x, rotary_dim=3), "rotary_dim is 3, want an even"),
        (lambda x: ops.jsd(x, x, beta=2.0), "beta is 2"),
    ],
)
def test_bad_arguments_are_named_with_both_values(call, message):
    with pytest.raises((ValueError, TypeError, IndexError, RuntimeError), match=message):
        call(torch.randn(4, 8))
