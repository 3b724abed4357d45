"""fuseboard::layer_norm against float64 and F.layer_norm."""

import pytest
import torch
import torch.nn.functional as F

from tests.client_py.ops.conftest import load
from tests.client_py.ops.reference import assert_near

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
OPERATION = "layer_norm"
# 1 row; a width that no vector divides; wider than one block; 0 rows; rank 1 and 4.
SHAPES = [(1, 8), (5, 37), (3, 4097), (0, 16), (16,), (2, 3, 4, 32)]


def call(x, weight=None, bias=None, eps=1e-5, kernel=-1):
    return torch.ops.fuseboard.layer_norm(x, weight, bias, eps, kernel)


def inputs_of(shape, dtype, device):
    return tuple(
        torch.randn(size, dtype=dtype, device=device, requires_grad=True)
        for size in (shape, shape[-1:], shape[-1:])
    )


def doubles_of(inputs):
    return [t.detach().double().requires_grad_() for t in inputs]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_equal_float64(handle_of, device, dtype, shape):
    inputs = inputs_of(shape, dtype, device)
    y = call(*inputs, kernel=handle_of(OPERATION))
    dy = torch.randn_like(y)
    got = torch.autograd.grad(y, inputs, dy)
    exact = doubles_of(inputs)
    y64 = F.layer_norm(exact[0], shape[-1:], *exact[1:], 1e-5)
    want = torch.autograd.grad(y64, exact, dy.double())
    assert y.dtype == dtype
    assert_near(y, y64)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == dtype
        assert_near(a, b)


@pytest.mark.parametrize("has_weight", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
def test_weight_and_bias_may_be_missing(handle_of, device, has_weight, has_bias):
    x, weight, bias = inputs_of((6, 40), torch.float32, device)
    given = [weight if has_weight else None, bias if has_bias else None]
    y = call(x, *given, kernel=handle_of(OPERATION))
    want = F.layer_norm(x, (40,), *given, 1e-5)
    torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5)
    wanted = [x, *(t for t in given if t is not None)]
    got = torch.autograd.grad(y.square().sum(), wanted)
    for a, b in zip(got, torch.autograd.grad(want.square().sum(), wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_a_large_mean_loses_no_digits(handle_of, device):
    x = torch.randn(4, 1024, device=device) + 1000
    y = call(x, kernel=handle_of(OPERATION))
    torch.testing.assert_close(y.double(), F.layer_norm(x.double(), (1024,)), rtol=0, atol=5e-4)


def test_parameters_of_another_dtype(handle_of, device):
    x = torch.randn(4, 32, dtype=torch.bfloat16, device=device, requires_grad=True)
    weight, bias = (torch.randn(32, device=device, requires_grad=True) for _ in range(2))
    y = call(x, weight, bias, kernel=handle_of(OPERATION))
    dx, dweight, dbias = torch.autograd.grad(y.sum(), (x, weight, bias))
    assert (y.dtype, dx.dtype, dweight.dtype, dbias.dtype) == (
        torch.bfloat16,
        torch.bfloat16,
        torch.float32,
        torch.float32,
    )


def test_any_strides_give_what_contiguous_gives(handle_of, device):
    base = torch.randn(4, 6, 5, 64, device=device)
    views = [base.transpose(1, 2), base[..., 16:48], base[..., ::2], base[:1].expand(4, 6, 5, 64)]
    for view in views:
        weight = torch.randn(view.shape[-1], device=device, requires_grad=True)
        results = []
        for x in (view.detach(), view.detach().contiguous()):
            x.requires_grad_()
            y = call(x, weight, kernel=handle_of(OPERATION))
            results.append((y, *torch.autograd.grad(y.sum(), (x, weight))))  # Expanded upstream.
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_only_what_is_asked_for_is_computed(handle_of, device):
    x, weight, bias = inputs_of((4, 32), torch.float32, device)
    kernel = handle_of(OPERATION)
    y = call(x.detach(), weight.detach(), bias, kernel=kernel)
    (dbias,) = torch.autograd.grad(y, (bias,), torch.ones_like(y))
    torch.testing.assert_close(dbias, torch.full_like(dbias, 4.0))
    y = call(x, weight.detach(), bias.detach(), kernel=kernel)
    assert torch.autograd.grad(y.square().sum(), (x,))[0].shape == x.shape
    with torch.inference_mode():
        assert not call(x, weight, bias, kernel=kernel).requires_grad


def test_float64_passes_gradcheck(handle_of):
    inputs = inputs_of((3, 5), torch.float64, "cpu")
    assert torch.autograd.gradcheck(lambda *t: call(*t, kernel=handle_of(OPERATION)), inputs)


def test_errors_name_the_field_and_both_values():
    x = torch.randn(2, 8)
    with pytest.raises(RuntimeError, match=r"bias is 7 but x.size\(-1\) is 8"):
        call(x, None, torch.ones(7))
    with pytest.raises(RuntimeError, match="x has dtype Long"):
        call(x.long())
    with pytest.raises(RuntimeError, match="eps is -1"):
        call(x, eps=-1.0)


def test_second_derivative_raises_with_the_operators_name():
    x = torch.randn(2, 8, requires_grad=True)
    (dx,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="layer_norm_backward"):
        dx.sum().backward()


def test_opcheck_is_clean(handle_of):
    inputs = inputs_of((4, 32), torch.float32, "cpu")
    arguments = (*inputs, 1e-5, handle_of(OPERATION))
    torch.library.opcheck(torch.ops.fuseboard.layer_norm.default, arguments)


def test_compiles_without_a_graph_break():
    torch._dynamo.reset()
    kernel = load(OPERATION)

    def step(x, weight, bias):
        return call(x, weight, bias, kernel=kernel).square().sum()

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (4, 9):
        inputs = inputs_of((rows, 32), torch.float32, "cpu")
        got = torch.autograd.grad(compiled(*inputs), inputs)
        for a, b in zip(got, torch.autograd.grad(step(*inputs), inputs), strict=True):
            torch.testing.assert_close(a, b)


def test_two_runs_have_the_same_bits(handle_of, device):
    inputs = inputs_of((300, 96), torch.bfloat16, device)
    runs = []
    for _ in range(2):
        y = call(*inputs, kernel=handle_of(OPERATION))
        runs.append((y, *torch.autograd.grad(y, inputs, y.detach())))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
