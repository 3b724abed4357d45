"""fuseboard::swiglu against float64, and against the models' own code."""

import pytest
import torch
import torch.nn.functional as F

from tests.client_py.ops.reference import assert_near

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def swiglu(gate, up, kernel, round_activation=True):
    return torch.ops.fuseboard.swiglu(gate, up, round_activation, kernel)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (5, 37), (3, 1025), (0, 16), (16,), (2, 3, 4, 32)])
@pytest.mark.parametrize("round_activation", [False, True])
def test_values_and_gradients_equal_float64(handle_of, device, dtype, shape, round_activation):
    gate = torch.randn(shape, dtype=dtype, device=device, requires_grad=True)
    up = torch.randn(shape, dtype=dtype, device=device, requires_grad=True)
    out = swiglu(gate, up, handle_of("swiglu"), round_activation)
    dout = torch.randn_like(out)
    got = torch.autograd.grad(out, (gate, up), dout)
    gate64 = gate.detach().double().requires_grad_()
    up64 = up.detach().double().requires_grad_()
    out64 = F.silu(gate64) * up64
    want = torch.autograd.grad(out64, (gate64, up64), dout.double())
    assert_near(out, out64)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == dtype
        assert_near(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_composite_has_the_bits_of_native(dtype):
    gate = torch.randn(7, 65, dtype=dtype, requires_grad=True)
    up = torch.randn(7, 65, dtype=dtype, requires_grad=True)
    out, native = swiglu(gate, up, -1), F.silu(gate) * up
    dout = torch.randn_like(out)
    assert torch.equal(out, native)
    got = torch.autograd.grad(out, (gate, up), dout)
    want = torch.autograd.grad(native, (gate, up), dout)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_overflows_only_where_eager_does(handle_of, device):
    gate = torch.full((1, 8), 300.0, dtype=torch.float16, device=device)
    assert swiglu(gate, gate, handle_of("swiglu")).isinf().all()
    small = torch.full_like(gate, 200.0)
    assert torch.equal(swiglu(gate, small, handle_of("swiglu")), F.silu(gate) * small)


def test_packed_halves_and_expanded_gradients_need_no_contiguity(handle_of, device):
    packed = torch.randn(4, 6, 128, device=device)
    halves = packed.chunk(2, -1)
    transposed = [torch.randn(4, 64, 6, device=device).transpose(1, 2) for _ in range(2)]
    for gate, up in (halves, transposed):
        gate, up = gate.detach().requires_grad_(), up.detach().requires_grad_()
        got = torch.autograd.grad(swiglu(gate, up, handle_of("swiglu")).sum(), (gate, up))
        want = torch.autograd.grad((F.silu(gate) * up).sum(), (gate, up))
        torch.testing.assert_close(got, want)


def test_dtypes_may_differ_as_in_eager(handle_of, device):
    gate = torch.randn(3, 8, device=device, requires_grad=True)
    up = torch.randn(3, 8, device=device, dtype=torch.bfloat16, requires_grad=True)
    out = swiglu(gate, up, handle_of("swiglu"))
    native = F.silu(gate) * up
    assert out.dtype == native.dtype
    torch.testing.assert_close(out, native)
    got = torch.autograd.grad(out.sum(), (gate, up))
    want = torch.autograd.grad(native.sum(), (gate, up))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("rounding", [False, True])
def test_float64_passes_gradcheck(handle_of, rounding):
    gate = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    up = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)

    def product(a, b):
        return swiglu(a, b, handle_of("swiglu"), rounding)

    assert torch.autograd.gradcheck(product, (gate, up))


def test_errors_name_the_field_and_both_values():
    with pytest.raises(RuntimeError, match=r"gate has shape \[2, 8\] but up has shape \[2, 7\]"):
        swiglu(torch.randn(2, 8), torch.randn(2, 7), -1)
    with pytest.raises(RuntimeError, match="up has dtype Int"):
        swiglu(torch.randn(2, 8), torch.ones(2, 8, dtype=torch.int32), -1)


def test_second_derivative_raises_with_the_operators_name():
    gate, up = torch.randn(2, 8, requires_grad=True), torch.randn(2, 8)
    (dgate,) = torch.autograd.grad(swiglu(gate, up, -1).sum(), gate, create_graph=True)
    with pytest.raises(RuntimeError, match="swiglu_backward"):
        dgate.sum().backward()
