"""fuseboard::fused_linear_cross_entropy against float64, torch, and the cases that broke others."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client_py.ops.conftest import load
from tests.client_py.ops.reference import (
    MEAN,
    NONE,
    SUM,
    assert_near,
    call_linear_cross_entropy,
    examples,
    linear_cross_entropy,
    products,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def problem(rows, width, vocab, dtype=torch.float32, device="cpu", bias=True, ignored=0.3):
    hidden = torch.randn(rows, width, device=device).to(dtype)
    weight = (torch.randn(vocab, width, device=device) / width**0.5).to(dtype)
    target = torch.randint(0, vocab, (rows,), device=device)
    target = torch.where(torch.rand(rows, device=device) < ignored, -100, target)
    tensors = [hidden, weight, torch.randn(vocab, device=device).to(dtype) if bias else None]
    return [t if t is None else t.requires_grad_() for t in tensors], target


def gradients(loss, tensors, upstream=1.7):
    wanted = [t for t in tensors if t is not None and t.requires_grad]
    return torch.autograd.grad(loss.sum() * upstream, wanted)


def compare(tensors, target, kernel, chunk_bytes=0, dweight_dtype=0, tolerance=None, **options):
    loss, z_loss = call_linear_cross_entropy(
        *tensors,
        target,
        kernel=kernel,
        chunk_bytes=chunk_bytes,
        dweight_dtype=dweight_dtype,
        **options,
    )
    got = gradients(loss, tensors)
    doubles = [
        t if t is None else t.detach().double().requires_grad_(t.requires_grad) for t in tensors
    ]
    loss64, z_loss64 = linear_cross_entropy(*doubles, target, **options)
    want = gradients(loss64, doubles)
    dtype = tensors[0].dtype
    assert loss.dtype == torch.float32
    assert_near(loss, loss64, dtype)
    assert_near(z_loss, z_loss64, dtype)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == dtype
        assert_near(a, b, tolerance or dtype)
    if tensors[0].requires_grad:
        assert (got[0][target == options.get("ignore_index", -100)] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
@pytest.mark.parametrize("ignored", [0.0, 0.4])
def test_values_and_gradients_equal_float64(handle_of, device, dtype, reduction, ignored):
    tensors, target = problem(37, 24, 129, dtype, device, ignored=ignored)
    compare(tensors, target, handle_of("cross_entropy"), chunk_bytes=8192, reduction=reduction)


@settings(max_examples=examples(150), deadline=None)
@given(
    rows=st.integers(0, 12),
    vocab=st.integers(1, 70),
    bias=st.booleans(),
    frozen=st.sampled_from(["nothing", "hidden", "weight", "bias"]),
    smoothing=st.sampled_from([0.0, 0.1]),
    softcap=st.sampled_from([0.0, 3.0]),
    z=st.sampled_from([0.0, 1e-3]),
    in_loss=st.booleans(),
    reduction=st.sampled_from([NONE, MEAN, SUM]),
    weighted=st.booleans(),
    divisor=st.sampled_from([None, 0.0, 3.0]),
    chunk_bytes=st.sampled_from([0, 1, 512, 2048]),
    dweight_dtype=st.sampled_from([0, 1, 2]),
    ignored=st.sampled_from([0.0, 0.5, 1.0]),
    use_kernel=st.booleans(),
)
def test_any_combination_of_options_equals_float64(
    rows, vocab, bias, frozen, smoothing, softcap, z, in_loss, reduction, weighted, divisor,
    chunk_bytes, dweight_dtype, ignored, use_kernel,
):  # fmt: skip
    tensors, target = problem(rows, 6, vocab, bias=bias, ignored=ignored)
    index = ["hidden", "weight", "bias"].index(frozen) if frozen != "nothing" else None
    if index is not None and tensors[index] is not None:
        tensors[index] = tensors[index].detach()
    compare(
        tensors,
        target,
        load("cross_entropy") if use_kernel else -1,
        chunk_bytes,
        dweight_dtype,
        class_weight=torch.rand(vocab) + 0.1 if weighted else None,
        divisor=None if divisor is None else torch.tensor(divisor),
        label_smoothing=smoothing,
        softcap=softcap,
        z_loss_scale=z,
        z_loss_in_loss=in_loss,
        reduction=reduction,
    )


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_ignored_gives_gradients_of_exact_zeros(handle_of, device, reduction, dtype):
    tensors, target = problem(4, 8, 16, dtype, device, ignored=1.1)
    loss, _ = call_linear_cross_entropy(
        *tensors, target, reduction=reduction, kernel=handle_of("cross_entropy")
    )
    assert (loss == 0).all()
    for tensor, gradient in zip(tensors, gradients(loss, tensors), strict=True):
        assert gradient.shape == tensor.shape and (gradient == 0).all()


def test_few_supervised_rows_get_their_gradients(handle_of, device):
    tensors, target = problem(4096, 16, 32, device=device, bias=False, ignored=0.0)
    target[:-8] = -100
    compare(tensors, target, handle_of("cross_entropy"))
    loss, _ = call_linear_cross_entropy(*tensors, target, kernel=handle_of("cross_entropy"))
    (dhidden,) = torch.autograd.grad(loss, tensors[0])
    assert dhidden.abs().sum(1).nonzero().squeeze(1).tolist() == list(range(4088, 4096))


@pytest.mark.parametrize("dweight_dtype", [0, 2])
def test_dweight_does_not_lose_bits_with_many_chunks(handle_of, device, dweight_dtype):
    hidden = torch.randn(1, 8, device=device).bfloat16().expand(4096, 8).contiguous()
    weight = torch.randn(16, 8, device=device).bfloat16().requires_grad_()
    target = torch.full((4096,), 3, device=device)

    def dweight(rows, chunk_bytes):
        loss, _ = call_linear_cross_entropy(
            hidden[:rows], weight, None, target[:rows], reduction=SUM, chunk_bytes=chunk_bytes,
            dweight_dtype=dweight_dtype, kernel=handle_of("cross_entropy"),
        )  # fmt: skip
        return torch.autograd.grad(loss, weight)[0].double()

    # 64 elements of bf16 are a row of the buffer: 32 rows a chunk, 128 chunks.
    torch.testing.assert_close(dweight(4096, 4096), 4096 * dweight(1, 0), rtol=2.0**-7, atol=0)


def test_mean_of_fp16_does_not_underflow_under_a_loss_scaler(handle_of, device):
    tensors, target = problem(2048, 16, 64, torch.float16, device, bias=False, ignored=0.0)
    loss, _ = call_linear_cross_entropy(*tensors, target, kernel=handle_of("cross_entropy"))
    got = gradients(loss, tensors, upstream=65536.0)
    doubles = [tensors[0].detach().double().requires_grad_(),
               tensors[1].detach().double().requires_grad_(), None]  # fmt: skip
    want = gradients(linear_cross_entropy(*doubles, target)[0], doubles, upstream=65536.0)
    for a, b in zip(got, want, strict=True):
        assert_near(a, b)


def test_forward_only_computes_the_same_loss_and_no_gradients(handle_of, device):
    tensors, target = problem(20, 8, 33, device=device)
    kernel = handle_of("cross_entropy")
    trained, _ = call_linear_cross_entropy(*tensors, target, kernel=kernel)
    with torch.no_grad():
        evaluated, _ = call_linear_cross_entropy(*tensors, target, kernel=kernel)
    assert torch.equal(trained.detach(), evaluated) and not evaluated.requires_grad


@pytest.mark.parametrize("reduction", [NONE, MEAN])
def test_a_kept_graph_gives_the_same_gradients_twice_and_a_freed_one_raises(device, reduction):
    tensors, target = problem(6, 8, 16, device=device)
    loss = call_linear_cross_entropy(*tensors, target, reduction=reduction)[0].sum() * 3
    first = torch.autograd.grad(loss, tensors, retain_graph=True)
    second = torch.autograd.grad(loss, tensors)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, tensors)


# Buffers of 64 columns: a row of 32 classes in f32 takes 256 bytes.
@pytest.mark.parametrize(
    "rows_per_chunk, forward, backward", [(40, (0, 1), (2, 0)), (16, (4, 5), (0, 0))]
)
def test_products_of_a_single_chunk_are_the_backwards(
    handle_of, device, rows_per_chunk, forward, backward
):
    tensors, target = problem(40, 16, 32, device=device, ignored=0)
    found = {}

    def call():
        found["loss"], _ = call_linear_cross_entropy(
            *tensors, target, chunk_bytes=rows_per_chunk * 256, kernel=handle_of("cross_entropy")
        )

    assert products(call) == forward
    assert products(lambda: gradients(found["loss"], tensors)) == backward


def test_a_frozen_weight_or_frozen_hidden_states_get_nothing(handle_of, device):
    tensors, target = problem(12, 16, 33, device=device)
    want = {}
    for wanted in [(0, 1, 2), (0,), (1,), (2,), (0, 2)]:
        leaves = [t.detach().requires_grad_(i in wanted) for i, t in enumerate(tensors)]
        loss, _ = call_linear_cross_entropy(*leaves, target, kernel=handle_of("cross_entropy"))
        got = dict(zip(wanted, gradients(loss, leaves), strict=True))
        want = want or got
        assert all(torch.equal(want[i], g) for i, g in got.items())


@pytest.mark.parametrize("reduction", [NONE, MEAN])
def test_second_derivative_raises_with_the_operators_name(reduction):
    tensors, target = problem(6, 8, 16)
    loss = call_linear_cross_entropy(*tensors, target, reduction=reduction)[0].sum()
    (dhidden,) = torch.autograd.grad(loss, tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="fused_linear_cross_entropy_backward"):
        dhidden.square().sum().backward()


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("hidden_dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_autocast_casts_as_linear_does(
    handle_of, device, autocast, hidden_dtype, weight_dtype, bias, frozen
):
    tensors, target = problem(12, 16, 33, device=device, bias=bias)
    dtypes = (hidden_dtype, weight_dtype, weight_dtype)
    tensors = [
        t if t is None else t.detach().to(d).requires_grad_(index == 0 or not frozen)
        for index, (t, d) in enumerate(zip(tensors, dtypes, strict=True))
    ]
    with torch.autocast(device, autocast):
        loss, _ = call_linear_cross_entropy(*tensors, target, kernel=handle_of("cross_entropy"))
        native = torch.nn.functional.cross_entropy(
            torch.nn.functional.linear(*tensors).float(), target
        )
    got, want = gradients(loss, tensors), gradients(native, tensors)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, native, rtol=1e-2, atol=0)
    leaves = [t for t in tensors if t is not None and t.requires_grad]
    for tensor, a, b in zip(leaves, got, want, strict=True):
        assert a.dtype == tensor.dtype
        assert_near(a, b, torch.bfloat16)


def test_backward_within_autocast_changes_nothing(handle_of, device):
    tensors, target = problem(12, 16, 33, device=device)
    results = []
    for inside in (False, True):
        loss, _ = call_linear_cross_entropy(
            *tensors, target, reduction=NONE, kernel=handle_of("cross_entropy")
        )
        with torch.autocast(device, torch.bfloat16, enabled=inside):
            results.append(gradients(loss, tensors))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_two_runs_have_the_same_bits(handle_of, device):
    tensors, target = problem(300, 32, 129, torch.bfloat16, device)
    runs = []
    for _ in range(2):
        loss, _ = call_linear_cross_entropy(
            *tensors, target, chunk_bytes=16384, kernel=handle_of("cross_entropy")
        )
        runs.append((loss, *gradients(loss, tensors)))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
def test_float64_passes_gradcheck(handle_of, reduction):
    tensors, target = problem(5, 4, 7, torch.float64)
    options = {"reduction": reduction, "label_smoothing": 0.1, "softcap": 4.0, "chunk_bytes": 1024}

    def loss(*inputs):
        return call_linear_cross_entropy(
            *inputs, target, kernel=handle_of("cross_entropy"), **options
        )[0]

    assert torch.autograd.gradcheck(loss, tensors)


def test_errors_name_the_field_and_both_values():
    (hidden, weight, bias), target = problem(4, 8, 16)
    call = call_linear_cross_entropy
    with pytest.raises(RuntimeError, match=r"weight.size\(1\) is 7 but hidden.size\(1\) is 8"):
        call(hidden, weight[:, :7], bias, target)
    with pytest.raises(RuntimeError, match="hidden has dtype Float but weight has dtype BFloat16"):
        call(hidden, weight.bfloat16(), bias, target)
    with pytest.raises(RuntimeError, match=r"bias.size\(0\) is 15 but weight.size\(0\) is 16"):
        call(hidden, weight, bias[:15], target)
    with pytest.raises(RuntimeError, match="hidden has 3 dimensions, want 2"):
        call(hidden[None], weight, bias, target)
    with pytest.raises(RuntimeError, match="dweight_dtype is 3"):
        call(hidden, weight, bias, target, dweight_dtype=3)
    with pytest.raises(RuntimeError, match="chunk_bytes is -1"):
        call(hidden, weight, bias, target, chunk_bytes=-1)
    with pytest.raises(IndexError, match=r"target\[0\] is 16, want \[0, 16\)"):
        call(hidden, weight, bias, torch.full((4,), 16))


def test_a_tied_weight_gets_the_sum_of_both_gradients(handle_of, device):
    weight = torch.randn(16, 8, device=device, requires_grad=True)
    ids = torch.tensor([1, 2, 3, 4], device=device)
    target = torch.tensor([2, 3, 4, -100], device=device)
    hidden = torch.nn.functional.embedding(ids, weight)
    loss, _ = call_linear_cross_entropy(
        hidden, weight, None, target, kernel=handle_of("cross_entropy")
    )
    want, _ = linear_cross_entropy(hidden, weight, None, target)
    (got,) = torch.autograd.grad(loss, weight, retain_graph=True)
    torch.testing.assert_close(got, torch.autograd.grad(want, weight)[0])
