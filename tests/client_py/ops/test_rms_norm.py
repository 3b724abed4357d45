"""fuseboard::rms_norm against float64, and against the models' own code."""

import pytest
import torch

from tests.client_py.ops.reference import (
    GEMMA,
    LLAMA,
    NONE_CASTING,
    assert_near,
    call_rms_norm,
    exact_rms_norm,
    llama_rms_norm,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def gradients(y, inputs, dy):
    return torch.autograd.grad(y, [t for t in inputs if t is not None and t.requires_grad], dy)


def double_of(tensor):
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


# 1 row; a width that no vector divides; wider than one block; 0 rows; rank 1 and 4.
SHAPES = [(1, 8), (5, 37), (3, 4097), (0, 16), (16,), (2, 3, 4, 32)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("casting, offset", [(LLAMA, 0.0), (GEMMA, 1.0), (NONE_CASTING, 0.0)])
def test_values_and_gradients_equal_float64(handle_of, device, dtype, shape, casting, offset):
    x = torch.randn(shape, dtype=dtype, device=device, requires_grad=True)
    weight = torch.randn(shape[-1], dtype=dtype, device=device, requires_grad=True)
    y = call_rms_norm(x, weight, offset=offset, casting=casting, kernel=handle_of("rms_norm"))
    dy = torch.randn_like(y)
    dx, dweight = gradients(y, (x, weight), dy)
    x64, weight64 = double_of(x), double_of(weight)
    y64 = exact_rms_norm(x64, weight64, offset=offset)
    want_dx, want_dweight = gradients(y64, (x64, weight64), dy.double())
    assert y.dtype == dx.dtype == dweight.dtype == dtype
    assert_near(y, y64)
    assert_near(dx, want_dx)
    assert_near(dweight, want_dweight)


@pytest.mark.parametrize("dtype", DTYPES)
def test_composite_has_the_bits_of_llama(dtype):
    x = torch.randn(7, 65, dtype=dtype) * 3
    weight = torch.randn(65, dtype=dtype)
    assert torch.equal(call_rms_norm(x, weight), llama_rms_norm(x, weight))


@pytest.mark.parametrize("x_dtype, weight_dtype", [(torch.bfloat16, torch.float32)])
@pytest.mark.parametrize("casting", [LLAMA, GEMMA, NONE_CASTING])
def test_output_dtype_is_the_promotion_for_llama_and_x_otherwise(
    handle_of, device, x_dtype, weight_dtype, casting
):
    x = torch.randn(4, 32, dtype=x_dtype, device=device, requires_grad=True)
    weight = torch.randn(32, dtype=weight_dtype, device=device, requires_grad=True)
    y = call_rms_norm(x, weight, casting=casting, kernel=handle_of("rms_norm"))
    assert y.dtype == (weight_dtype if casting == LLAMA else x_dtype)
    dx, dweight = gradients(y, (x, weight), torch.ones_like(y))
    assert (dx.dtype, dweight.dtype) == (x_dtype, weight_dtype)
    assert_near(y, exact_rms_norm(x.double(), weight.double()), x_dtype)


def test_offset_is_added_in_fp32(handle_of, device):
    # bf16(2^-8) + 1 in bf16 is exactly 1: the scale would be lost.
    x = torch.ones(1, 8, dtype=torch.bfloat16, device=device)
    weight = torch.full((8,), 2.0**-8, dtype=torch.bfloat16, device=device)
    y = call_rms_norm(x, weight, 0.0, 1.0, GEMMA, handle_of("rms_norm"))
    assert torch.equal(y, torch.full_like(y, 1.00390625))
    x = torch.full_like(x, 128.0)
    y = call_rms_norm(x.float(), weight, 0.0, 1.0, GEMMA, handle_of("rms_norm"))
    assert torch.equal(y, torch.full_like(y, 1.00390625))


@pytest.mark.parametrize("value", [256.0, 60000.0])
def test_the_square_of_fp16_does_not_overflow(handle_of, device, value):
    x = torch.full((2, 4096), value, dtype=torch.float16, device=device)
    weight = torch.randn(4096, dtype=torch.float16, device=device)
    y = call_rms_norm(x, weight, kernel=handle_of("rms_norm"))
    torch.testing.assert_close(y, weight.expand_as(y), rtol=1e-3, atol=0)


def test_eps_does_not_depend_on_the_dtype(handle_of, device):
    x = (torch.randn(64, 32, device=device) * 0.058).bfloat16()
    y = call_rms_norm(x, None, 1e-6, casting=NONE_CASTING, kernel=handle_of("rms_norm"))
    assert_near(y, exact_rms_norm(x.double(), eps=1e-6))


def layouts(device):
    base = torch.randn(4, 6, 5, 64, device=device)
    yield "transposed", base.transpose(1, 2)
    yield "sliced columns", base[..., 16:48]
    yield "strided columns", base[..., ::2]
    yield "expanded rows", torch.randn(1, 1, 1, 64, device=device).expand(4, 6, 5, 64)
    yield "expanded batch", torch.randn(1, 6, 5, 64, device=device).expand(4, 6, 5, 64)
    yield "offset by one element", torch.randn(1 + 8 * 32, device=device)[1:].view(8, 32)


def test_any_strides_give_what_contiguous_gives(handle_of, device):
    for name, view in layouts(device):
        weight = torch.randn(view.shape[-1], device=device, requires_grad=True)
        results = []
        for x in (view.detach(), view.detach().contiguous()):
            x.requires_grad_()
            y = call_rms_norm(x, weight, kernel=handle_of("rms_norm"))
            results.append((y, *gradients(y.sum(), (x, weight), None)))  # Expanded upstream.
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6, msg=name)


def test_only_what_is_asked_for_is_computed(handle_of, device):
    x = torch.randn(4, 32, device=device, requires_grad=True)
    weight = torch.randn(32, device=device)
    y = call_rms_norm(x, weight, kernel=handle_of("rms_norm"))
    assert gradients(y, (x, weight), torch.ones_like(y))[0].shape == x.shape
    y = call_rms_norm(x.detach(), weight.requires_grad_(), kernel=handle_of("rms_norm"))
    assert gradients(y, (weight,), torch.ones_like(y))[0].shape == weight.shape
    assert not call_rms_norm(x.detach(), None, kernel=handle_of("rms_norm")).requires_grad
    with torch.inference_mode():
        assert not call_rms_norm(x, weight, kernel=handle_of("rms_norm")).requires_grad


@pytest.mark.parametrize("casting", [LLAMA, GEMMA, NONE_CASTING])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_float64_passes_gradcheck(handle_of, casting, offset):
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)

    def norm(a, b):
        return call_rms_norm(a, b, 1e-5, offset, casting, handle_of("rms_norm"))

    assert torch.autograd.gradcheck(norm, (x, weight))


