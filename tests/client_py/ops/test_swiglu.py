"""fuseboard::swiglu against float64, and against the models' own code."""

import json

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client_py.ops.conftest import load
from tests.client_py.ops.reference import assert_near, examples

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def swiglu(gate, up, kernel, round_activation=True, **options):
    return torch.ops.fuseboard.swiglu(gate, up, round_activation, kernel, **options)


def packed(gate_up, kernel, interleaved=False, round_activation=True, **options):
    return torch.ops.fuseboard.swiglu_packed(
        gate_up, interleaved, round_activation, kernel, **options
    )


def parts(gate_up, interleaved):
    return (gate_up[..., ::2], gate_up[..., 1::2]) if interleaved else gate_up.chunk(2, -1)


def falcon_h1(gate, up, gate_multiplier=0.375):
    """transformers' FalconH1MLP.forward without its projections."""
    return up * F.silu(gate * gate_multiplier)


def gpt_oss(gate, up, limit=1.5, alpha=1.702):
    """transformers' GptOssExperts._apply_gate, with a limit that many values are beyond."""
    gate = gate.clamp(min=None, max=limit)
    up = up.clamp(min=-limit, max=limit)
    glu = gate * torch.sigmoid(gate * alpha)
    return (up + 1) * glu


def deepseek_v4(gate, up, limit=1.5):
    """transformers' DeepseekV4 MLP without its projections."""
    return F.silu(gate.clamp(max=limit)) * up.clamp(min=-limit, max=limit)


def multiplied(gate, up):
    return F.silu(gate) * up * -2.5


# A model's own code and the options that stand for it.
MODELS = {
    "plain": (lambda gate, up: F.silu(gate) * up, {}),
    "falcon_h1": (falcon_h1, {"gate_multiplier": 0.375}),
    "gpt_oss": (gpt_oss, {"limit": 1.5, "alpha": 1.702, "up_offset": 1.0}),
    "deepseek_v4": (deepseek_v4, {"limit": 1.5}),
    "multiplied": (multiplied, {"out_multiplier": -2.5}),
}


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("round_activation", [False, True])
def test_options_equal_float64(handle_of, device, dtype, model, round_activation):
    native, options = MODELS[model]
    gate, up = (
        torch.randn(5, 69, dtype=dtype, device=device, requires_grad=True) for _ in range(2)
    )
    out = swiglu(gate, up, handle_of("swiglu"), round_activation, **options)
    dout = torch.randn_like(out)
    got = torch.autograd.grad(out, (gate, up), dout)
    gate64, up64 = (t.detach().double().requires_grad_() for t in (gate, up))
    out64 = native(gate64, up64)
    want = torch.autograd.grad(out64, (gate64, up64), dout.double())
    assert_near(out, out64)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == dtype
        assert_near(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", MODELS)
def test_composite_has_the_bits_of_the_models(dtype, model):
    native, options = MODELS[model]
    gate, up = (torch.randn(7, 65, dtype=dtype, requires_grad=True) for _ in range(2))
    out, want_out = swiglu(gate, up, -1, **options), native(gate, up)
    dout = torch.randn_like(out)
    assert torch.equal(out, want_out)
    got = torch.autograd.grad(out, (gate, up), dout)
    want = torch.autograd.grad(want_out, (gate, up), dout)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model", ["plain", "gpt_oss", "deepseek_v4"])
def test_nan_infinity_and_bounds_pass_the_limits_as_through_clamp(handle_of, device, dtype, model):
    """All pairs of what is on a bound, inside, outside, infinite or no number."""
    native, options = MODELS[model]
    values = [float("nan"), float("inf"), -float("inf"), 1.5, -1.5, 1.625, -1.625, 0.5, 0.0]
    pairs = torch.tensor(values, dtype=dtype, device=device)
    gate, up = (t.flatten().clone().requires_grad_() for t in torch.meshgrid(pairs, pairs, indexing="ij"))  # fmt: skip
    out, want_out = swiglu(gate, up, handle_of("swiglu"), **options), native(gate, up)
    tolerance = {"rtol": 3e-2, "atol": 1e-6} if dtype != torch.float32 else {}
    torch.testing.assert_close(out, want_out, equal_nan=True, **tolerance)
    dout = torch.ones_like(out)
    got = torch.autograd.grad(out, (gate, up), dout)
    want = torch.autograd.grad(want_out, (gate, up), dout)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, **tolerance)


def test_limits_are_checked():
    x = torch.randn(2, 8)
    with pytest.raises(RuntimeError, match="swiglu: limit is -1, want a finite number, at least 0"):
        swiglu(x, x, -1, limit=-1.0)


