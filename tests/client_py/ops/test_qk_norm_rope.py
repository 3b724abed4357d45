"""fuseboard::qk_norm_rope against float64, and against the models' own code."""

import json

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.client_py.ops.conftest import load
from tests.client_py.ops.reference import (
    GEMMA,
    LLAMA,
    NONE_CASTING,
    TOLERANCE,
    assert_near,
    call_qk_norm_rope,
    llama_rms_norm,
    norm_heads,
    qk_norm_rope,
    rope,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
OPERATION = "qk_norm_rope"


def heads(b, h, s, d, dtype=torch.float32, device="cpu", inside=True):
    """[b, h, s, d]; as a projection's view, with the heads inside the positions, or dense."""
    shape = (b, s, h, d) if inside else (b, h, s, d)
    x = torch.randn(shape, dtype=dtype, device=device) * 2
    return (x.transpose(1, 2) if inside else x).requires_grad_()


def tables(*shape, dtype=torch.float32, device="cpu"):
    """cos and sin of random angles, twice the same, as Llama's."""
    angle = torch.rand(*shape[:-1], shape[-1] // 2, dtype=torch.float64) * 6.3
    angle = torch.cat([angle, angle], dim=-1)
    return tuple(f(angle).to(device=device, dtype=dtype) for f in (torch.cos, torch.sin))


def weight(size, dtype=torch.float32, device="cpu", mean=1.0):
    return (torch.randn(size, device=device) * 0.3 + mean).to(dtype).requires_grad_()


def problem(dtype=torch.float32, device="cpu", h=(4, 2), s=5, d=16, all_heads=False, inside=True, weight_dtype=None, mean=1.0):  # fmt: skip
    """q, k, q_weight, k_weight."""
    sides = [heads(2, count, s, d, dtype, device, inside) for count in h]
    sizes = [count * d if all_heads else d for count in h]
    return (*sides, *(weight(n, weight_dtype or dtype, device, mean) for n in sizes))


def double(*tensors):
    return tuple(t.detach().double().requires_grad_(t.requires_grad) for t in tensors)


def gradients(outputs, inputs, upstream):
    return torch.autograd.grad(outputs, inputs, upstream)


def check(inputs, cos, sin, kernel, casting=LLAMA, rotary_dim=None, round_products=True, **options):
    """Values and gradients against float64."""
    outputs = call_qk_norm_rope(
        *inputs, cos, sin, casting=casting, rotary_dim=rotary_dim, round_products=round_products,
        kernel=kernel, **options,
    )  # fmt: skip
    upstream = [torch.randn_like(y) for y in outputs]
    got = gradients(outputs, inputs, upstream)
    q, k, q_weight, k_weight = double(*inputs)
    cos, sin = cos.double(), sin.double()
    wanted = [qk_norm_rope(x, w, cos, sin, **options) for x, w in ((q, q_weight), (k, k_weight))]
    want = gradients(wanted, (q, k, q_weight, k_weight), [u.double() for u in upstream])
    x, w = inputs[0], inputs[2]
    promoted = torch.promote_types(x.dtype, w.dtype) if casting == LLAMA else x.dtype
    for y, y64 in zip(outputs, wanted, strict=True):
        assert y.dtype == promoted
        assert_near(y, y64, x.dtype)
    for tensor, dx, dx64 in zip(inputs, got, want, strict=True):
        assert dx.dtype == tensor.dtype
        # A weight's gradient is of rows that were rounded as x is.
        assert_near(dx, dx64, max(x.dtype, tensor.dtype, key=TOLERANCE.__getitem__))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("all_heads", [False, True])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("d, rotary_dim", [(64, 64), (128, 128), (64, 16), (80, 80), (256, 64), (72, 72), (10, 6), (7, 2)])  # fmt: skip
def test_values_and_gradients_equal_float64(
    handle_of, device, dtype, all_heads, inside, d, rotary_dim
):
    kernel = handle_of(OPERATION)
    for interleaved in (False, True):
        for casting, offset in ((LLAMA, 0.0), (GEMMA, 1.0), (NONE_CASTING, 0.0)):
            inputs = problem(dtype, device, (5, 2), 7, d, all_heads, inside, mean=1.0 - offset)
            for table_dtype in {dtype, torch.float32}:
                cos, sin = tables(1, 7, rotary_dim, dtype=table_dtype, device=device)
                check(
                    inputs, cos, sin, kernel, casting, rotary_dim, offset=offset,
                    all_heads=all_heads, interleaved=interleaved,
                )  # fmt: skip


def transformers_gemma_rms_norm(x, w, eps=1e-6):
    """Gemma3RMSNorm.forward."""
    normed = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    return (normed * (1.0 + w.float())).type_as(x)


def transformers_olmo2_rms_norm(x, w, eps=1e-6):
    """Olmo2RMSNorm.forward."""
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (w * wide).to(x.dtype)


MODELS = {
    # The model's RMSNorm, its options here, the dtype of its tables.
    "qwen3": (llama_rms_norm, {"casting": LLAMA}, torch.bfloat16),
    "gemma3": (transformers_gemma_rms_norm, {"casting": GEMMA, "offset": 1.0}, torch.bfloat16),
    "olmo2": (transformers_olmo2_rms_norm, {"casting": GEMMA, "all_heads": True}, torch.float32),
}


def native(model, q, k, q_weight, k_weight, cos, sin):
    norm, options, _ = MODELS[model]
    all_heads = options.get("all_heads", False)
    sides = ((q, q_weight), (k, k_weight))
    return [rope(norm_heads(norm, x, w, all_heads), cos, sin).to(x.dtype) for x, w in sides]


@pytest.mark.parametrize("model", MODELS)
def test_the_composite_has_the_bits_of_transformers(device, model):
    _, options, table_dtype = MODELS[model]
    inputs = problem(torch.bfloat16, device, d=64, all_heads=options.get("all_heads", False))
    cos, sin = tables(1, 5, 64, dtype=table_dtype, device=device)
    got = call_qk_norm_rope(*inputs, cos, sin, **options)
    want = native(model, *inputs, cos, sin)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    upstream = [torch.randn_like(y) for y in got]
    for a, b in zip(gradients(got, inputs, upstream), gradients(want, inputs, upstream), strict=True):  # fmt: skip
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2 * b.abs().max().item())


@pytest.mark.parametrize("model", MODELS)
def test_the_kernel_rounds_where_transformers_rounds(device, model):
    # The order of the sum of squares is another, which moves a value over a tie now and then.
    _, options, table_dtype = MODELS[model]
    inputs = problem(torch.bfloat16, device, (8, 2), 64, 64, options.get("all_heads", False))
    cos, sin = tables(1, 64, 64, dtype=table_dtype, device=device)
    got = call_qk_norm_rope(*inputs, cos, sin, kernel=load(OPERATION), **options)
    for a, b in zip(got, native(model, *inputs, cos, sin), strict=True):
        assert (a != b).float().mean() < 2e-3


def test_the_models_modules_give_the_same(device):
    qwen3 = pytest.importorskip("transformers.models.qwen3.modeling_qwen3")
    gemma3 = pytest.importorskip("transformers.models.gemma3.modeling_gemma3")
    olmo2 = pytest.importorskip("transformers.models.olmo2.modeling_olmo2")
    inputs = problem(torch.bfloat16, device, d=64)
    for model, module, norm in (
        ("qwen3", qwen3, qwen3.Qwen3RMSNorm),
        ("gemma3", gemma3, gemma3.Gemma3RMSNorm),
        ("olmo2", olmo2, olmo2.Olmo2RMSNorm),
    ):
        _, options, table_dtype = MODELS[model]
        all_heads = options.get("all_heads", False)
        inputs = problem(torch.bfloat16, device, d=64, all_heads=all_heads)
        cos, sin = tables(1, 5, 64, dtype=table_dtype, device=device)
        normed = []
        for x, w in zip(inputs[:2], inputs[2:], strict=True):
            one = norm(w.numel(), eps=1e-6).to(device)
            one.weight = torch.nn.Parameter(w.detach())
            normed.append(norm_heads(lambda a, _, one=one: one(a), x, w, all_heads))
        want = module.apply_rotary_pos_emb(*normed, cos, sin)
        got = call_qk_norm_rope(*inputs, cos, sin, **options)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("weight_dtype", DTYPES)
@pytest.mark.parametrize("all_heads", [False, True])
def test_the_weight_may_have_another_dtype(handle_of, device, weight_dtype, all_heads):
    for dtype in DTYPES:
        for casting in (LLAMA, GEMMA, NONE_CASTING):
            inputs = problem(dtype, device, d=64, all_heads=all_heads, weight_dtype=weight_dtype)
            cos, sin = tables(1, 5, 64, device=device)
            check(inputs, cos, sin, handle_of(OPERATION), casting, all_heads=all_heads)


def test_without_weights(handle_of, device):
    q, k, _, _ = problem(torch.bfloat16, device, d=64)
    cos, sin = tables(1, 5, 64, dtype=torch.bfloat16, device=device)
    got = call_qk_norm_rope(q, k, None, None, cos, sin, kernel=handle_of(OPERATION))
    ones = torch.ones(64, dtype=torch.bfloat16, device=device)
    want = call_qk_norm_rope(q, k, ones, ones, cos, sin, kernel=handle_of(OPERATION))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    (dq,) = gradients(got[0].float().sum(), q, None)
    (dq_of_ones,) = gradients(want[0].float().sum(), q, None)
    assert torch.equal(dq, dq_of_ones)


def test_sections_and_three_dimensions(handle_of, device):
    q, k, *weights = problem(device=device, d=16)
    kernel = handle_of(OPERATION)
    cos, sin = tables(3, 1, 5, 16, device=device)
    sections = (2, 3, 3)
    element = torch.arange(16, device=device) % 8
    stream = (element >= 2).long() + (element >= 5).long()
    one = [sum(t[i] * (stream == i) for i in range(3)) for t in (cos, sin)]
    got = call_qk_norm_rope(q, k, *weights, cos, sin, sections=sections, kernel=kernel)
    want = call_qk_norm_rope(q, k, *weights, *one, kernel=kernel)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    alone = call_qk_norm_rope(q[1], k[1], *weights, *(t[0] for t in one), kernel=kernel)
    assert all(torch.equal(a[1], b) for a, b in zip(want, alone, strict=True))


@pytest.mark.parametrize("all_heads", [False, True])
def test_the_results_lie_in_memory_as_the_inputs(handle_of, device, all_heads):
    kernel = handle_of(OPERATION)
    cos, sin = tables(1, 3, 8, device=device)
    for order in [(0, 1, 2), (0, 2, 1), (2, 0, 1), (1, 0, 2), (1, 2, 0), (2, 1, 0)]:
        inverse = [order.index(i) for i in range(3)]
        base = torch.randn(*[(2, 4, 3)[i] for i in order], 8, device=device)
        q = base.permute(*inverse, 3).requires_grad_()
        w = weight(32 if all_heads else 8, device=device)
        options = {"all_heads": all_heads}
        # Whatever the upstream gradient looks like: expanded, or in another order.
        for upstream in (torch.ones((), device=device).expand(2, 4, 3, 8), torch.randn(2, 4, 3, 8, device=device)):  # fmt: skip
            y, _ = call_qk_norm_rope(q, None, w, None, cos, sin, kernel=kernel, **options)
            assert y.stride() == q.stride()
            dq, dw = gradients(y, (q, w), upstream)
            assert dq.stride() == q.stride()
            q64, w64 = double(q, w)
            y64 = qk_norm_rope(q64, w64, cos.double(), sin.double(), **options)
            for a, b in zip((dq, dw), gradients(y64, (q64, w64), upstream.double()), strict=True):
                assert_near(a, b)


def test_slices_and_strides_in_the_last_dimension(handle_of, device):
    packed = torch.randn(2, 5, 8 * 16, device=device)[..., : 6 * 16].view(2, 5, 6, 16)
    q, k = packed[:, :, :4].transpose(1, 2), packed[:, :, 4:].transpose(1, 2)
    q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
    weights = weight(16, device=device), weight(16, device=device)
    cos, sin = tables(1, 5, 16, device=device)
    check((q, k, *weights), cos, sin, handle_of(OPERATION))
    # Another stride than 1 in the last dimension is copied.
    q = torch.randn(2, 16, 4, 5, device=device).permute(0, 2, 3, 1).requires_grad_()
    check((q, k, *weights), cos, sin, handle_of(OPERATION))


@pytest.mark.parametrize("which", range(16))
def test_only_what_needs_a_gradient_gets_one(handle_of, device, which):
    inputs = problem(device=device)
    wanted = [bool(which >> i & 1) for i in range(4)]
    inputs = [t if w else t.detach() for t, w in zip(inputs, wanted, strict=True)]
    cos, sin = tables(1, 5, 16, device=device)
    outputs = call_qk_norm_rope(*inputs, cos, sin, kernel=handle_of(OPERATION))
    assert outputs[0].requires_grad == (wanted[0] or wanted[2])
    assert outputs[1].requires_grad == (wanted[1] or wanted[3])
    if not any(wanted):
        return
    leaves = [t for t in inputs if t.requires_grad]
    loss = sum(y.square().sum() for y in outputs if y.requires_grad)
    got = torch.autograd.grad(loss, leaves)
    q, k, q_weight, k_weight = sides = double(*inputs)
    wide = cos.double(), sin.double()
    loss64 = sum(qk_norm_rope(x, w, *wide).square().sum() for x, w in ((q, q_weight), (k, k_weight)))  # fmt: skip
    for a, b in zip(got, torch.autograd.grad(loss64, [t for t in sides if t.requires_grad]), strict=True):  # fmt: skip
        assert_near(a, b)


def test_a_loss_of_one_output_alone_leaves_the_other_without_gradient(handle_of, device):
    inputs = problem(device=device)
    cos, sin = tables(1, 5, 16, device=device)
    for used in (0, 1):
        outputs = call_qk_norm_rope(*inputs, cos, sin, kernel=handle_of(OPERATION))
        got = torch.autograd.grad(outputs[used].sum(), inputs, allow_unused=True)
        for i in (0, 2):
            assert got[i + used] is not None
            assert got[i + 1 - used] is None or not got[i + 1 - used].any()


@pytest.mark.parametrize("b, h, s", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
@pytest.mark.parametrize("all_heads", [False, True])
def test_nothing_to_do_is_done_and_sums_of_nothing_are_zero(handle_of, device, b, h, s, all_heads):
    q, k = heads(b, h, s, 8, device=device), heads(b, 1, s, 8, device=device)
    weights = weight(h * 8 if all_heads else 8, device=device), weight(8, device=device)
    cos, sin = tables(1, s, 8, device=device)
    outputs = call_qk_norm_rope(
        q, k, *weights, cos, sin, all_heads=all_heads, kernel=handle_of(OPERATION)
    )
    assert [y.shape for y in outputs] == [q.shape, k.shape]
    got = gradients([y.sum() for y in outputs], (q, k, *weights), None)
    assert [g.shape for g in got] == [t.shape for t in (q, k, *weights)]
    assert not got[2].any()
    assert h == 0 or not got[3].any()


def test_the_inputs_are_left_alone_also_under_checkpoint(handle_of, device):
    kernel = handle_of(OPERATION)
    cos, sin = tables(1, 5, 16, device=device)
    q, _, w, _ = problem(device=device)
    before = q.detach().clone()

    def loss(x):
        y, _ = call_qk_norm_rope(x * 2, None, w, None, cos, sin, kernel=kernel)
        return (y * x).sum()

    (want,) = torch.autograd.grad(loss(q), q)
    for reentrant in (False, True):
        q.grad = None
        checkpoint(loss, q, use_reentrant=reentrant).backward()
        assert torch.equal(q.grad, want)
    assert torch.equal(q, before) and q._version == 0


def test_dtypes_may_differ(handle_of, device):
    q, _, q_weight, k_weight = problem(device=device)
    k = heads(2, 2, 5, 16, torch.bfloat16, device)
    cos, sin = tables(1, 5, 16, dtype=torch.float16, device=device)
    outputs = call_qk_norm_rope(q, k, q_weight, k_weight, cos, sin, casting=GEMMA, kernel=handle_of(OPERATION))  # fmt: skip
    wide = cos.double(), sin.double()
    for x, w, y in zip((q, k), (q_weight, k_weight), outputs, strict=True):
        assert y.dtype == x.dtype
        assert_near(y, qk_norm_rope(x.double(), w.double(), *wide))
    inputs = (q, k, q_weight, k_weight)
    got = gradients(outputs, inputs, [torch.ones_like(y) for y in outputs])
    assert [g.dtype for g in got] == [t.dtype for t in inputs]


def test_under_autocast_weights_in_float32_give_float32(handle_of, device):
    q, k, *weights = problem(torch.bfloat16, device, d=64, weight_dtype=torch.float32)
    cos, sin = tables(1, 5, 64, device=device)
    with torch.autocast(device, torch.bfloat16):
        got = call_qk_norm_rope(q, k, *weights, cos, sin, kernel=handle_of(OPERATION))
        want = native("qwen3", q, k, *weights, cos, sin)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.bfloat16(), b, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("all_heads", [False, True])
def test_float64_passes_gradcheck(handle_of, all_heads):
    shapes = (2, 2, 3, 6), (2, 1, 3, 6), (12 if all_heads else 6,), (6,)
    inputs = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    cos, sin = (torch.randn(1, 3, 4, dtype=torch.float64) for _ in range(2))
    for casting in (LLAMA, GEMMA, NONE_CASTING):

        def function(*tensors):
            return call_qk_norm_rope(
                *tensors, cos, sin, casting=casting, all_heads=all_heads, rotary_dim=4,  # noqa: B023
                kernel=handle_of(OPERATION),
            )  # fmt: skip

        assert torch.autograd.gradcheck(function, inputs)


def test_errors_name_the_field_and_both_values():
    q, (cos, sin) = torch.randn(1, 2, 3, 8), tables(1, 3, 8)
    cases = [
        (r"rotary_dim is 10 but a head has 8 elements", {"rotary_dim": 10}),
        (r"q_weight.size\(0\) is 7 but a row's number of elements is 8", {"q_weight": torch.ones(7)}),
        (r"is 8 but a row's number of elements is 16", {"q_weight": torch.ones(8), "all_heads": True}),
        (r"q_weight has 2 dimensions, want 1", {"q_weight": torch.ones(8, 1)}),
        (r"q_weight has dtype Long", {"q_weight": torch.ones(8).long()}),
        (r"k_weight is given without k", {"k_weight": torch.ones(8)}),
        (r"casting is 3, want 0 \(llama\), 1 \(gemma\) or 2 \(none\)", {"casting": 3}),
        (r"cos requires grad, but no gradient is", {"cos": cos.clone().requires_grad_()}),
    ]  # fmt: skip
    base = {"q": q, "k": None, "q_weight": None, "k_weight": None, "cos": cos, "sin": sin}
    for message, changed in cases:
        with pytest.raises(RuntimeError, match=message):
            call_qk_norm_rope(**{**base, **changed})


def test_second_derivative_raises_with_the_operators_name():
    q, _, w, _ = problem()
    y, _ = call_qk_norm_rope(q, None, w, None, *tables(1, 5, 16))
    (dq,) = torch.autograd.grad(y.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="qk_norm_rope_backward"):
        dq.sum().backward()


def test_opcheck_is_clean(handle_of, device):
    operator, kernel = torch.ops.fuseboard.qk_norm_rope.default, handle_of(OPERATION)
    for dtype in (torch.float32, torch.bfloat16):
        inputs = problem(dtype, device, d=8)
        table = tables(1, 5, 8, dtype=dtype, device=device)
        options = (1e-6, 0.0, 0, False, 8, [], False, True)
        torch.library.opcheck(operator, (*inputs, *table, *options, kernel))
    q, k, _, k_weight = inputs
    all_weights = weight(32, device=device), weight(16, device=device)
    three = tables(3, 2, 5, 8, device=device)
    part = [t[..., :4] for t in table]
    for arguments in (
        (q.detach(), k, None, k_weight, *table, 1e-6, 1.0, 1, False, 8, [], True, False),
        (q, k, *all_weights, *three, 1e-6, 0.0, 0, True, 8, [1, 2, 1], False, True),
        (q, None, None, None, *part, 1e-6, 0.0, 2, False, 4, [], False, True),
    ):
        torch.library.opcheck(operator, (*arguments, kernel))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_a_graph_break(device, dynamic):
    torch._dynamo.reset()
    kernel = load(OPERATION)
    weights = weight(16, device=device), weight(16, device=device)

    def attention(x, cos, sin):
        q, k = x.view(2, -1, 6, 16).split([4, 2], dim=2)
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        return call_qk_norm_rope(q, k, *weights, cos, sin, kernel=kernel)

    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for positions in (4, 5) if dynamic else (4,):
        x = torch.randn(2, positions, 96, device=device, requires_grad=True)
        cos, sin = tables(1, positions, 16, device=device)
        got, want = compiled(x, cos, sin), attention(x, cos, sin)
        torch.testing.assert_close(got, want)
        leaves = (x, *weights)
        got = torch.autograd.grad(got[0].square().sum() + got[1].sum(), leaves)
        want = torch.autograd.grad(want[0].square().sum() + want[1].sum(), leaves)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_compiled_autograd_traces_the_node():
    torch._dynamo.reset()
    inputs = problem()
    cos, sin = tables(1, 5, 16)

    def loss():
        return sum(y.square().sum() for y in call_qk_norm_rope(*inputs, cos, sin))

    want = torch.autograd.grad(loss(), inputs)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        loss().backward()
    torch.testing.assert_close(tuple(t.grad for t in inputs), want)


def test_the_kernel_takes_all_that_the_models_do(device):
    def fused():
        return json.loads(torch.ops.fuseboard.counters())[OPERATION]["fused"]

    for model, (_, options, table_dtype) in MODELS.items():
        inputs = problem(torch.bfloat16, device, d=128, all_heads=model == "olmo2")
        cos, sin = tables(1, 5, 128, dtype=table_dtype, device=device)
        before = fused()
        outputs = call_qk_norm_rope(*inputs, cos, sin, kernel=load(OPERATION), **options)
        gradients(outputs, inputs, [torch.ones_like(y) for y in outputs])
        assert fused() == before + 2


@pytest.mark.parametrize("all_heads", [False, True])
@pytest.mark.parametrize("h", [(32, 8), (40, 40)])
def test_blocks_that_take_many_positions(handle_of, device, h, all_heads):
    positions = 700 if device == "cuda" else 40
    inputs = problem(torch.bfloat16, device, h, positions, 128, all_heads)
    cos, sin = tables(2, positions, 128, dtype=torch.bfloat16, device=device)
    check(inputs, cos, sin, handle_of(OPERATION), all_heads=all_heads)


@pytest.mark.parametrize("all_heads", [False, True])
def test_two_runs_are_bit_equal(device, all_heads):
    positions = 300 if device == "cuda" else 40
    inputs = problem(torch.bfloat16, device, (32, 8), positions, 128, all_heads)
    cos, sin = tables(1, positions, 128, dtype=torch.bfloat16, device=device)
    upstream = [torch.randn_like(x) for x in inputs[:2]]

    def run():
        outputs = call_qk_norm_rope(*inputs, cos, sin, all_heads=all_heads, kernel=load(OPERATION))
        return (*outputs, *gradients(outputs, inputs, upstream))

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))
