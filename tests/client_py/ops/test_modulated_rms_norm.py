"""fuseboard::modulated_rms_norm against float64, and against the norm and its modulation apart."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client_py.ops.conftest import load
from tests.client_py.ops.reference import (
    GEMMA,
    LLAMA,
    NONE_CASTING,
    assert_near,
    exact_rms_norm,
    examples,
    llama_rms_norm,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
OPERATION = "modulated_rms_norm"
# x and what modulates it: per example in both forms, per row, one for all; a width that no vector
# divides; wider than one block; no rows; rank 1, 2 and 4; few rows of packs, whose groups are a row, a
# few rows, or so many that several warps add them up.
SHAPES = [
    ((3, 5, 64), (3, 64)),
    ((3, 5, 37), (3, 1, 37)),
    ((2, 40, 128), (2, 40, 128)),
    ((2, 3, 4097), (1, 1, 4097)),
    ((2, 0, 16), (2, 1, 16)),
    ((0, 16), (0, 16)),
    ((16,), (16,)),
    ((6, 32), (6, 32)),
    ((6, 32), (1, 32)),
    ((2, 3, 4, 32), (2, 32)),
    ((2, 3, 4, 32), (2, 3, 1, 32)),
    ((40, 1, 256), (40, 256)),
    ((3, 11, 264), (3, 1, 264)),
    ((1, 70, 512), (1, 512)),
    ((2, 4, 4096), (2, 4096)),
]


def call(x, weight, scale, shift, eps=1e-6, offset=0.0, casting=LLAMA, kernel=-1):
    return torch.ops.fuseboard.modulated_rms_norm(
        x, weight, scale, shift, eps, offset, casting, kernel
    )


def leaf(shape, dtype=torch.float32, device="cpu"):
    return torch.randn(shape, dtype=dtype, device=device, requires_grad=True)


def spread(modulation, x):
    """A view of what modulates x that broadcasts to its shape."""
    while modulation.dim() < x.dim():
        modulation = modulation.unsqueeze(1)
    return modulation


def exact(x, weight, scale, shift, offset=0.0):
    normed = exact_rms_norm(x, weight, offset=offset)
    return normed * (1 + spread(scale, x)) + spread(shift, x)


def doubles(*tensors):
    return [None if t is None else t.detach().double().requires_grad_() for t in tensors]


def present(tensors):
    return [t for t in tensors if t is not None]


def check(inputs, kernel, **options):
    offset = options.get("offset", 0.0)
    y = call(*inputs, kernel=kernel, **options)
    dy = torch.randn_like(y)
    inputs64 = doubles(*inputs)
    y64 = exact(*inputs64, offset=offset)
    got = torch.autograd.grad(y, present(inputs), dy)
    want = torch.autograd.grad(y64, present(inputs64), dy.double())
    assert_near(y, y64)
    for a, b, tensor in zip(got, want, present(inputs), strict=True):
        assert a.dtype == tensor.dtype and a.shape == tensor.shape
        assert_near(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, modulation", SHAPES)
@pytest.mark.parametrize("casting, offset", [(LLAMA, 0.0), (GEMMA, 1.0), (NONE_CASTING, 0.0)])
def test_values_and_gradients_equal_float64(
    handle_of, device, dtype, shape, modulation, casting, offset
):
    inputs = [leaf(s, dtype, device) for s in (shape, shape[-1:], modulation, modulation)]
    check(inputs, handle_of(OPERATION), casting=casting, offset=offset)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape, modulation", SHAPES)
def test_without_a_weight(handle_of, device, dtype, shape, modulation):
    x, scale, shift = (leaf(s, dtype, device) for s in (shape, modulation, modulation))
    check([x, None, scale, shift], handle_of(OPERATION))


@pytest.mark.parametrize("dtype", DTYPES)
def test_composite_has_the_bits_of_the_model(dtype):
    """A transformer block of diffusers: norm(x) * (1 + scale[:, None]) + shift[:, None]."""
    x, weight = torch.randn(3, 7, 65, dtype=dtype) * 3, torch.randn(65, dtype=dtype)
    scale, shift = torch.randn(2, 3, 65, dtype=dtype)
    want = llama_rms_norm(x, weight) * (1 + scale[:, None]) + shift[:, None]
    assert torch.equal(call(x, weight, scale, shift), want)


def test_scale_and_shift_may_be_chunks_or_expanded(handle_of, device):
    x = leaf((4, 6, 32), device=device)
    conditioning = leaf((4, 6 * 32), device=device)
    shift, scale, *_ = conditioning.chunk(6, dim=1)  # diffusers' AdaLayerNormZero.
    expanded = scale[:, None].expand(4, 6, 32), shift[:, None].expand(4, 6, 32)
    for pair in ((scale, shift), (scale[:, None], shift[:, None]), expanded):
        y = call(x, None, *pair, kernel=handle_of(OPERATION))
        got = torch.autograd.grad(y.square().sum(), (x, conditioning), retain_graph=True)
        again = exact(x, None, scale, shift)
        want = torch.autograd.grad(again.square().sum(), (x, conditioning), retain_graph=True)
        for a, b in zip((y, *got), (again, *want), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_any_strides_give_what_contiguous_gives(handle_of, device):
    base = torch.randn(4, 6, 5, 64, device=device)
    views = [base.transpose(1, 2), base[..., 16:48], base[..., ::2], base[:1].expand(4, 6, 5, 64)]
    for view in views:
        scale, shift = (leaf((4, view.shape[-1]), device=device) for _ in range(2))
        results = []
        for x in (view.detach(), view.detach().contiguous()):
            x.requires_grad_()
            y = call(x, None, scale, shift, kernel=handle_of(OPERATION))
            results.append((y, *torch.autograd.grad(y.sum(), (x, scale, shift))))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("other", [torch.float32, torch.float16])
def test_mixed_dtypes_promote_as_the_modulation_does(handle_of, device, other):
    x, scale, shift = leaf((4, 5, 32), torch.bfloat16, device), leaf((4, 32), other, device), leaf((4, 32), torch.bfloat16, device)  # fmt: skip
    y = call(x, None, scale, shift, kernel=handle_of(OPERATION))
    assert y.dtype == torch.float32
    check([x, None, scale, shift], handle_of(OPERATION), casting=NONE_CASTING)


def test_the_kernel_takes_every_shape(device):
    before = json.loads(torch.ops.fuseboard.counters())[OPERATION]
    calls = 0
    for shape, modulation in SHAPES:
        x, scale, shift = (leaf(s, device=device) for s in (shape, modulation, modulation))
        call(x, None, scale, shift, kernel=load(OPERATION)).sum().backward()
        calls += 2
    after = json.loads(torch.ops.fuseboard.counters())[OPERATION]
    assert after["fused"] == before["fused"] + calls
    assert after["fallback"] == before["fallback"]


@settings(max_examples=examples(60), deadline=None)
@given(
    batch=st.integers(1, 4),
    rows=st.integers(1, 70),
    hidden=st.integers(8, 70),  # In narrower rows the terms of dx nearly cancel.
    dtype=st.sampled_from(DTYPES),
    per_row=st.booleans(),
    has_weight=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_shape(batch, rows, hidden, dtype, per_row, has_weight, seed):
    torch.manual_seed(seed)
    modulation = (batch, rows, hidden) if per_row else (batch, hidden)
    x, scale, shift = (leaf(s, dtype) for s in ((batch, rows, hidden), modulation, modulation))
    check([x, leaf((hidden,), dtype) if has_weight else None, scale, shift], load(OPERATION))


def test_some_gradients_only(handle_of, device):
    for wanted in range(1, 16):
        inputs = [leaf(s, device=device) for s in ((3, 40, 64), (64,), (3, 64), (3, 64))]
        for i, tensor in enumerate(inputs):
            tensor.requires_grad_(bool(wanted >> i & 1))
        asked = [t for t in inputs if t.requires_grad]
        got = torch.autograd.grad(call(*inputs, kernel=handle_of(OPERATION)).square().sum(), asked)
        want = torch.autograd.grad(exact(*inputs).square().sum(), asked)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_the_composite_takes_one_position_per_example():
    tensors = [leaf((5, 1, 16)), leaf((5, 16)), leaf((5, 16))]
    y = call(tensors[0], None, *tensors[1:])
    got = torch.autograd.grad(y.sum(), tensors)
    doubles = [t.detach().double().requires_grad_() for t in tensors]
    want = torch.autograd.grad(exact(doubles[0], None, *doubles[1:]).sum(), doubles)
    for a, b in zip(got, want, strict=True):
        assert_near(a, b)


def test_float64_passes_gradcheck(handle_of):
    inputs = [leaf(s, torch.float64) for s in ((2, 3, 5), (5,), (2, 5), (2, 5))]
    assert torch.autograd.gradcheck(
        lambda *a: call(*a, eps=1e-5, kernel=handle_of(OPERATION)), inputs
    )


def test_errors_name_the_field_and_both_values():
    x, per_example = torch.randn(2, 3, 8), torch.randn(2, 8)
    with pytest.raises(RuntimeError, match=r"scale has shape \[3, 8\] but x has shape \[2, 3, 8\]"):
        call(x, None, torch.randn(3, 8), torch.randn(3, 8))
    with pytest.raises(RuntimeError, match=r"scale has shape \[1, 3, 8\] but x has shape"):
        call(x, None, torch.randn(1, 3, 8), torch.randn(1, 3, 8))
    with pytest.raises(
        RuntimeError, match=r"scale has shape \[2, 8\] but shift has shape \[2, 7\]"
    ):
        call(x, None, per_example, torch.randn(2, 7))
    with pytest.raises(RuntimeError, match="scale has 1 dimensions but x has 3"):
        call(x, None, torch.randn(8), torch.randn(8))
    with pytest.raises(RuntimeError, match="shift has dtype Long"):
        call(x, None, per_example, per_example.long())


def test_second_derivative_raises_with_the_operators_name():
    x, scale, shift = leaf((2, 8)), leaf((2, 8)), leaf((2, 8))
    (dx,) = torch.autograd.grad(call(x, None, scale, shift).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="modulated_rms_norm_backward"):
        dx.sum().backward()


@pytest.mark.parametrize("modulation", [(3, 32), (3, 1, 32), (3, 4, 32)])
def test_opcheck_is_clean(handle_of, device, modulation):
    operator = torch.ops.fuseboard.modulated_rms_norm.default
    for dtype in (torch.float32, torch.bfloat16):
        inputs = [leaf(s, dtype, device) for s in ((3, 4, 32), (32,), modulation, modulation)]
        torch.library.opcheck(operator, (*inputs, 1e-6, 0.0, LLAMA, handle_of(OPERATION)))


def test_compiles_without_a_graph_break(device):
    torch._dynamo.reset()
    kernel = load(OPERATION)

    def step(x, scale, shift):
        return call(x * 2, None, scale, shift, kernel=kernel).square().sum()

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, rows in ((4, 5), (3, 9)):
        inputs = [leaf(s, device=device) for s in ((batch, rows, 16), (batch, 16), (batch, 16))]
        got = torch.autograd.grad(compiled(*inputs), inputs)
        torch.testing.assert_close(got, torch.autograd.grad(step(*inputs), inputs))


def test_compiled_autograd_traces_the_node():
    torch._dynamo.reset()
    inputs = [leaf(s) for s in ((2, 4, 8), (8,), (2, 8), (2, 8))]
    want = torch.autograd.grad(call(*inputs).square().sum(), inputs)
    loss = call(*inputs).square().sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        loss.backward()
    for tensor, gradient in zip(inputs, want, strict=True):
        torch.testing.assert_close(tensor.grad, gradient)


def test_two_runs_have_the_same_bits(handle_of, device):
    inputs = [leaf(s, torch.bfloat16, device) for s in ((2, 300, 96), (96,), (2, 96), (2, 96))]
    runs = []
    for _ in range(2):
        y = call(*inputs, kernel=handle_of(OPERATION))
        runs.append((y, *torch.autograd.grad(y, inputs, y.detach())))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