# ---- swiglu_packed ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2), (5, 74), (3, 2050), (0, 16), (16,), (2, 3, 4, 32)])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("model", ["plain", "gpt_oss"])
def test_packed_values_and_gradients_equal_float64(
    handle_of, device, dtype, shape, interleaved, model
):
    native, options = MODELS[model]
    gate_up = torch.randn(shape, dtype=dtype, device=device, requires_grad=True)
    out = packed(gate_up, handle_of("swiglu"), interleaved, **options)
    dout = torch.randn_like(out)
    (got,) = torch.autograd.grad(out, gate_up, dout)
    gate_up64 = gate_up.detach().double().requires_grad_()
    out64 = native(*parts(gate_up64, interleaved))
    (want,) = torch.autograd.grad(out64, gate_up64, dout.double())
    assert_near(out, out64)
    assert got.dtype == dtype
    assert_near(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_packed_composite_has_the_bits_of_the_models(dtype, interleaved, model):
    native, options = MODELS[model]
    gate_up = torch.randn(7, 130, dtype=dtype, requires_grad=True)
    out, want_out = (
        packed(gate_up, -1, interleaved, **options),
        native(*parts(gate_up, interleaved)),
    )
    assert torch.equal(out, want_out)
    dout = torch.randn_like(out)
    got = torch.autograd.grad(out, gate_up, dout)
    assert torch.equal(got[0], torch.autograd.grad(want_out, gate_up, dout)[0])


@pytest.mark.parametrize("interleaved", [False, True])
def test_no_packed_call_leaves_the_kernel(device, interleaved):
    """Neither form needs the composite, whatever its alignment."""
    before = json.loads(torch.ops.fuseboard.counters())["swiglu"]
    base = torch.randn(6, 70, device=device)
    views = [base, base[:, 1:67], base[..., :64].reshape(2, 3, 64).transpose(0, 1), base[:1]]
    for view in views:
        x = view.detach().requires_grad_()
        packed(x, load("swiglu"), interleaved).sum().backward()
    after = json.loads(torch.ops.fuseboard.counters())["swiglu"]
    assert after["fused"] == before["fused"] + 2 * len(views)
    assert after["fallback"] == before["fallback"]


@settings(max_examples=examples(60), deadline=None)
@given(
    rows=st.integers(0, 5),
    cols=st.integers(1, 40),
    dtype=st.sampled_from(DTYPES),
    interleaved=st.booleans(),
    model=st.sampled_from(sorted(MODELS)),
    step=st.integers(1, 2),
    skip=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_any_packed_view_of_any_shape(rows, cols, dtype, interleaved, model, step, skip, seed):
    native, options = MODELS[model]
    torch.manual_seed(seed)
    gate_up = torch.randn(rows, 2 * cols * step + skip, dtype=dtype)[..., skip::step] * 2
    gate_up.requires_grad_()
    out = packed(gate_up, load("swiglu"), interleaved, **options)
    (got,) = torch.autograd.grad(out.sum(), gate_up)
    gate_up64 = gate_up.detach().double().requires_grad_()
    out64 = native(*parts(gate_up64, interleaved))
    assert_near(out, out64)
    assert_near(got, torch.autograd.grad(out64.sum(), gate_up64)[0])


@pytest.mark.parametrize("interleaved", [False, True])
def test_packed_float64_passes_gradcheck(handle_of, interleaved):
    gate_up = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    options = {"gate_multiplier": 0.7, "out_multiplier": 1.3, "alpha": 1.702, "up_offset": 1.0}
    assert torch.autograd.gradcheck(
        lambda x: packed(x, handle_of("swiglu"), interleaved, **options), gate_up
    )


def test_packed_errors_name_the_field_and_its_value():
    with pytest.raises(RuntimeError, match="swiglu_packed: gate_up has 7 columns, want an even"):
        packed(torch.randn(2, 7), -1)
    with pytest.raises(RuntimeError, match="swiglu_packed: gate_up has dtype Int"):
        packed(torch.ones(2, 8, dtype=torch.int32), -1)


def test_packed_second_derivative_raises_with_the_operators_name():
    x = torch.randn(2, 8, requires_grad=True)
    (dx,) = torch.autograd.grad(packed(x, -1).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="swiglu_packed_backward"):
        dx.sum().backward()


@pytest.mark.parametrize("interleaved", [False, True])
def test_packed_opcheck_is_clean(handle_of, device, interleaved):
    operator = torch.ops.fuseboard.swiglu_packed.default
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(2, 3, 8, dtype=dtype, device=device, requires_grad=True)
        options = (0.5, 2.0, 1.702, 1.5, 1.0)
        torch.library.opcheck(operator, (x, interleaved, True, handle_of("swiglu"), *options))


@pytest.mark.parametrize("interleaved", [False, True])
def test_packed_and_options_compile_without_a_graph_break(device, interleaved):
    torch._dynamo.reset()
    kernel = load("swiglu")

    def step(x):
        y = packed(x * 2, kernel, interleaved, limit=1.5, alpha=1.702, up_offset=1.0)
        return swiglu(y, y * 2, kernel, gate_multiplier=0.5).square().sum()

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (4, 9):
        x = torch.randn(rows, 16, device=device, requires_grad=True)
        got = torch.autograd.grad(compiled(x), x)
        torch.testing.assert_close(got, torch.autograd.grad(step(x), x))


def test_compiled_autograd_traces_the_packed_node():
    torch._dynamo.reset()
    x = torch.randn(4, 8, requires_grad=True)
    (want,) = torch.autograd.grad(packed(x, -1, limit=0.5).sum(), x)
    loss = packed(x, -1, limit=0.5).sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        loss.backward()
    torch.testing.assert_close(x.grad, want)
