"""Inputs that broke other implementations, for every operation that they concern."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.client_py.ops.linear_jsd import call_linear_jsd
from tests.client_py.ops.reference import (
    GEMMA,
    NONE,
    assert_near,
    call_linear_cross_entropy,
    call_qk_norm_rope,
    call_rms_norm,
    call_scaled_cross_entropy,
    call_selected_log_probs,
)
from tests.client_py.ops.row_losses import LOSSES

ops = torch.ops.fuseboard
VOCABULARIES = [1, 2, 5, 7, 127, 129, 1000, 32001, 50257, 65535, 65536, 65537, 151936, 262144]


# ---- vocabularies off every grid ----


@pytest.mark.parametrize("softcap", [0.0, 30.0])
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_linear_losses_have_no_phantom_columns(handle_of, device, vocab, softcap):
    # All logits are -20: a column too many would be exp(0) among exp(-20).
    hidden = torch.ones(3, 1, device=device)
    weight = torch.full((vocab, 1), -20.0, device=device)
    target = torch.tensor([0, vocab - 1, vocab // 2], device=device)
    kernel, want = handle_of("cross_entropy"), torch.full((3,), math.log(vocab), device=device)
    head = (hidden, weight, None, target)
    loss, _ = call_linear_cross_entropy(*head, softcap=softcap, reduction=NONE, kernel=kernel)
    nll, entropy = call_scaled_cross_entropy(*head, softcap=softcap, kernel=kernel)
    values = call_selected_log_probs(*head, softcap=softcap, kernel=kernel)
    for got in (loss, nll, entropy, -values):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_divergences_and_softmax_have_no_phantom_columns(handle_of, device, vocab):
    logits = torch.full((3, vocab), -20.0, device=device)
    y = ops.softmax(logits, handle_of("softmax"))
    torch.testing.assert_close(y, torch.full_like(y, 1 / vocab), rtol=1e-5, atol=0)
    # The teacher is sure of the last class, the student of none.
    sure = torch.full((3, vocab), -math.inf, device=device)
    sure[:, -1] = 0
    student = torch.log_softmax(logits, -1)
    kl = ops.kl_div(student, sure.exp(), None, False, 0.0, -100, 3, handle_of("kl_div"))
    jsd = ops.jsd(student, sure, None, 0.0, -100, 3, handle_of("jsd"))
    tvd = ops.tvd(student.exp(), sure.exp(), None, -100, 3, handle_of("tvd"))
    head = (torch.ones(3, 1, device=device), logits.new_full((vocab, 1), -20.0), None)
    linear = call_linear_jsd(head, head, None, kernel=handle_of("jsd"))
    want = {"kl": math.log(vocab), "jsd": math.log(vocab), "tvd": 1 - 1 / vocab, "linear": 0.0}
    got = {"kl": kl.item(), "jsd": jsd.item(), "tvd": tvd.item(), "linear": linear.item()}
    assert got == pytest.approx(want, rel=1e-4, abs=1e-5)


# ---- labels ----


LINEAR = {
    "fused_linear_cross_entropy": lambda *a, kernel: call_linear_cross_entropy(
        *a, reduction=NONE, kernel=kernel
    )[0],
    "selected_log_probs": lambda *a, kernel: call_selected_log_probs(*a, kernel=kernel),
    "fused_linear_scaled_cross_entropy": lambda *a, kernel: call_scaled_cross_entropy(
        *a, kernel=kernel
    )[0],
}


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("wrong", [16, -1, 2**32 + 3])
def test_a_wrong_label_of_a_linear_loss_raises_on_the_cpu(handle_of, name, wrong):
    hidden, weight = torch.randn(4, 8), torch.randn(16, 8)
    target = torch.tensor([3, wrong, -100, 5])
    with pytest.raises((RuntimeError, IndexError), match="target"):
        LINEAR[name](hidden, weight, None, target, kernel=handle_of("cross_entropy"))


@pytest.mark.gpu
@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("wrong", [16, -1, 2**32 + 3])
def test_a_wrong_label_of_a_linear_loss_makes_only_its_row_nan_on_cuda(handle_of, name, wrong):
    hidden, weight = torch.randn(4, 8, device="cuda"), torch.randn(16, 8, device="cuda")
    target = torch.tensor([3, wrong, -100, 5], device="cuda")
    values = LINEAR[name](hidden, weight, None, target, kernel=handle_of("cross_entropy"))
    assert values.isnan().tolist() == [False, True, False, False]


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_supervised_rows_get_their_gradients(handle_of, device, name, dtype):
    hidden = torch.randn(512, 8, device=device).to(dtype).requires_grad_()
    weight = torch.randn(64, 8, device=device).to(dtype).requires_grad_()
    target = torch.randint(64, (512,), device=device)
    target[:-8] = -100
    kernel = handle_of("cross_entropy")
    values = LINEAR[name](hidden, weight, None, target, kernel=kernel)
    (got,) = torch.autograd.grad(values.sum(), hidden)
    alone = hidden[-8:].detach().requires_grad_()
    few = LINEAR[name](alone, weight, None, target[-8:], kernel=kernel)
    (want,) = torch.autograd.grad(few.sum(), alone)
    assert (got[:-8] == 0).all() and got[-8:].any(1).all()
    assert_near(got[-8:], want)


def all_linear_losses(head, teacher, target, load, **options):
    """A scalar of each loss of a linear layer, by its name."""
    kernel, rows = load("cross_entropy"), (*head, target)
    nll, entropy = call_scaled_cross_entropy(*rows, kernel=kernel, **options)
    return {
        "mean": call_linear_cross_entropy(*rows, kernel=kernel, **options)[0],
        "none": call_linear_cross_entropy(*rows, reduction=NONE, kernel=kernel, **options)[0].sum(),
        "log_probs": call_selected_log_probs(*rows, kernel=kernel, **options).sum(),
        "entropy": (nll + 0.3 * entropy).sum(),
        "jsd": call_linear_jsd(head, teacher, target, kernel=load("jsd"), **options),
    }


# One chunk and several; rows so few that nobody counts those that are ignored, and more.
@pytest.mark.parametrize("chunk_bytes", [0, 8192])
@pytest.mark.parametrize("rows", [40, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_ignored_rows_hold_reaches_nothing(handle_of, device, dtype, rows, chunk_bytes):
    def leaf(*shape):
        return (0.5 * torch.randn(*shape, device=device)).to(dtype).requires_grad_()

    hidden, head = leaf(rows, 16), (leaf(33, 16), leaf(33))
    teacher = tuple(t.detach() for t in (leaf(rows, 24), leaf(33, 24), leaf(33)))
    target = torch.randint(33, (rows,), device=device)
    target[1::3] = -100
    spoilt, taught = hidden.detach().clone(), teacher[0].clone()
    for tensor in (spoilt, taught):
        tensor[1::6], tensor[4::6] = math.nan, math.inf
    spoilt.requires_grad_()
    want = all_linear_losses((hidden, *head), teacher, target, handle_of, chunk_bytes=chunk_bytes)
    got = all_linear_losses(
        (spoilt, *head), (taught, *teacher[1:]), target, handle_of, chunk_bytes=chunk_bytes
    )
    for name, loss in want.items():
        of_want = torch.autograd.grad(1.7 * loss, (hidden, *head))
        of_got = torch.autograd.grad(1.7 * got[name], (spoilt, *head))
        for a, b in zip((got[name], *of_got), (loss, *of_want), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, msg=name)
        assert (of_got[0][1::3] == 0).all(), name


# Only the last turn of a conversation is labelled, and the model is sure of each token: half the time of another one
# than the label. The head is frozen, and so is what the hidden states are made of, but for an adapter of low rank.
@pytest.mark.parametrize(
    "device, vocab", [("cpu", 8191), pytest.param("cuda", 2**17, marks=pytest.mark.gpu)]
)
@pytest.mark.parametrize("name", LINEAR)
def test_an_adapter_learns_from_few_labels_of_a_large_vocabulary(handle_of, name, device, vocab):
    weight = torch.randn(vocab, 64, device=device)
    sure = torch.randint(vocab, (512,), device=device)
    target = torch.full_like(sure, -100)
    target[-8:] = torch.where(sure[-8:] % 2 == 0, sure[-8:], (sure[-8:] + 5) % vocab)
    x, base = torch.randn(512, 16, device=device), 0.4 * weight[sure]
    factors = [torch.randn(16, 4, device=device), 1e-3 * torch.randn(4, 64, device=device)]

    def learnt(dtype, loss, rows):
        a, b = (f.to(dtype).requires_grad_() for f in factors)
        hidden = base[rows].to(dtype) + x[rows].to(dtype) @ a @ b
        value = loss(hidden, weight.to(dtype), None, target[rows])
        return value.detach(), *torch.autograd.grad(value.sum(), (hidden, a, b))

    def loss(*head):
        return LINEAR[name](*head, kernel=handle_of("cross_entropy"))

    def exact(hidden, weight, bias, target):
        values = F.cross_entropy(F.linear(hidden, weight, bias), target, reduction="none")
        return -values if name == "selected_log_probs" else values

    values, dhidden, *got = learnt(torch.float32, loss, slice(None))
    want_values, want_dhidden, *want = learnt(torch.float64, exact, slice(-8, None))
    assert not values[:-8].any() and not dhidden[:-8].any() and dhidden[-8:].any(1).all()
    torch.testing.assert_close(values[-8:].double(), want_values, rtol=1e-5, atol=1e-5)
    # Of a token that it is right about 1 - p is no more than some 1e-5, of a p that float32 rounds.
    error, size = (t.norm(dim=1) for t in (dhidden[-8:] - want_dhidden, want_dhidden))
    assert (error <= 1e-2 * size + 1e-5).all()
    for a, b in zip(got, want, strict=True):
        assert b.any()
        assert_near(a, b)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("ignore_index", [0, 3])
def test_a_class_may_be_the_one_to_ignore(handle_of, device, name, ignore_index):
    loss = LOSSES[name]
    x, y = loss.pair((6, 9), device=device)
    label = torch.tensor([ignore_index, 1, 2, ignore_index, 5, -100], device=device)
    kernel, counts = handle_of(loss.operation), label != ignore_index
    got = loss.call(x, y, label, 3, kernel, ignore_index=ignore_index)
    want = loss.call(x[counts], y[counts], label[counts], 3, kernel, ignore_index=-1)
    torch.testing.assert_close(got, want)
    (gradient,) = torch.autograd.grad(got, x)
    assert (gradient[~counts] == 0).all() and gradient[counts].any(1).all()


# ---- norms in half precision ----


def heads_of(rows):
    """Rows as one head of one example, with a rotation by nothing."""
    x = rows[None, None]
    cos = torch.ones(1, len(rows), rows.shape[-1], dtype=rows.dtype, device=rows.device)
    return x, cos, torch.zeros_like(cos)


def norms(x, weight, handle_of, casting=GEMMA, offset=0.0, eps=1e-6):
    """By name: each norm of rows x, by root mean square unless its name says otherwise."""
    zero = torch.zeros_like(x)
    q, cos, sin = heads_of(x)
    rotated, _ = call_qk_norm_rope(
        q, None, weight, None, cos, sin, eps, offset, casting, kernel=handle_of("qk_norm_rope")
    )
    examples = x[:, None]
    return {
        "rms_norm": call_rms_norm(x, weight, eps, offset, casting, handle_of("rms_norm")),
        "fused_add_rms_norm": ops.fused_add_rms_norm(
            x, zero, weight, eps, offset, casting, handle_of("fused_add_rms_norm")
        )[0],
        "modulated_rms_norm": ops.modulated_rms_norm(
            examples, weight, zero, zero, eps, offset, casting, handle_of("modulated_rms_norm")
        )[:, 0],
        "qk_norm_rope": rotated[0, 0],
    }


def test_the_offset_is_added_in_fp32(handle_of, device):
    weight = torch.full((8,), 2.0**-8, dtype=torch.bfloat16, device=device)
    x = torch.tensor([1.0, -1.0] * 4, device=device)[None]
    for name, y in norms(x, weight, handle_of, offset=1.0, eps=0.0).items():
        torch.testing.assert_close(y.float(), 1.00390625 * x, rtol=1e-6, atol=0, msg=name)


@pytest.mark.parametrize("size", [256.0, 60000.0])
def test_squares_of_fp16_do_not_overflow(handle_of, device, size):
    sign = torch.tensor([1.0, -1.0], device=device).repeat(3, 2048)
    x, weight = (sign * size).half(), torch.ones(4096, dtype=torch.float16, device=device)
    found = {
        **norms(x, weight, handle_of),
        "layer_norm": ops.layer_norm(x, weight, None, 1e-6, handle_of("layer_norm")),
        "group_norm": ops.group_norm(x[:, None], 1, None, None, 1e-6, handle_of("group_norm"))[
            :, 0
        ],
    }
    for name, y in found.items():
        torch.testing.assert_close(y, sign.half(), rtol=1e-3, atol=0, msg=name)


@pytest.mark.parametrize("hidden", [3, 5, 1536, 4095, 4097])
def test_a_large_mean_does_not_enter_the_variance_of_layer_norm(handle_of, device, hidden):
    x = (torch.randn(7, hidden, device=device) + 100).requires_grad_()
    y = ops.layer_norm(x, None, None, 1e-5, handle_of("layer_norm"))
    x64 = x.detach().double().requires_grad_()
    want = F.layer_norm(x64, (hidden,), eps=1e-5)
    dy = torch.randn_like(y)
    got_dx, want_dx = torch.autograd.grad(y, x, dy), torch.autograd.grad(want, x64, dy.double())
    assert_near(y, want, slack=20)  # x itself is known to 1e-7 of 100.
    assert_near(got_dx[0], want_dx[0], slack=20)


@pytest.mark.parametrize(
    "shape, groups",
    [((1, 48, 32, 32), 16), ((2, 6, 5), 2), ((2, 6, 4, 5), 3), ((2, 6, 3, 2, 5), 3)],
)
def test_groups_off_the_grid_have_mean_0_and_variance_1(handle_of, device, shape, groups):
    x = torch.randn(shape, device=device) * 3 + 10
    y = ops.group_norm(x, groups, None, None, 0.0, handle_of("group_norm"))
    values = y.double().reshape(shape[0], groups, -1)
    torch.testing.assert_close(values.mean(-1), torch.zeros_like(values[..., 0]), rtol=0, atol=1e-5)
    ones = torch.ones_like(values[..., 0])
    torch.testing.assert_close(values.var(-1, unbiased=False), ones, rtol=1e-5, atol=0)


# ---- activations ----


def test_products_in_fp16_overflow_only_where_eager_does(handle_of, device):
    gate = torch.tensor([300.0, 200.0, -300.0, 1.0], dtype=torch.float16, device=device)
    up = torch.tensor([300.0, 300.0, 300.0, 60000.0], dtype=torch.float16, device=device)
    kernel = handle_of("geglu")
    for tanh, approximate in ((True, "tanh"), (False, "none")):
        got = ops.geglu(gate, up, tanh, True, kernel)
        want = F.gelu(gate, approximate=approximate) * up
        torch.testing.assert_close(got, want, rtol=2e-3, atol=1e-3)
    packed = ops.geglu_packed(torch.cat([gate, up]), False, True, True, kernel)
    torch.testing.assert_close(packed, ops.geglu(gate, up, True, True, kernel))
    swiglu = ops.swiglu_packed(torch.cat([gate, up]), False, True, handle_of("swiglu"))
    torch.testing.assert_close(swiglu, F.silu(gate) * up, rtol=2e-3, atol=1e-3)
    squared = ops.relu_squared(gate, handle_of("relu_squared"))
    torch.testing.assert_close(squared, F.relu(gate).square())
