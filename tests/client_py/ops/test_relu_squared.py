"""fuseboard::relu_squared against float64, and against the models' own code, bit for bit."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client_py.ops.conftest import load
from tests.client_py.ops.reference import assert_near, examples

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
OPERATION = "relu_squared"


def call(x, kernel):
    return torch.ops.fuseboard.relu_squared(x, kernel)


def native(x):
    """transformers' ReLUSquaredActivation.forward."""
    return torch.square(F.relu(x))


def leaf(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(*shape, dtype=dtype, device=device, requires_grad=True)


def check_bits_of_native(x, kernel):
    results = []
    for function in (lambda t: call(t, kernel), native):
        y = function(x)
        dy = torch.linspace(-2, 2, y.numel(), device=y.device, dtype=y.dtype).reshape(y.shape)
        results.append((y, *torch.autograd.grad(y, x, dy)))
    for a, b in zip(*results, strict=True):
        assert a.dtype == x.dtype
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (5, 37), (3, 1025), (0, 16), (16,), (2, 3, 4, 32)])
def test_values_and_gradients(handle_of, device, dtype, shape):
    x = leaf(*shape, dtype=dtype, device=device)
    check_bits_of_native(x, handle_of(OPERATION))
    y = call(x, handle_of(OPERATION))
    assert_near(y, native(x.double()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_are_those_of_native(handle_of, device, dtype):
    values = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 300.0, -2.0, 2.0]
    x = torch.tensor(values, dtype=dtype, device=device, requires_grad=True)
    dy = torch.full_like(x, float("inf"))
    results = []
    for function in (lambda t: call(t, handle_of(OPERATION)), native):
        y = function(x)
        results.append((y, *torch.autograd.grad(y, x, dy)))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a.nan_to_num(7, 8, 9), b.nan_to_num(7, 8, 9))


def test_any_strides_and_expanded_gradients(handle_of, device):
    base = torch.randn(4, 6, 5, 64, device=device)
    views = [base.transpose(1, 2), base[..., 16:48], base[..., ::2], base[:1].expand(4, 6, 5, 64)]
    for view in views:
        x = view.detach().requires_grad_()
        got = torch.autograd.grad(call(x, handle_of(OPERATION)).sum(), x)
        assert torch.equal(got[0], torch.autograd.grad(native(x).sum(), x)[0])


@settings(max_examples=examples(40), deadline=None)
@given(
    rows=st.integers(0, 5),
    cols=st.integers(1, 70),
    dtype=st.sampled_from(DTYPES),
    step=st.integers(1, 2),
    skip=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_any_view_of_any_shape(rows, cols, dtype, step, skip, seed):
    torch.manual_seed(seed)
    x = torch.randn(rows, cols * step + skip, dtype=dtype)[..., skip::step] * 4
    check_bits_of_native(x.requires_grad_(), load(OPERATION))


def test_float64_passes_gradcheck(handle_of):
    x = leaf(3, 5, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda t: call(t, handle_of(OPERATION)), x)


def test_errors_name_the_field():
    with pytest.raises(RuntimeError, match="relu_squared: x has dtype Int"):
        call(torch.ones(2, 8, dtype=torch.int32), -1)
    with pytest.raises(RuntimeError, match="relu_squared: x has 0 dimensions"):
        call(torch.tensor(1.0), -1)


def test_second_derivative_raises_with_the_operators_name():
    x = leaf(2, 8)
    (dx,) = torch.autograd.grad(call(x, -1).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="relu_squared_backward"):
        dx.sum().backward()


def test_opcheck_is_clean(handle_of, device):
    operator = torch.ops.fuseboard.relu_squared.default
    for dtype in (torch.float32, torch.bfloat16):
        x = leaf(2, 3, 8, dtype=dtype, device=device)
        torch.library.opcheck(operator, (x, handle_of(OPERATION)))


def test_compiles_without_a_graph_break(device):
    torch._dynamo.reset()
    kernel = load(OPERATION)

    def step(x):
        return call(x * 2, kernel).sum()

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (4, 9):
        x = leaf(rows, 8, device=device)
        got = torch.autograd.grad(compiled(x), x)
        torch.testing.assert_close(got, torch.autograd.grad(step(x), x))
