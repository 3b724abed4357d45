"""fuseboard::group_norm against float64 and F.group_norm."""

import json

import pytest
import torch
import torch.nn.functional as F

from tests.client_py.ops.conftest import load
from tests.client_py.ops.reference import assert_near

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
OPERATION = "group_norm"
# x, groups: rank 2 to 5; one group; channels that are groups; odd spatial sizes; no examples.
SHAPES = [
    ((5, 24), 4),
    ((2, 6, 5), 2),
    ((2, 6, 4, 5), 3),
    ((1, 48, 32, 32), 16),
    ((2, 8, 3, 4, 8), 1),
    ((3, 16, 8, 8), 16),
    ((2, 8, 7, 7), 2),
    ((0, 4, 8), 2),
]


def call(x, num_groups, weight=None, bias=None, eps=1e-5, kernel=-1):
    return torch.ops.fuseboard.group_norm(x, num_groups, weight, bias, eps, kernel)


def inputs_of(shape, dtype, device):
    return tuple(
        torch.randn(size, dtype=dtype, device=device, requires_grad=True)
        for size in (shape, shape[1:2], shape[1:2])
    )


def doubles_of(inputs):
    return [t.detach().double().requires_grad_() for t in inputs]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "groups"), SHAPES)
def test_values_and_gradients_equal_float64(handle_of, device, dtype, shape, groups):
    inputs = inputs_of(shape, dtype, device)
    y = call(inputs[0], groups, *inputs[1:], kernel=handle_of(OPERATION))
    dy = torch.randn_like(y)
    got = torch.autograd.grad(y, inputs, dy)
    exact = doubles_of(inputs)
    y64 = F.group_norm(exact[0], groups, *exact[1:], 1e-5)
    want = torch.autograd.grad(y64, exact, dy.double())
    assert y.dtype == dtype
    assert_near(y, y64)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == dtype
        assert_near(a, b)


