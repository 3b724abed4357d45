"""fuseboard::geglu against float64, and against the models' own code."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client_py.ops.conftest import load
from tests.client_py.ops.reference import assert_near, examples

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FORMS = [True, False]
OPERATION = "geglu"


def geglu(gate, up, kernel, tanh=True, round_activation=True):
    return torch.ops.fuseboard.geglu(gate, up, tanh, round_activation, kernel)


def gelu(x, tanh):
    return F.gelu(x, approximate="tanh" if tanh else "none")


def exact_gelu(x, tanh):
    """In a form that keeps the digits of the lower tail."""
    if tanh:
        return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return x * torch.special.erfc(-x / math.sqrt(2)) / 2


def leaf(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(*shape, dtype=dtype, device=device, requires_grad=True)


def check_against_float64(gate, up, kernel, tanh, round_activation):
    out = geglu(gate, up, kernel, tanh, round_activation)
    dout = torch.randn_like(out)
    got = torch.autograd.grad(out, (gate, up), dout)
    gate64, up64 = (t.detach().double().requires_grad_() for t in (gate, up))
    out64 = exact_gelu(gate64, tanh) * up64
    want = torch.autograd.grad(out64, (gate64, up64), dout.double())
    assert_near(out, out64)
    for a, b, tensor in zip(got, want, (gate, up), strict=True):
        assert a.dtype == tensor.dtype
        assert_near(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (5, 37), (3, 1025), (0, 16), (16,), (2, 3, 4, 32)])
@pytest.mark.parametrize("tanh", FORMS)
@pytest.mark.parametrize("round_activation", [False, True])
def test_values_and_gradients_equal_float64(
    handle_of, device, dtype, shape, tanh, round_activation
):
    gate, up = (leaf(*shape, dtype=dtype, device=device) for _ in range(2))
    check_against_float64(gate, up, handle_of(OPERATION), tanh, round_activation)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tanh", FORMS)
def test_composite_has_the_bits_of_native(dtype, tanh):
    gate, up = leaf(7, 65, dtype=dtype), leaf(7, 65, dtype=dtype)
    out, native = geglu(gate, up, -1, tanh), gelu(gate, tanh) * up
    dout = torch.randn_like(out)
    assert torch.equal(out, native)
    got = torch.autograd.grad(out, (gate, up), dout)
    want = torch.autograd.grad(native, (gate, up), dout)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_the_two_forms_are_told(handle_of, device):
    gate = torch.full((1, 8), -2.7, device=device)
    for tanh in FORMS:
        got = geglu(gate, torch.ones_like(gate), handle_of(OPERATION), tanh)
        torch.testing.assert_close(got, gelu(gate, tanh), rtol=0, atol=1e-6)


@pytest.mark.parametrize("tanh", FORMS)
def test_kernel_rounds_as_native_does(device, tanh):
    """Of bf16 results, all but the few whose activation lies near a tie have native's bits."""
    gate, up = (torch.randn(64, 1000, device=device).bfloat16() for _ in range(2))
    got, native = geglu(gate, up, load(OPERATION), tanh), gelu(gate, tanh) * up
    assert (got != native).float().mean() < 0.01


def test_packed_halves_and_expanded_gradients_need_no_contiguity(handle_of, device):
    halves = torch.randn(4, 6, 128, device=device).chunk(2, -1)
    transposed = [torch.randn(4, 64, 6, device=device).transpose(1, 2) for _ in range(2)]
    for gate, up in (halves, transposed):
        gate, up = gate.detach().requires_grad_(), up.detach().requires_grad_()
        got = torch.autograd.grad(geglu(gate, up, handle_of(OPERATION)).sum(), (gate, up))
        want = torch.autograd.grad((gelu(gate, True) * up).sum(), (gate, up))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tanh", FORMS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_one_packed_tensor_equals_two(handle_of, device, dtype, tanh, interleaved):
    gate_up = leaf(5, 74, dtype=dtype, device=device)
    kernel = handle_of(OPERATION)
    out = torch.ops.fuseboard.geglu_packed(gate_up, interleaved, tanh, True, kernel)
    if interleaved:  # No kernel takes it.
        kernel = -1
    gate, up = (gate_up[..., ::2], gate_up[..., 1::2]) if interleaved else gate_up.chunk(2, -1)
    want = geglu(gate, up, kernel, tanh)
    assert torch.equal(out, want)
    dout = torch.randn_like(out)
    (got,) = torch.autograd.grad(out, gate_up, dout)
    assert torch.equal(got, torch.autograd.grad(want, gate_up, dout)[0])


