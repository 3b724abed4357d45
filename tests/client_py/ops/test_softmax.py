"""fuseboard::softmax against float64 and against torch."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client_py.ops.conftest import load
from tests.client_py.ops.reference import assert_near, examples

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ops = torch.ops.fuseboard


def compare(x, kernel):
    """Value and gradient against float64 on the same input."""
    before = x.detach().clone()
    y = ops.softmax(x, kernel)
    dy = torch.randn_like(y)
    (got,) = torch.autograd.grad(y, x, dy)
    x64 = x.detach().double().requires_grad_()
    y64 = F.softmax(x64, -1)
    assert y.dtype == got.dtype == x.dtype
    assert_near(y, y64)
    # As torch, the backward starts from the rounded y.
    y64 = y.detach().double()
    dot = (y64 * dy.double()).sum(-1, keepdim=True)
    assert_near(got, y64 * (dy.double() - dot))
    assert torch.equal(x.detach(), before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [(1, 1), (5, 37), (3, 1025), (0, 16), (4, 0), (16,), (2, 3, 4, 32), (2, 50257), (1, 262144)],
)
def test_values_and_gradients_equal_float64(handle_of, device, dtype, shape):
    x = torch.randn(shape, dtype=dtype, device=device).mul_(3).requires_grad_()
    compare(x, handle_of("softmax"))


@settings(max_examples=examples(100), deadline=None)
@given(
    rows=st.integers(0, 9),
    cols=st.integers(0, 70),
    step=st.integers(1, 2),
    offset=st.integers(0, 3),
    scale=st.sampled_from([0.0, 1.0, 50.0]),
    dtype=st.sampled_from(DTYPES),
    use_kernel=st.booleans(),
)
def test_any_shape_and_layout_equals_float64(rows, cols, step, offset, scale, dtype, use_kernel):
    base = torch.randn(rows * step, cols + offset).mul(scale).to(dtype)
    x = base[::step, offset:].detach().requires_grad_()
    compare(x, load("softmax") if use_kernel else -1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_rows_are_as_in_torch(handle_of, device, dtype):
    lowest = torch.finfo(dtype).min
    x = torch.randn(5, 70, dtype=dtype, device=device)
    x[0] = lowest
    x[1, 3:] = -math.inf
    x[2, ::2] = lowest
    x[3] = -math.inf
    x[4, 5] = math.nan
    y = ops.softmax(x, handle_of("softmax"))
    want = F.softmax(x, -1)
    torch.testing.assert_close(y, want, equal_nan=True)
    assert torch.equal(y == 0, want == 0)


def test_no_layout_is_written_to_or_refused(handle_of, device):
    kernel = handle_of("softmax")
    transposed = torch.randn(4, 64, 6, device=device).transpose(1, 2)
    expanded = torch.randn(1, 64, device=device).expand(7, 64)
    sliced = torch.randn(4, 6, 128, device=device)[..., 3:90]
    for x in (transposed, expanded, sliced):
        x = x.detach().requires_grad_()
        y = ops.softmax(x, kernel)
        native = F.softmax(x, -1)
        torch.testing.assert_close(y, native)
        for dy in (torch.ones((), device=device).expand_as(y), torch.randn_like(y)):
            got = torch.autograd.grad(y, x, dy, retain_graph=True)
            want = torch.autograd.grad(native, x, dy, retain_graph=True)
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_composite_has_the_bits_of_native(dtype):
    x = torch.randn(7, 65, dtype=dtype, requires_grad=True)
    y, native = ops.softmax(x, -1), F.softmax(x, -1)
    dy = torch.randn_like(y)
    assert torch.equal(y, native)
    got, want = torch.autograd.grad(y, x, dy), torch.autograd.grad(native, x, dy)
    assert torch.equal(got[0], want[0])


# Root mean square over seeds, against 1.05 of torch's on the same device.
@pytest.mark.parametrize("dtype", DTYPES)
def test_error_is_no_larger_than_native(device, dtype):
    kernel, errors = load("softmax"), {"ours": 0.0, "native": 0.0}
    for _ in range(8):
        x = torch.randn(16, 1500, dtype=dtype, device=device).mul_(3)
        want = F.softmax(x.double(), -1)
        for name, y in (("ours", ops.softmax(x, kernel)), ("native", F.softmax(x, -1))):
            errors[name] += ((y.double() - want) / want.abs().clamp(min=1e-4)).square().sum().item()
    assert math.sqrt(errors["ours"]) <= 1.05 * math.sqrt(errors["native"])


def test_float64_passes_gradcheck(handle_of):
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: ops.softmax(a, handle_of("softmax")), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_opcheck_is_clean(handle_of, device, dtype):
    x = torch.randn(2, 3, 8, dtype=dtype, device=device, requires_grad=True)
    torch.library.opcheck(ops.softmax.default, (x, handle_of("softmax")))


def test_compiles_without_a_graph_break(device):
    torch._dynamo.reset()
    kernel = load("softmax")

    def loss(x):
        return (ops.softmax(x * 2, kernel) * x).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=False)
    for rows in (4, 5):
        x = torch.randn(rows, 13, device=device, requires_grad=True)
        got, want = compiled(x), loss(x)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(torch.autograd.grad(got, x), torch.autograd.grad(want, x))


def test_compiled_autograd_traces_the_node():
    torch._dynamo.reset()
    x = torch.randn(4, 13, requires_grad=True)
    (want,) = torch.autograd.grad(ops.softmax(x, -1).square().sum(), x)
    value = ops.softmax(x, -1).square().sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        value.backward()
    torch.testing.assert_close(x.grad, want)


def test_errors_name_the_field_and_its_value():
    with pytest.raises(RuntimeError, match="x has dtype Int"):
        ops.softmax(torch.ones(2, 8, dtype=torch.int32), -1)
    with pytest.raises(RuntimeError, match="x has 0 dimensions, want at least 1"):
        ops.softmax(torch.ones(()), -1)


def test_a_result_that_was_overwritten_refuses_the_backward():
    x = torch.randn(2, 8, requires_grad=True)
    y = ops.softmax(x, -1)
    y.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_second_derivative_raises_with_the_operators_name():
    x = torch.randn(2, 8, requires_grad=True)
    (dx,) = torch.autograd.grad(ops.softmax(x, -1).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="softmax_backward"):
        dx.sum().backward()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [1000, 16384, 65536, 151936, 262144])
def test_wide_rows_on_a_device(dtype, cols):
    x = torch.randn(3, cols, dtype=dtype, device="cuda").mul_(3).requires_grad_()
    compare(x, load("softmax"))


@pytest.mark.gpu
def test_a_captured_graph_gives_what_eager_gives_for_new_data():
    kernel = load("softmax")
    x = torch.randn(8, 1000, device="cuda", requires_grad=True)

    def run():
        y = ops.softmax(x, kernel)
        return y.detach(), *torch.autograd.grad(y.square().sum(), x)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    for _ in range(2):
        x.data.normal_()
        graph.replay()
        torch.testing.assert_close(captured, run())
