"""fuseboard::cross_entropy against float64, torch, and the cases that broke others."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client_py.ops.conftest import load
from tests.client_py.ops.reference import (
    MEAN,
    NONE,
    SUM,
    assert_near,
    call_cross_entropy,
    cross_entropy,
    examples,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EVERYTHING = {"label_smoothing": 0.1, "softcap": 5.0, "logit_scale": 0.7, "z_loss_scale": 1e-2}


def targets(rows, vocab, device="cpu", ignored=0.3):
    target = torch.randint(0, vocab, (rows,), device=device)
    return torch.where(torch.rand(rows, device=device) < ignored, -100, target)


def compare(logits, target, kernel, upstream=1.7, **options):
    """Loss, z-loss and gradient against float64."""
    before = logits.detach().clone()
    loss, z_loss = call_cross_entropy(logits, target, kernel=kernel, **options)
    (got,) = torch.autograd.grad(loss.sum() * upstream, logits)
    logits64 = logits.detach().double().requires_grad_()
    loss64, z_loss64 = cross_entropy(logits64, target, **options)
    (want,) = torch.autograd.grad(loss64.sum() * upstream, logits64)
    assert loss.dtype == torch.float32 and got.dtype == logits.dtype
    assert_near(loss, loss64)
    assert_near(z_loss, z_loss64)
    assert_near(got, want)
    assert (got[target == options.get("ignore_index", -100)] == 0).all()
    assert torch.equal(logits.detach(), before)


# Vocabularies around powers of two and vector widths, and one wider than a block of the composite.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 2, 7, 127, 129, 1000, 32001, 50257])
@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
def test_values_and_gradients_equal_float64(handle_of, device, dtype, vocab, reduction):
    logits = torch.randn(9, vocab, device=device).to(dtype).mul_(3).requires_grad_()
    kernel = handle_of("cross_entropy")
    compare(logits, targets(9, vocab, device), kernel, reduction=reduction)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("in_loss", [False, True])
def test_all_options_together_equal_float64(handle_of, device, dtype, in_loss):
    logits = torch.randn(33, 129, device=device).to(dtype).mul_(3).requires_grad_()
    compare(
        logits,
        targets(33, 129, device),
        handle_of("cross_entropy"),
        class_weight=torch.rand(129, device=device),
        z_loss_in_loss=in_loss,
        **EVERYTHING,
    )


@settings(max_examples=examples(150), deadline=None)
@given(
    rows=st.integers(0, 9),
    vocab=st.integers(1, 70),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    softcap=st.sampled_from([0.0, 2.0, 30.0]),
    scale=st.sampled_from([1.0, 0.5, -2.0]),
    z=st.sampled_from([0.0, 1e-3]),
    in_loss=st.booleans(),
    reduction=st.sampled_from([NONE, MEAN, SUM]),
    weighted=st.booleans(),
    divisor=st.sampled_from([None, 0.0, 3.0]),
    ignore=st.sampled_from([-100, 0, 3]),
    int32=st.booleans(),
    use_kernel=st.booleans(),
)
def test_any_combination_of_options_equals_float64(
    rows, vocab, smoothing, softcap, scale, z, in_loss, reduction, weighted, divisor, ignore, int32,
    use_kernel,
):  # fmt: skip
    target = torch.randint(0, vocab, (rows,))
    if rows:
        target[0] = ignore
    compare(
        torch.randn(rows, vocab, requires_grad=True),
        target.int() if int32 else target,
        load("cross_entropy") if use_kernel else -1,
        class_weight=torch.rand(vocab) + 0.1 if weighted else None,
        divisor=None if divisor is None else torch.tensor(divisor),
        ignore_index=ignore,
        label_smoothing=smoothing,
        softcap=softcap,
        logit_scale=scale,
        z_loss_scale=z,
        z_loss_in_loss=in_loss,
        reduction=reduction,
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_torch_in_fp32(handle_of, device, smoothing):
    logits = torch.randn(40, 77, device=device, requires_grad=True)
    target = targets(40, 77, device)
    weight = torch.rand(77, device=device)
    got, _ = call_cross_entropy(
        logits, target, weight, label_smoothing=smoothing, kernel=handle_of("cross_entropy")
    )
    want = F.cross_entropy(logits, target, weight, label_smoothing=smoothing)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(got, logits), torch.autograd.grad(want, logits), rtol=1e-5, atol=1e-8
    )


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
@pytest.mark.parametrize("divisor", [None, 0])
def test_all_ignored_gives_exact_zeros(handle_of, device, reduction, divisor):
    logits = torch.full((4, 16), math.nan, device=device, requires_grad=True)
    target = torch.full((4,), -100, device=device)
    divisor = None if divisor is None else torch.tensor(divisor, device=device)
    loss, _ = call_cross_entropy(
        logits, target, None, divisor, reduction=reduction, kernel=handle_of("cross_entropy")
    )
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert (loss == 0).all() and (gradient == 0).all()


@pytest.mark.parametrize("ignore_index", [-100, 0, 3])
def test_mean_divides_by_the_rows_that_count(handle_of, device, ignore_index):
    logits = torch.randn(8, 5, device=device, requires_grad=True)
    target = torch.full((8,), ignore_index, device=device)
    target[2], target[5] = 1, 4
    kernel = handle_of("cross_entropy")
    loss, _ = call_cross_entropy(logits, target, ignore_index=ignore_index, kernel=kernel)
    alone, _ = call_cross_entropy(logits[[2, 5]], target[[2, 5]], kernel=kernel)
    torch.testing.assert_close(loss, alone, rtol=1e-6, atol=0)


def test_value_does_not_depend_on_requires_grad(handle_of, device):
    logits = torch.randn(4, 3, device=device)
    target = torch.zeros(4, dtype=torch.long, device=device)

    def value(x):
        return call_cross_entropy(x, target, kernel=handle_of("cross_entropy"))[0].item()

    plain, before = value(logits), logits.clone()
    with torch.no_grad():
        assert value(logits) == plain
    with torch.inference_mode():
        assert value(logits) == plain
    assert value(logits.requires_grad_()) == plain > 0
    assert torch.equal(logits, before)


def test_class_weight_smoothing_and_an_ignored_target(handle_of, device):
    logits = torch.tensor([[1.0, 2.0], [3.0, 0.4]], device=device)
    loss, _ = call_cross_entropy(
        logits,
        torch.tensor([-100, 1], device=device),
        torch.tensor([0.2, 0.3], device=device),
        label_smoothing=0.1,
        kernel=handle_of("cross_entropy"),
    )
    assert loss.item() == pytest.approx(2.540451, abs=2e-6)


@pytest.mark.parametrize("vocab", [5, 1, 2, 7, 127, 129, 1000, 65535, 65536, 65537, 262144])
def test_no_phantom_columns(handle_of, device, vocab):
    logits = torch.full((2, vocab), -20.0, device=device)
    target = torch.tensor([0, vocab - 1], device=device)
    loss, _ = call_cross_entropy(logits, target, reduction=NONE, kernel=handle_of("cross_entropy"))
    assert loss.tolist() == pytest.approx([math.log(vocab)] * 2, rel=1e-6, abs=2e-6)


@pytest.mark.parametrize(
    "wrong, ignore_index", [(16, -100), (-1, -100), (-100, -1), (2**32 + 3, -100)]
)
def test_a_wrong_target_raises_on_the_cpu(handle_of, wrong, ignore_index):
    target = torch.tensor([1, 0, wrong, 0, 2, 0])[::2]
    with pytest.raises(IndexError, match=rf"target\[1\] is {wrong}, want \[0, 16\)"):
        call_cross_entropy(
            torch.randn(3, 16), target, ignore_index=ignore_index, kernel=handle_of("cross_entropy")
        )


@pytest.mark.gpu
@pytest.mark.parametrize("wrong", [16, -1, 2**32 + 3])
def test_a_wrong_target_makes_only_its_row_nan_on_cuda(handle_of, wrong):
    logits = torch.randn(3, 16, device="cuda", requires_grad=True)
    target = torch.tensor([1, wrong, 2], device="cuda")
    loss, _ = call_cross_entropy(logits, target, reduction=NONE, kernel=handle_of("cross_entropy"))
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert loss.isnan().tolist() == [False, True, False]
    assert gradient.isnan().all(1).tolist() == [False, True, False]
    assert gradient[[0, 2]].isfinite().all()


def test_padded_and_transposed_logits(handle_of, device):
    padded = torch.randn(6, 40, device=device)[:, :33].detach().requires_grad_()
    compare(padded, targets(6, 33, device), handle_of("cross_entropy"))
    transposed = torch.randn(33, 6, device=device).t().detach().requires_grad_()
    compare(transposed, targets(6, 33, device), handle_of("cross_entropy"))


def test_divisor_may_lie_on_another_device(handle_of, device):
    logits = torch.randn(4, 8, device=device)
    target = torch.tensor([1, -100, 2, 3], device=device)
    loss, _ = call_cross_entropy(
        logits, target, divisor=torch.tensor(12), kernel=handle_of("cross_entropy")
    )
    assert_near(loss, cross_entropy(logits.double(), target, reduction=SUM)[0] / 12)


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
def test_float64_passes_gradcheck(handle_of, reduction):
    logits = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 6, -100, 3, 3])
    options = {**EVERYTHING, "z_loss_in_loss": True, "reduction": reduction}

    def loss(x):
        return call_cross_entropy(x, target, kernel=handle_of("cross_entropy"), **options)[0]

    assert torch.autograd.gradcheck(loss, logits)


@pytest.mark.parametrize(
    "logits, target, options, message",
    [
        (torch.ones(2, 3, dtype=torch.long), torch.zeros(2).long(), {}, "logits has dtype Long"),
        (torch.ones(2, 3, 4), torch.zeros(2).long(), {}, "logits has 3 dimensions, want 2"),
        (torch.ones(2, 3), torch.zeros(3).long(), {}, r"target.size\(0\) is 3 but logits.size\(0"),
        (torch.ones(2, 3), torch.zeros(2), {}, "target has dtype Float"),
        (
            torch.ones(2, 3),
            torch.zeros(2).long(),
            {"class_weight": torch.ones(4)},
            r"class_weight.size\(0\) is 4 but the vocabulary is 3",
        ),
        (torch.ones(2, 3), torch.zeros(2).long(), {"label_smoothing": 1.5}, "smoothing is 1.5"),
        (torch.ones(2, 3), torch.zeros(2).long(), {"softcap": -1.0}, "softcap is -1"),
        (torch.ones(2, 3), torch.zeros(2).long(), {"logit_scale": 0.0}, "logit_scale is 0"),
        (torch.ones(2, 3), torch.zeros(2).long(), {"reduction": 3}, "reduction is 3"),
    ],
)
def test_errors_name_the_field_and_its_value(logits, target, options, message):
    with pytest.raises(RuntimeError, match=message):
        call_cross_entropy(logits, target, **options)


@pytest.mark.gpu
def test_mixed_devices_raise_with_both_names(handle_of):
    with pytest.raises(RuntimeError, match="cuda:0 but target is on cpu"):
        call_cross_entropy(torch.ones(2, 3, device="cuda"), torch.zeros(2).long())


def test_second_derivative_raises_with_the_operators_name():
    logits = torch.randn(2, 8, requires_grad=True)
    loss, _ = call_cross_entropy(logits, torch.tensor([1, 2]))
    (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
    with pytest.raises(RuntimeError, match="cross_entropy_backward"):
        gradient.square().sum().backward()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", [MEAN, SUM])
def test_a_kept_graph_gives_the_same_gradient_twice(handle_of, device, dtype, reduction):
    logits = torch.randn(9, 1030, device=device).to(dtype).requires_grad_()
    loss, _ = call_cross_entropy(
        logits, targets(9, 1030, device), reduction=reduction, kernel=handle_of("cross_entropy")
    )
    for upstream in (torch.ones_like(loss), torch.full_like(loss, 3.0)):
        first, second = (
            torch.autograd.grad(loss, logits, upstream, retain_graph=True)[0] for _ in range(2)
        )
        assert torch.equal(first, second) and first.data_ptr() != second.data_ptr()
    (last,) = torch.autograd.grad(loss, logits, upstream)
    assert torch.equal(last, first)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, logits, upstream)


def test_the_forward_makes_the_gradient_of_a_reduced_loss(handle_of, device):
    target = targets(9, 100, device)
    for reduction, dtype, in_forward in (
        (MEAN, torch.bfloat16, True),
        (SUM, torch.float32, True),
        (NONE, torch.float32, False),
        (MEAN, torch.float16, False),
    ):
        logits = torch.randn(9, 100, device=device).to(dtype).requires_grad_()
        loss, _ = call_cross_entropy(
            logits, target, reduction=reduction, kernel=handle_of("cross_entropy")
        )
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            torch.autograd.grad(loss, logits, torch.ones_like(loss))
        names = {event.name for event in profile.events()}
        assert ("fuseboard::cross_entropy_backward" in names) == (not in_forward)


def test_z_loss_carries_no_gradient_and_options_refuse_one():
    logits = torch.randn(2, 8, requires_grad=True)
    target = torch.tensor([1, 2])
    assert not call_cross_entropy(logits, target, z_loss_scale=1.0)[1].requires_grad
    with pytest.raises(RuntimeError, match="class_weight requires grad"):
        call_cross_entropy(logits, target, torch.ones(8, requires_grad=True))