def test_dtypes_may_differ_as_in_eager(handle_of, device):
    gate, up = leaf(3, 8, device=device), leaf(3, 8, dtype=torch.bfloat16, device=device)
    out, native = geglu(gate, up, handle_of(OPERATION)), gelu(gate, True) * up
    assert out.dtype == native.dtype
    torch.testing.assert_close(out, native)
    got = torch.autograd.grad(out.sum(), (gate, up))
    want = torch.autograd.grad(native.sum(), (gate, up))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("tanh", FORMS)
@pytest.mark.parametrize("rounding", [False, True])
def test_float64_passes_gradcheck(handle_of, tanh, rounding):
    inputs = tuple(leaf(3, 5, dtype=torch.float64) for _ in range(2))
    assert torch.autograd.gradcheck(
        lambda a, b: geglu(a, b, handle_of(OPERATION), tanh, rounding), inputs
    )


@settings(max_examples=examples(40), deadline=None)
@given(
    rows=st.integers(0, 5),
    cols=st.integers(1, 70),
    dtype=st.sampled_from(DTYPES),
    tanh=st.booleans(),
    rounding=st.booleans(),
    step=st.integers(1, 2),
    skip=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_any_view_of_any_shape(rows, cols, dtype, tanh, rounding, step, skip, seed):
    torch.manual_seed(seed)
    gate, up = torch.randn(2, rows, cols * step + skip, dtype=dtype)[..., skip::step] * 4
    check_against_float64(
        gate.requires_grad_(), up.requires_grad_(), load(OPERATION), tanh, rounding
    )


def test_errors_name_the_field_and_both_values():
    with pytest.raises(RuntimeError, match=r"gate has shape \[2, 8\] but up has shape \[2, 7\]"):
        geglu(torch.randn(2, 8), torch.randn(2, 7), -1)
    with pytest.raises(RuntimeError, match="geglu: up has dtype Int"):
        geglu(torch.randn(2, 8), torch.ones(2, 8, dtype=torch.int32), -1)


def test_second_derivative_raises_with_the_operators_name():
    gate, up = leaf(2, 8), torch.randn(2, 8)
    (dgate,) = torch.autograd.grad(geglu(gate, up, -1).sum(), gate, create_graph=True)
    with pytest.raises(RuntimeError, match="geglu_backward"):
        dgate.sum().backward()


def test_opcheck_is_clean(handle_of, device):
    for dtype in (torch.float32, torch.bfloat16):
        inputs = [leaf(2, 3, 8, dtype=dtype, device=device) for _ in range(2)]
        operator = torch.ops.fuseboard.geglu.default
        torch.library.opcheck(operator, (*inputs, True, True, handle_of(OPERATION)))
        operator = torch.ops.fuseboard.geglu_packed.default
        torch.library.opcheck(operator, (inputs[0], False, True, True, handle_of(OPERATION)))


def test_compiles_without_a_graph_break(device):
    torch._dynamo.reset()
    kernel = load(OPERATION)

    def step(gate, up):
        return geglu(gate * 2, up, kernel).square().sum()

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (4, 9):
        inputs = [leaf(rows, 8, device=device) for _ in range(2)]
        got = torch.autograd.grad(compiled(*inputs), inputs)
        torch.testing.assert_close(got, torch.autograd.grad(step(*inputs), inputs))


def test_compiled_autograd_traces_the_node():
    torch._dynamo.reset()
    inputs = [leaf(4, 8) for _ in range(2)]
    want = torch.autograd.grad(geglu(*inputs, -1).sum(), inputs)
    loss = geglu(*inputs, -1).sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        loss.backward()
    torch.testing.assert_close([t.grad for t in inputs], list(want))