def test_errors_name_the_field_and_both_values():
    x = torch.randn(2, 8)
    with pytest.raises(RuntimeError, match=r"weight.size\(0\) is 7 but x.size\(-1\) is 8"):
        call_rms_norm(x, torch.ones(7))
    with pytest.raises(RuntimeError, match="x has dtype Long"):
        call_rms_norm(x.long(), torch.ones(8))
    with pytest.raises(RuntimeError, match="casting is 3"):
        call_rms_norm(x, casting=3)


def test_second_derivative_raises_with_the_operators_name():
    x = torch.randn(2, 8, requires_grad=True)
    (dx,) = torch.autograd.grad(call_rms_norm(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="rms_norm_backward"):
        dx.sum().backward()


def test_forward_mode_raises():
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(torch.randn(2, 8), torch.randn(2, 8))
        with pytest.raises(NotImplementedError, match="forward-mode"):
            call_rms_norm(x.requires_grad_())


def test_a_freed_graph_and_a_changed_input_raise():
    x = torch.randn(2, 8, requires_grad=True)
    y = call_rms_norm(x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()
    a = x * 1
    y = call_rms_norm(a).sum()
    a.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_two_runs_have_the_same_bits(handle_of, device):
    x = torch.randn(300, 96, device=device, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(96, device=device, dtype=torch.bfloat16, requires_grad=True)
    runs = []
    for _ in range(2):
        y = call_rms_norm(x, weight, kernel=handle_of("rms_norm"))
        runs.append((y, *gradients(y, (x, weight), y.detach())))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
