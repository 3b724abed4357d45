"""fuseboard::selected_log_probs against float64 and torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client_py.ops.conftest import load
from tests.client_py.ops.reference import (
    assert_near,
    call_selected_log_probs,
    examples,
    products,
    token_losses,
)
from tests.client_py.ops.test_fused_linear_cross_entropy import DTYPES, problem


def compare(tensors, target, kernel, chunk_bytes=0, dweight_dtype=0, **options):
    """Values and gradients with an upstream gradient of its own for each row."""
    got = call_selected_log_probs(
        *tensors,
        target,
        kernel=kernel,
        chunk_bytes=chunk_bytes,
        dweight_dtype=dweight_dtype,
        **options,
    )
    doubles = [
        t if t is None else t.detach().double().requires_grad_(t.requires_grad) for t in tensors
    ]
    want = -token_losses(*doubles, target, **options)[0]
    dtype = tensors[0].dtype
    assert got.dtype == torch.float32 and got.shape == target.shape
    assert_near(got, want, dtype)
    assert not torch.signbit(got[target == options.get("ignore_index", -100)]).any()
    upstream = torch.randn(target.shape, device=target.device)
    wanted = [t for t in tensors if t is not None and t.requires_grad]
    wanted64 = [t for t in doubles if t is not None and t.requires_grad]
    gradients = torch.autograd.grad(got, wanted, upstream)
    for a, b in zip(gradients, torch.autograd.grad(want, wanted64, upstream.double()), strict=True):
        assert a.dtype == dtype
        assert_near(a, b)
    if tensors[0].requires_grad:
        assert (gradients[0][target == options.get("ignore_index", -100)] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ignored", [0.0, 0.4, 1.1])
def test_values_and_gradients_equal_float64(handle_of, device, dtype, ignored):
    tensors, target = problem(37, 24, 129, dtype, device, ignored=ignored)
    compare(tensors, target, handle_of("cross_entropy"), chunk_bytes=8192, temperature=0.7)


@settings(max_examples=examples(100), deadline=None)
@given(
    rows=st.integers(0, 12),
    vocab=st.integers(1, 70),
    bias=st.booleans(),
    frozen=st.sampled_from(["nothing", "hidden", "weight", "bias"]),
    softcap=st.sampled_from([0.0, 3.0]),
    logit_scale=st.sampled_from([1.0, 0.5, -2.0]),
    temperature=st.sampled_from([1.0, 0.6, 2.0]),
    chunk_bytes=st.sampled_from([0, 1, 512, 2048]),
    dweight_dtype=st.sampled_from([0, 1, 2]),
    ignored=st.sampled_from([0.0, 0.5, 1.1]),
    ignore_index=st.sampled_from([-100, 0]),
    use_kernel=st.booleans(),
)
def test_any_combination_of_options_equals_float64(
    rows, vocab, bias, frozen, softcap, logit_scale, temperature, chunk_bytes, dweight_dtype,
    ignored, ignore_index, use_kernel,
):  # fmt: skip
    tensors, target = problem(rows, 6, vocab, bias=bias, ignored=ignored)
    target[target == -100] = ignore_index
    index = ["hidden", "weight", "bias"].index(frozen) if frozen != "nothing" else None
    if index is not None and tensors[index] is not None:
        tensors[index] = tensors[index].detach()
    compare(
        tensors,
        target,
        load("cross_entropy") if use_kernel else -1,
        chunk_bytes,
        dweight_dtype,
        ignore_index=ignore_index,
        softcap=softcap,
        logit_scale=logit_scale,
        temperature=temperature,
    )


def test_equals_a_gather_from_log_softmax(handle_of, device):
    (hidden, weight, _), target = problem(20, 8, 33, device=device, bias=False, ignored=0.0)
    got = call_selected_log_probs(
        hidden, weight, None, target, temperature=0.9, kernel=handle_of("cross_entropy")
    )
    logits = torch.nn.functional.linear(hidden, weight) / 0.9
    want = torch.log_softmax(logits, -1).gather(1, target[:, None]).squeeze(1)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_strided_and_expanded_tensors(handle_of, device):
    hidden = torch.randn(24, 18, device=device)[:, ::2].requires_grad_()
    weight = torch.randn(18, 33, device=device).t()[:, ::2].requires_grad_()
    target = torch.randint(0, 33, (48,), device=device)[::2]
    compare([hidden, weight, None], target, handle_of("cross_entropy"))
    kernel = handle_of("cross_entropy")
    values = call_selected_log_probs(hidden, weight, None, target, kernel=kernel)
    (expanded,) = torch.autograd.grad(values.sum(), hidden, retain_graph=True)
    (dense,) = torch.autograd.grad(values, hidden, torch.ones_like(values))
    assert torch.equal(expanded, dense)


def test_a_policy_gradient_equals_torch(handle_of, device):
    """The ratio of new to old probabilities times an advantage, clipped, as PPO and GRPO use it."""
    tensors, target = problem(40, 16, 65, device=device, ignored=0.3)
    old = torch.randn(40, device=device) * 0.1
    advantage = torch.randn(40, device=device)

    def objective(values):
        ratio = (values - values.detach() + old).exp()
        return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum()

    got = torch.autograd.grad(
        objective(call_selected_log_probs(*tensors, target, kernel=handle_of("cross_entropy"))),
        tensors,
    )
    want = torch.autograd.grad(objective(-token_losses(*tensors, target)[0]), tensors)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_two_runs_have_the_same_bits(handle_of, device):
    tensors, target = problem(300, 32, 129, torch.bfloat16, device)
    runs = []
    for _ in range(2):
        values = call_selected_log_probs(
            *tensors, target, chunk_bytes=16384, kernel=handle_of("cross_entropy")
        )
        runs.append((values, *torch.autograd.grad(values.sum() * 2, tensors)))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_float64_passes_gradcheck(handle_of):
    tensors, target = problem(5, 4, 7, torch.float64)

    def values(*inputs):
        return call_selected_log_probs(
            *inputs, target, softcap=4.0, temperature=0.8, kernel=handle_of("cross_entropy")
        )

    assert torch.autograd.gradcheck(values, tensors)


def test_a_kept_graph_gives_the_same_gradients_twice_and_a_freed_one_raises(device):
    tensors, target = problem(6, 8, 16, device=device)
    values = call_selected_log_probs(*tensors, target).sum()
    first = torch.autograd.grad(values, tensors, retain_graph=True)
    second = torch.autograd.grad(values, tensors)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(values, tensors)


def test_second_derivative_raises_with_the_operators_name():
    tensors, target = problem(6, 8, 16)
    values = call_selected_log_probs(*tensors, target).sum()
    (dhidden,) = torch.autograd.grad(values, tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="selected_log_probs_backward"):
        dhidden.square().sum().backward()


# Buffers of 64 columns: a row of 32 classes in f32 takes 256 bytes.
@pytest.mark.parametrize("rows_per_chunk, chunks", [(100, 1), (16, 3), (7, 6)])
@pytest.mark.parametrize("ignored", [0.0, 0.3])
def test_the_last_chunks_logits_are_made_once(handle_of, device, rows_per_chunk, chunks, ignored):
    (hidden, weight, bias), target = problem(40, 16, 32, device=device, ignored=ignored)
    weight = weight.detach()  # Its gradient is of other products; the bias keeps the backward.
    values = call_selected_log_probs(
        hidden, weight, bias, target, chunk_bytes=rows_per_chunk * 256,
        kernel=handle_of("cross_entropy"),
    )  # fmt: skip
    upstream = torch.randn_like(values)
    gradients = []

    def backward(**options):
        gradients.append(torch.autograd.grad(values, (hidden, bias), upstream, **options))

    kept = products(lambda: backward(retain_graph=True)), products(lambda: backward())
    if not ignored:
        assert [addmm for _, addmm in kept] == [chunks, chunks - 1]
    for a, b in zip(*gradients, strict=True):
        assert torch.equal(a, b)


def frozen_head(*arguments, **options):
    """A problem whose hidden states alone want a gradient."""
    (hidden, weight, bias), target = problem(*arguments, **options)
    return [hidden, weight.detach(), None if bias is None else bias.detach()], target


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("ignored", [0.0, 0.4, 1.1])
def test_a_frozen_head_equals_float64(handle_of, device, dtype, bias, ignored):
    tensors, target = frozen_head(37, 24, 129, dtype, device, bias=bias, ignored=ignored)
    kernel = handle_of("cross_entropy")
    compare(tensors, target, kernel, chunk_bytes=8192, softcap=4.0, temperature=0.7)


def test_the_backward_of_a_frozen_head_makes_no_logits(handle_of, device):
    tensors, target = frozen_head(12, 16, 33, device=device)
    values = call_selected_log_probs(*tensors, target, kernel=handle_of("cross_entropy"))
    upstream = torch.randn_like(values)
    assert products(lambda: torch.autograd.grad(values, tensors[0], upstream)) == (0, 0)


def test_a_frozen_head_has_zeros_for_ignored_rows_whatever_comes_from_above(handle_of, device):
    tensors, target = frozen_head(12, 16, 33, device=device, ignored=0.5)
    target[3] = -100
    values = call_selected_log_probs(*tensors, target, kernel=handle_of("cross_entropy"))
    upstream = torch.where(target == -100, torch.nan, torch.ones_like(values))
    (gradient,) = torch.autograd.grad(values, tensors[0], upstream)
    assert (gradient[target == -100] == 0).all() and gradient.isfinite().all()


def test_a_frozen_head_keeps_its_graph_and_refuses_a_second_derivative(device):
    tensors, target = frozen_head(6, 8, 16, device=device)
    values = call_selected_log_probs(*tensors, target).sum()
    first, second = (torch.autograd.grad(values, tensors[0], retain_graph=True) for _ in range(2))
    assert torch.equal(first[0], second[0])
    (gradient,) = torch.autograd.grad(values, tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="selected_log_probs_backward"):
        gradient.square().sum().backward()


@pytest.mark.parametrize("frozen", [False, True])
def test_autocast_casts_as_linear_does(handle_of, device, frozen):
    tensors, target = (frozen_head if frozen else problem)(12, 16, 33, device=device)
    kernel = handle_of("cross_entropy")
    with torch.autocast(device, torch.bfloat16):
        values = call_selected_log_probs(*tensors, target, kernel=kernel)
    cast = [t.detach().bfloat16().requires_grad_(t.requires_grad) for t in tensors]
    want = call_selected_log_probs(*cast, target, kernel=kernel)
    assert values.dtype == torch.float32 and torch.equal(values, want)
    leaves, cast_leaves = ([t for t in some if t.requires_grad] for some in (tensors, cast))
    assert len(leaves) == (1 if frozen else 3)
    gradients = torch.autograd.grad(values.sum(), leaves)
    wanted = torch.autograd.grad(want.sum(), cast_leaves)
    for tensor, got, rounded in zip(leaves, gradients, wanted, strict=True):
        assert got.dtype == tensor.dtype == torch.float32
        assert_near(got, rounded, torch.bfloat16)


def test_errors_name_the_field_and_its_value():
    (hidden, weight, bias), target = problem(4, 8, 16)
    call = call_selected_log_probs
    with pytest.raises(RuntimeError, match=r"weight.size\(1\) is 7 but hidden.size\(1\) is 8"):
        call(hidden, weight[:, :7], bias, target)
    with pytest.raises(RuntimeError, match="temperature is 0, want more than 0"):
        call(hidden, weight, bias, target, temperature=0.0)
    with pytest.raises(RuntimeError, match="logit_scale is 0"):
        call(hidden, weight, bias, target, logit_scale=0.0)
    with pytest.raises(RuntimeError, match="dweight_dtype is 3"):
        call(hidden, weight, bias, target, dweight_dtype=3)
    with pytest.raises(RuntimeError, match="chunk_bytes is -1"):
        call(hidden, weight, bias, target, chunk_bytes=-1)
    with pytest.raises(IndexError, match=r"target\[0\] is 16, want \[0, 16\)"):
        call(hidden, weight, bias, torch.full((4,), 16))