@pytest.mark.parametrize("has_weight", [True, False])
@pytest.mark.parametrize("has_bias", [True, False])
def test_weight_and_bias_may_be_missing(handle_of, device, has_weight, has_bias):
    x, weight, bias = inputs_of((3, 8, 40), torch.float32, device)
    given = [weight if has_weight else None, bias if has_bias else None]
    y = call(x, 4, *given, kernel=handle_of(OPERATION))
    # Torch 2.11's own backward fails on the CPU with a bias and no weight.
    want = F.group_norm(x, 4, weight if has_weight else torch.ones_like(weight), given[1], 1e-5)
    torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5)
    wanted = [x, *(t for t in given if t is not None)]
    got = torch.autograd.grad(y.square().sum(), wanted)
    for a, b in zip(got, torch.autograd.grad(want.square().sum(), wanted), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_the_statistics_equal_float64(handle_of, device):
    x = torch.randn(2, 6, 9, 5, device=device) * 3 + 7
    _, mean, rstd = torch.ops.fuseboard.group_norm_forward(
        x, 3, None, None, 1e-5, handle_of(OPERATION)
    )
    groups = x.double().reshape(2, 3, -1)
    assert_near(mean, groups.mean(-1))
    assert_near(rstd, (groups.var(-1, unbiased=False) + 1e-5).rsqrt())


@pytest.mark.parametrize("elements", [1024, 1001])
def test_a_large_mean_loses_no_digits(handle_of, device, elements):
    x = torch.randn(4, 2, elements, device=device) + 1000
    y = call(x, 2, kernel=handle_of(OPERATION))
    torch.testing.assert_close(y.double(), F.group_norm(x.double(), 2), rtol=0, atol=5e-4)


def test_parameters_of_another_dtype(handle_of, device):
    x = torch.randn(4, 8, 16, dtype=torch.bfloat16, device=device, requires_grad=True)
    weight, bias = (torch.randn(8, device=device, requires_grad=True) for _ in range(2))
    y = call(x, 2, weight, bias, kernel=handle_of(OPERATION))
    gradients = torch.autograd.grad(y.sum(), (x, weight, bias))
    assert y.dtype == torch.bfloat16
    assert [g.dtype for g in gradients] == [torch.bfloat16, torch.float32, torch.float32]


def test_any_strides_give_what_contiguous_gives(handle_of, device):
    base = torch.randn(4, 8, 6, 10, device=device)
    views = [
        base.to(memory_format=torch.channels_last),
        base.transpose(0, 1),
        base[..., ::2],
        base[:, :, :, 1:],
        base[:1].expand(4, 8, 6, 10),
        base.flatten()[3 : 3 + 4 * 8 * 30].view(4, 8, 30),  # An unaligned base.
    ]
    for view in views:
        weight = torch.randn(view.shape[1], device=device, requires_grad=True)
        results = []
        for x in (view.detach(), view.detach().clone(memory_format=torch.contiguous_format)):
            x.requires_grad_()
            y = call(x, 2, weight, kernel=handle_of(OPERATION))
            assert y.is_contiguous()
            results.append((y, *torch.autograd.grad(y.sum(), (x, weight))))  # Expanded upstream.
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_a_channels_last_gradient_gives_what_a_contiguous_one_gives(handle_of, device):
    x = torch.randn(2, 8, 6, 10, device=device, requires_grad=True)
    y = call(x, 4, kernel=handle_of(OPERATION))
    dy = torch.randn_like(y)
    (want,) = torch.autograd.grad(y, x, dy, retain_graph=True)
    (got,) = torch.autograd.grad(y, x, dy.to(memory_format=torch.channels_last))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_channels_without_elements_give_nothing(handle_of, device):
    x, weight, bias = inputs_of((2, 4, 0), torch.float32, device)
    y = call(x, 2, weight, bias, kernel=handle_of(OPERATION))
    dx, dweight, dbias = torch.autograd.grad(y.sum(), (x, weight, bias))
    assert y.shape == dx.shape == x.shape
    assert not dweight.any() and not dbias.any()


def test_only_what_is_asked_for_is_computed(handle_of, device):
    x, weight, bias = inputs_of((2, 4, 32), torch.float32, device)
    kernel = handle_of(OPERATION)
    y = call(x.detach(), 2, weight.detach(), bias, kernel=kernel)
    (dbias,) = torch.autograd.grad(y, (bias,), torch.ones_like(y))
    torch.testing.assert_close(dbias, torch.full_like(dbias, 64.0))
    y = call(x, 2, weight.detach(), bias.detach(), kernel=kernel)
    assert torch.autograd.grad(y.square().sum(), (x,))[0].shape == x.shape
    with torch.inference_mode():
        assert not call(x, 2, weight, bias, kernel=kernel).requires_grad


def test_float64_passes_gradcheck(handle_of):
    inputs = inputs_of((2, 4, 5), torch.float64, "cpu")
    kernel = handle_of(OPERATION)
    assert torch.autograd.gradcheck(lambda x, w, b: call(x, 2, w, b, kernel=kernel), inputs)


@pytest.mark.gpu
def test_autocast_runs_in_float32(handle_of):
    x = torch.randn(2, 8, 16, dtype=torch.bfloat16, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        y = call(x, 4, kernel=handle_of(OPERATION))
        assert y.dtype == F.group_norm(x, 4).dtype == torch.float32


def test_errors_name_the_field_and_both_values(handle_of):
    x = torch.randn(2, 6, 5)
    kernel = handle_of(OPERATION)
    with pytest.raises(RuntimeError, match=r"x.size\(1\) is 6, want a multiple of num_groups, 4"):
        call(x, 4, kernel=kernel)
    with pytest.raises(RuntimeError, match="num_groups is 0, want at least 1"):
        call(x, 0, kernel=kernel)
    with pytest.raises(RuntimeError, match=r"bias is 7 but x.size\(1\) is 6"):
        call(x, 2, None, torch.ones(7), kernel=kernel)
    with pytest.raises(RuntimeError, match="x has 1 dimensions, want at least 2"):
        call(x[0, 0], 1, kernel=kernel)
    with pytest.raises(RuntimeError, match="x has dtype Long"):
        call(x.long(), 2, kernel=kernel)
    with pytest.raises(RuntimeError, match="eps is -1"):
        call(x, 2, eps=-1.0, kernel=kernel)


def test_second_derivative_raises_with_the_operators_name():
    x = torch.randn(2, 4, 8, requires_grad=True)
    (dx,) = torch.autograd.grad(call(x, 2).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="group_norm_backward"):
        dx.sum().backward()


def test_opcheck_is_clean(handle_of):
    kernel = handle_of(OPERATION)
    for shape in ((2, 8, 4, 8), (2, 8, 3, 3)):
        inputs = inputs_of(shape, torch.float32, "cpu")
        arguments = (inputs[0], 4, *inputs[1:], 1e-5, kernel)
        torch.library.opcheck(torch.ops.fuseboard.group_norm.default, arguments)


def test_compiles_without_a_graph_break():
    torch._dynamo.reset()
    kernel = load(OPERATION)

    def step(x, weight, bias):
        return call(x, 4, weight, bias, kernel=kernel).square().sum()

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for shape in ((2, 8, 32), (3, 8, 21)):
        inputs = inputs_of(shape, torch.float32, "cpu")
        got = torch.autograd.grad(compiled(*inputs), inputs)
        for a, b in zip(got, torch.autograd.grad(step(*inputs), inputs), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shape", [(3, 64, 16, 16), (3, 64, 15, 15), (1, 4, 400, 401)])
def test_two_runs_have_the_same_bits(handle_of, device, shape):
    inputs = inputs_of(shape, torch.bfloat16, device)
    runs = []
    for _ in range(2):
        y = call(inputs[0], 4, *inputs[1:], kernel=handle_of(OPERATION))
        runs.append((y, *torch.autograd.grad(y, inputs, y.detach())))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((2, 320, 64, 64), 32),
        ((2, 640, 32, 32), 32),
        ((2, 1280, 8, 8), 32),
        ((4, 512, 64, 64), 32),
        ((1, 128, 256, 256), 32),
        ((1, 8, 1024, 1024), 4),
        ((8, 64, 14, 14), 64),
    ],
)
def test_image_models_shapes_equal_float64(dtype, shape, groups):
    test_values_and_gradients_equal_float64(lambda _: load(OPERATION), "cuda", dtype, shape, groups)


def test_a_kernel_runs_for_any_strides_and_no_examples(device):
    base = torch.randn(4, 8, 6, 10, device=device)
    fused = json.loads(torch.ops.fuseboard.counters())[OPERATION]["fused"]
    for x in (base, base.to(memory_format=torch.channels_last), base[..., 1:], base[:0]):
        call(x, 4, kernel=load(OPERATION))
    assert json.loads(torch.ops.fuseboard.counters())[OPERATION]["fused"] == fused + 4
