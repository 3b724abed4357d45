"""fuseboard::fused_add_rms_norm against float64, and against the addition and the norm apart."""

import pytest
import torch

from tests.client_py.ops.conftest import load
from tests.client_py.ops.reference import (
    GEMMA,
    LLAMA,
    NONE_CASTING,
    assert_near,
    exact_rms_norm,
    llama_rms_norm,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
OPERATION = "fused_add_rms_norm"
# 1 row; a width that no vector divides; wider than one block; 0 rows; rank 1 and 4.
SHAPES = [(1, 8), (5, 37), (3, 4097), (0, 16), (16,), (2, 3, 4, 32)]


def call(x, residual, weight=None, eps=1e-6, offset=0.0, casting=LLAMA, kernel=-1):
    return torch.ops.fuseboard.fused_add_rms_norm(x, residual, weight, eps, offset, casting, kernel)


def inputs_of(shape, dtype, device):
    x, residual = (
        torch.randn(shape, dtype=dtype, device=device, requires_grad=True) for _ in range(2)
    )
    return x, residual, torch.randn(shape[-1], dtype=dtype, device=device, requires_grad=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("casting, offset", [(LLAMA, 0.0), (GEMMA, 1.0), (NONE_CASTING, 0.0)])
def test_values_and_gradients_equal_float64(handle_of, device, dtype, shape, casting, offset):
    inputs = inputs_of(shape, dtype, device)
    y, total = call(*inputs, offset=offset, casting=casting, kernel=handle_of(OPERATION))
    dy, dtotal = torch.randn_like(y), torch.randn_like(total)
    got = torch.autograd.grad((y, total), inputs, (dy, dtotal))
    assert torch.equal(total, inputs[0] + inputs[1])
    # What is normalised is the rounded sum.
    sum64 = total.detach().double().requires_grad_()
    weight64 = inputs[2].detach().double().requires_grad_()
    y64 = exact_rms_norm(sum64, weight64, offset=offset)
    want = torch.autograd.grad((y64, sum64 * 1), (sum64, weight64), (dy.double(), dtotal.double()))
    assert_near(y, y64)
    assert_near(got[0], want[0])
    assert torch.equal(got[0], got[1])
    assert_near(got[2], want[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_composite_has_the_bits_of_llama(dtype):
    x, residual = torch.randn(2, 7, 65, dtype=dtype) * 3
    weight = torch.randn(65, dtype=dtype)
    y, total = call(x, residual, weight)
    assert torch.equal(total, x + residual)
    assert torch.equal(y, llama_rms_norm(x + residual, weight))


@pytest.mark.parametrize("used", ["y", "sum"])
def test_only_one_result_is_used(handle_of, device, used):
    inputs = inputs_of((6, 40), torch.float32, device)
    y, total = call(*inputs, kernel=handle_of(OPERATION))
    if used == "y":
        got = torch.autograd.grad(y.square().sum(), inputs)
        again = exact_rms_norm(inputs[0] + inputs[1], inputs[2])
        want = torch.autograd.grad(again.square().sum(), inputs)
    else:
        got = torch.autograd.grad(total.square().sum(), inputs, allow_unused=True)
        want = (2 * total, 2 * total, torch.zeros_like(inputs[2]))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_chain_of_residual_blocks_equals_the_plain_one(handle_of, device):
    weights = [torch.randn(32, device=device, requires_grad=True) for _ in range(3)]
    x = torch.randn(4, 32, device=device, requires_grad=True)

    def chain(add_norm):
        hidden, residual = x * 1, torch.zeros_like(x)
        for weight in weights:
            hidden, residual = add_norm(hidden, residual, weight)
            hidden = hidden.tanh()
        return (hidden + residual).square().sum()

    def plain(a, b, w):
        return exact_rms_norm(a + b, w), a + b

    fused = torch.autograd.grad(
        chain(lambda a, b, w: call(a, b, w, kernel=handle_of(OPERATION))), [x, *weights]
    )
    want = torch.autograd.grad(chain(plain), [x, *weights])
    for a, b in zip(fused, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_any_strides_give_what_contiguous_gives(handle_of, device):
    base = torch.randn(4, 6, 5, 64, device=device)
    views = [base.transpose(1, 2), base[..., 16:48], base[..., ::2], base[:1].expand(4, 6, 5, 64)]
    for view in views:
        weight = torch.randn(view.shape[-1], device=device, requires_grad=True)
        results = []
        for x in (view.detach(), view.detach().contiguous()):
            x.requires_grad_()
            y, total = call(x, x.detach(), weight, kernel=handle_of(OPERATION))
            results.append((y, total, *torch.autograd.grad(y.sum() + total.sum(), (x, weight))))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_mixed_dtypes_promote_as_the_addition_does(handle_of, device):
    x = torch.randn(4, 32, dtype=torch.bfloat16, device=device, requires_grad=True)
    residual = torch.randn(4, 32, device=device, requires_grad=True)
    y, total = call(x, residual, kernel=handle_of(OPERATION))
    assert y.dtype == total.dtype == torch.float32
    dx, dresidual = torch.autograd.grad(y.sum(), (x, residual))
    assert (dx.dtype, dresidual.dtype) == (torch.bfloat16, torch.float32)


def test_float64_passes_gradcheck(handle_of):
    x, residual = torch.randn(2, 3, 5, dtype=torch.float64)
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda a, b, w: call(a, b, w, 1e-5, kernel=handle_of(OPERATION)),
        (x.requires_grad_(), residual.requires_grad_(), weight),
    )


def test_errors_name_the_field_and_both_values():
    x = torch.randn(2, 8)
    with pytest.raises(RuntimeError, match=r"x has shape \[2, 8\] but residual has shape \[2, 7\]"):
        call(x, torch.randn(2, 7))
    with pytest.raises(RuntimeError, match=r"weight.size\(0\) is 7 but the last dimension is 8"):
        call(x, x, torch.ones(7))
    with pytest.raises(RuntimeError, match="residual has dtype Long"):
        call(x, x.long())


def test_second_derivative_and_a_freed_graph_raise():
    x = torch.randn(2, 8, requires_grad=True)
    y, total = call(x, x * 2)
    (dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="fused_add_rms_norm_backward"):
        dx.sum().backward()
    y, total = call(x, x * 2)
    loss = y.sum() + total.sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_a_sum_changed_in_place_is_noticed():
    x = torch.randn(2, 8, requires_grad=True)
    y, total = call(x, x * 2)
    total.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_opcheck_is_clean(handle_of):
    inputs = inputs_of((4, 32), torch.float32, "cpu")
    arguments = (*inputs, 1e-6, 0.0, LLAMA, handle_of(OPERATION))
    torch.library.opcheck(torch.ops.fuseboard.fused_add_rms_norm.default, arguments)


def test_compiles_without_a_graph_break():
    torch._dynamo.reset()
    kernel = load(OPERATION)

    def step(x, residual, weight):
        y, total = call(x, residual, weight, kernel=kernel)
        return (y * total).sum()

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (4, 9):
        inputs = inputs_of((rows, 32), torch.float32, "cpu")
        got = torch.autograd.grad(compiled(*inputs), inputs)
        want = torch.autograd.grad(step(*inputs), inputs)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)


def test_two_runs_have_the_same_bits(handle_of, device):
    inputs = inputs_of((300, 96), torch.bfloat16, device)
    runs = []
    for _ in range(2):
        y, total = call(*inputs, kernel=handle_of(OPERATION))
        runs.append((y, total, *torch.autograd.grad((y, total), inputs, (y.detach(), y.detach()))))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
