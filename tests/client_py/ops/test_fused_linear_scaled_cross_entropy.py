"""fuseboard::fused_linear_scaled_cross_entropy against float64."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client_py.ops.conftest import load
from tests.client_py.ops.reference import (
    assert_near,
    call_scaled_cross_entropy,
    examples,
    token_losses,
)
from tests.client_py.ops.test_fused_linear_cross_entropy import DTYPES, problem

BOTH = (True, True)


def compare(tensors, target, kernel, used=BOTH, chunk_bytes=0, dweight_dtype=0, **options):
    """Values, and the gradients of those of cross entropy and entropy that are `used`."""
    got = call_scaled_cross_entropy(
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
    want = token_losses(*doubles, target, **options)
    dtype = tensors[0].dtype
    ignored = target == options.get("ignore_index", -100)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == torch.float32 and a.shape == target.shape
        assert_near(a, b, dtype)
        assert (a[ignored] == 0).all()
    upstream = [torch.randn(target.shape, device=target.device) for _ in got]

    def objective(values):
        return sum((v * u.to(v)).sum() for v, u, use in zip(values, upstream, used, strict=True) if use)  # fmt: skip

    gradients = torch.autograd.grad(
        objective(got), [t for t in tensors if t is not None and t.requires_grad]
    )
    wanted = torch.autograd.grad(
        objective(want), [t for t in doubles if t is not None and t.requires_grad]
    )
    for a, b in zip(gradients, wanted, strict=True):
        assert a.dtype == dtype
        # In 16 bits the entropy's gradient is a difference of logits that were rounded themselves.
        assert_near(a, b, slack=3.0 if dtype.itemsize == 2 else 1.0)
    if tensors[0].requires_grad:
        assert (gradients[0][ignored] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("used", [BOTH, (True, False), (False, True)])
@pytest.mark.parametrize("ignored", [0.0, 0.4, 1.1])
def test_values_and_gradients_equal_float64(handle_of, device, dtype, used, ignored):
    tensors, target = problem(37, 24, 129, dtype, device, ignored=ignored)
    compare(tensors, target, handle_of("cross_entropy"), used, 8192, temperature=0.7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_frozen_head_without_an_entropy_equals_float64(handle_of, device, dtype):
    (hidden, weight, bias), target = problem(37, 24, 129, dtype, device, ignored=0.4)
    nll, entropy = call_scaled_cross_entropy(
        hidden, weight.detach(), bias.detach(), target, temperature=0.7, return_entropy=False,
        chunk_bytes=8192, kernel=handle_of("cross_entropy"),
    )  # fmt: skip
    wide = hidden.detach().double().requires_grad_()
    want, _ = token_losses(
        wide, weight.detach().double(), bias.detach().double(), target, temperature=0.7
    )
    upstream = torch.randn_like(nll)
    (got,) = torch.autograd.grad(nll, hidden, upstream)
    assert entropy.shape == (0,) and got.dtype == dtype
    assert_near(nll, want, dtype)
    assert_near(got, torch.autograd.grad(want, wide, upstream.double())[0])


@settings(max_examples=examples(100), deadline=None)
@given(
    rows=st.integers(0, 12),
    vocab=st.integers(1, 70),
    bias=st.booleans(),
    frozen=st.sampled_from(["nothing", "hidden", "weight", "bias"]),
    used=st.sampled_from([BOTH, (True, False), (False, True)]),
    softcap=st.sampled_from([0.0, 3.0]),
    logit_scale=st.sampled_from([1.0, 0.5, -2.0]),
    temperature=st.sampled_from([1.0, 0.6, 2.0]),
    chunk_bytes=st.sampled_from([0, 1, 512, 2048]),
    dweight_dtype=st.sampled_from([0, 1, 2]),
    ignored=st.sampled_from([0.0, 0.5, 1.1]),
    use_kernel=st.booleans(),
)
def test_any_combination_of_options_equals_float64(
    rows, vocab, bias, frozen, used, softcap, logit_scale, temperature, chunk_bytes, dweight_dtype,
    ignored, use_kernel,
):  # fmt: skip
    tensors, target = problem(rows, 6, vocab, bias=bias, ignored=ignored)
    index = ["hidden", "weight", "bias"].index(frozen) if frozen != "nothing" else None
    if index is not None and tensors[index] is not None:
        tensors[index] = tensors[index].detach()
    compare(
        tensors,
        target,
        load("cross_entropy") if use_kernel else -1,
        used,
        chunk_bytes,
        dweight_dtype,
        softcap=softcap,
        logit_scale=logit_scale,
        temperature=temperature,
    )


def test_without_the_entropy_there_is_none_and_the_rest_is_the_same(handle_of, device):
    tensors, target = problem(20, 8, 33, device=device)
    kernel = handle_of("cross_entropy")
    nll, entropy = call_scaled_cross_entropy(*tensors, target, return_entropy=False, kernel=kernel)
    assert entropy.shape == (0,) and not entropy.requires_grad
    with_entropy, _ = call_scaled_cross_entropy(*tensors, target, kernel=kernel)
    assert torch.equal(nll, with_entropy)
    got, want = (torch.autograd.grad(v.sum(), tensors) for v in (nll, with_entropy))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_classes_that_a_bias_excludes_add_nothing(handle_of, device):
    tensors, target = problem(20, 8, 33, device=device, ignored=0.2)
    hidden, weight, bias = tensors
    with torch.no_grad():
        bias[30:] = float("-inf")
    target[target >= 30] = 1
    kernel = handle_of("cross_entropy")
    got = call_scaled_cross_entropy(hidden, weight, bias, target, kernel=kernel)
    want = call_scaled_cross_entropy(hidden, weight[:30], bias[:30], target, kernel=kernel)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    gradients = torch.autograd.grad(got[0].sum() + got[1].sum(), tensors)
    assert all(g.isfinite().all() for g in gradients)
    assert (gradients[1][30:] == 0).all() and (gradients[2][30:] == 0).all()


def test_a_certain_row_has_no_entropy_and_a_flat_one_the_most(handle_of, device):
    hidden = torch.tensor([[200.0], [0.0]], device=device)
    weight = torch.zeros(50, 1, device=device)
    weight[7] = 1
    target = torch.tensor([7, 7], device=device)
    _, entropy = call_scaled_cross_entropy(
        hidden, weight, None, target, kernel=handle_of("cross_entropy")
    )
    assert entropy[0] == 0
    assert_near(entropy[1], torch.tensor(50.0, device=device).double().log())


def test_two_runs_have_the_same_bits(handle_of, device):
    tensors, target = problem(300, 32, 129, torch.bfloat16, device)
    runs = []
    for _ in range(2):
        nll, entropy = call_scaled_cross_entropy(
            *tensors, target, chunk_bytes=16384, kernel=handle_of("cross_entropy")
        )
        loss = (nll - 0.1 * entropy).sum()
        runs.append((nll, entropy, *torch.autograd.grad(loss, tensors)))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_float64_passes_gradcheck(handle_of):
    tensors, target = problem(5, 4, 7, torch.float64)

    def values(*inputs):
        return call_scaled_cross_entropy(
            *inputs, target, softcap=4.0, temperature=0.8, kernel=handle_of("cross_entropy")
        )

    assert torch.autograd.gradcheck(values, tensors)


def test_a_kept_graph_gives_the_same_gradients_twice_and_a_freed_one_raises(device):
    tensors, target = problem(6, 8, 16, device=device)
    nll, entropy = call_scaled_cross_entropy(*tensors, target)
    loss = (nll + entropy).sum()
    first = torch.autograd.grad(loss, tensors, retain_graph=True)
    second = torch.autograd.grad(loss, tensors)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, tensors)


def test_second_derivative_raises_with_the_operators_name():
    tensors, target = problem(6, 8, 16)
    _, entropy = call_scaled_cross_entropy(*tensors, target)
    (dhidden,) = torch.autograd.grad(entropy.sum(), tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="fused_linear_scaled_cross_entropy_backward"):
        dhidden.square().sum().backward()


def test_its_phases_are_counted_under_its_name():
    def fused():
        counters = json.loads(torch.ops.fuseboard.counters())
        return counters["fused_linear_scaled_cross_entropy"]["fused"]

    tensors, target = problem(6, 8, 16)
    before = fused()
    nll, entropy = call_scaled_cross_entropy(
        *tensors, target, chunk_bytes=1, kernel=load("cross_entropy")
    )
    (nll - entropy).sum().backward()
    assert fused() == before + 2


def test_errors_name_the_operator_and_the_value():
    (hidden, weight, bias), target = problem(4, 8, 16)
    call = call_scaled_cross_entropy
    with pytest.raises(RuntimeError, match="entropy: temperature is -1, want more than 0"):
        call(hidden, weight, bias, target, temperature=-1.0)
    with pytest.raises(RuntimeError, match="hidden has dtype Float but weight has dtype BFloat16"):
        call(hidden, weight.bfloat16(), bias, target)
    with pytest.raises(IndexError, match=r"target\[0\] is 16, want \[0, 16\)"):
        call(hidden, weight, bias, torch.full((4,), 16))
