"""fuseboard::rope against float64, and against the models' own code."""

import json

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.client_py.ops.conftest import load
from tests.client_py.ops.reference import assert_near, call_rope, examples, rope

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def heads(b, h, s, d, dtype=torch.float32, device="cpu", inside=True):
    """[b, h, s, d]; as a projection's view, with the heads inside the positions, or dense."""
    shape = (b, s, h, d) if inside else (b, h, s, d)
    x = torch.randn(shape, dtype=dtype, device=device)
    x = x.transpose(1, 2) if inside else x
    return x.requires_grad_()


def tables(*shape, dtype=torch.float32, device="cpu", duplicated=None):
    """cos and sin of random angles: as Llama's, twice the same; as Cohere's, each twice."""
    angle = torch.rand(shape, dtype=torch.float64) * 6.3
    if duplicated == "halves":
        angle = torch.cat([angle[..., : shape[-1] // 2]] * 2, dim=-1)
    elif duplicated == "pairs":
        angle = angle[..., ::2].repeat_interleave(2, dim=-1)
    return tuple(f(angle).to(device=device, dtype=dtype) for f in (torch.cos, torch.sin))


def double(*tensors):
    return tuple(t.detach().double().requires_grad_(t.requires_grad) for t in tensors)


def gradients(outputs, inputs, upstream):
    return torch.autograd.grad(outputs, inputs, upstream)


def check(q, k, cos, sin, want_tables, kernel, interleaved=False, **options):
    """Values and gradients against float64 with one factor per element, `want_tables`."""
    outputs = call_rope(q, k, cos, sin, interleaved=interleaved, kernel=kernel, **options)
    upstream = [torch.randn_like(y) for y in outputs]
    got = gradients(outputs, (q, k), upstream)
    q64, k64 = double(q, k)
    cos64, sin64 = (t.double() for t in want_tables)
    want_outputs = [rope(x, cos64, sin64, interleaved) for x in (q64, k64)]
    want = gradients(want_outputs, (q64, k64), [u.double() for u in upstream])
    for x, y, y64, dx, dx64 in zip((q, k), outputs, want_outputs, got, want, strict=True):
        assert y.dtype == dx.dtype == x.dtype
        assert_near(y, y64)
        assert_near(dx, dx64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("d, rotary_dim", [(64, 64), (128, 128), (64, 16), (80, 32), (72, 72), (10, 6), (7, 2), (2, 2)])  # fmt: skip
def test_values_and_gradients_equal_float64(
    handle_of, device, dtype, interleaved, inside, d, rotary_dim
):
    q = heads(2, 5, 7, d, dtype, device, inside)
    k = heads(2, 2, 7, d, dtype, device, inside)
    for table_dtype in {dtype, torch.float32}:
        for round_products in (False, True):
            cos, sin = tables(1, 7, rotary_dim, dtype=table_dtype, device=device)
            check(
                q, k, cos, sin, (cos, sin), handle_of("rope"), interleaved,
                rotary_dim=rotary_dim, round_products=round_products,
            )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [64, 24])
def test_with_round_products_the_bits_are_those_of_transformers(
    handle_of, device, dtype, interleaved, rotary_dim
):
    q, k = heads(2, 6, 9, 64, dtype, device), heads(2, 2, 9, 64, dtype, device)
    kind = "pairs" if interleaved else "halves"
    cos, sin = tables(2, 9, rotary_dim, dtype=dtype, device=device, duplicated=kind)
    outputs = call_rope(
        q, k, cos, sin, rotary_dim, interleaved=interleaved, kernel=handle_of("rope")
    )
    native = [rope(x, cos, sin, interleaved) for x in (q, k)]
    upstream = [torch.randn_like(y) for y in outputs]
    got = (*outputs, *gradients(outputs, (q, k), upstream))
    want = (*native, *gradients(native, (q, k), upstream))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_factor_per_pair_is_like_each_twice(handle_of, device, dtype):
    # GPT-OSS halves, GLM's first half of a table of halves (a view with longer rows).
    q, k = heads(2, 4, 6, 32, dtype, device), heads(2, 1, 6, 32, dtype, device)
    cos, sin = tables(1, 6, 32, dtype=dtype, device=device, duplicated="halves")
    half = cos[..., :16], sin[..., :16]
    check(q, k, *half, (cos, sin), handle_of("rope"))
    each_twice = [t.repeat_interleave(2, dim=-1) for t in half]
    check(q, k, *half, each_twice, handle_of("rope"), interleaved=True)


def test_llama_4_multiplies_complex_numbers(handle_of, device):
    xq = torch.randn(2, 5, 4, 32, dtype=torch.bfloat16, device=device)  # [b, s, h, d]
    angle = torch.rand(2, 5, 16, device=device) * 6.3
    freqs_cis = torch.polar(torch.ones_like(angle), angle)
    product = torch.view_as_complex(xq.float().reshape(2, 5, 4, 16, 2)) * freqs_cis[:, :, None]
    want = torch.view_as_real(product).flatten(3).type_as(xq)
    got, none = call_rope(
        xq.transpose(1, 2), None, freqs_cis.real, freqs_cis.imag, interleaved=True,
        round_products=False, kernel=handle_of("rope"),
    )  # fmt: skip
    assert got.transpose(1, 2).is_contiguous() and none.shape == (0,)
    torch.testing.assert_close(got.transpose(1, 2), want, rtol=8e-3, atol=1e-6)


def merged(table, sections):
    """Qwen2-VL's `cat([m[i % 3] for i, m in enumerate(table.split(mrope_section * 2, dim=-1))])`."""
    parts = table.split(list(sections) * 2, dim=-1)
    return torch.cat([part[i % 3] for i, part in enumerate(parts)], dim=-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sections", [(16, 24, 24), (5, 0, 59), (0, 64, 0), (21, 22, 21)])
@pytest.mark.parametrize("batch", [None, 1, 2])
def test_multimodal_sections_take_their_own_stream(handle_of, device, dtype, sections, batch):
    q, k = heads(2, 4, 6, 128, dtype, device), heads(2, 2, 6, 128, dtype, device)
    shape = (3, 6, 128) if batch is None else (3, batch, 6, 128)
    cos, sin = tables(*shape, dtype=dtype, device=device, duplicated="halves")
    one = merged(cos, sections), merged(sin, sections)
    check(q, k, cos, sin, one, handle_of("rope"), sections=sections)
    # GLM-4.1V: a factor per pair, interleaved.
    half = [t[..., :64] for t in (cos, sin)]
    twice = [t[..., :64].repeat_interleave(2, dim=-1) for t in one]
    check(q, k, *half, twice, handle_of("rope"), interleaved=True, sections=sections)
    # Streams of elements, interleaved: of no model yet, but of the contract.
    cos, sin = (t.reshape(*shape[:-1], 2, 64).transpose(-1, -2).flatten(-2) for t in (cos, sin))
    check(q, k, cos, sin, twice, handle_of("rope"), interleaved=True, sections=sections)


@pytest.mark.parametrize("d", [80, 72])
def test_vision_has_no_batch_and_computes_in_float32(handle_of, device, d):
    q, k, _ = torch.randn(11, 3, 4, d, dtype=torch.bfloat16, device=device).unbind(1)  # [s, h, d]
    cos, sin = tables(11, d, device=device, duplicated="halves")
    want = [rope(x.float().transpose(0, 1), cos, sin).to(x.dtype) for x in (q, k)]
    got = call_rope(
        q.transpose(0, 1), k.transpose(0, 1), cos, sin, round_products=False,
        kernel=handle_of("rope"),
    )  # fmt: skip
    for a, b in zip(got, want, strict=True):
        assert a.transpose(0, 1).is_contiguous()
        torch.testing.assert_close(a, b, rtol=8e-3, atol=1e-6)


def test_each_example_gets_its_own_angles(handle_of, device):
    q, k = heads(2, 4, 4, 8, device=device), heads(2, 2, 4, 8, device=device)
    kernel = handle_of("rope")
    cos, sin = tables(2, 4, 8, device=device, duplicated="halves")
    got = call_rope(q, k, cos, sin, kernel=kernel)
    for row in range(2):
        alone = call_rope(
            q[row : row + 1], k[row : row + 1], cos[row : row + 1], sin[row : row + 1],
            kernel=kernel,
        )  # fmt: skip
        assert all(torch.equal(a[row : row + 1], b) for a, b in zip(got, alone, strict=True))
    shared = call_rope(q, k, cos[:1], sin[:1], kernel=kernel)
    expanded = [t[:1].expand(2, 4, 8) for t in (cos, sin)]
    without_batch = call_rope(q, k, cos[0], sin[0], kernel=kernel)
    for other in (call_rope(q, k, *expanded, kernel=kernel), without_batch):
        assert all(torch.equal(a, b) for a, b in zip(shared, other, strict=True))


def tokens_of(rank, ranks, lengths):
    """The tokens of packed sequences that a rank of context parallelism has, and their positions in the sequence.

    Each sequence is cut in 2 * ranks pieces, of which a rank has one from each end.
    """
    tokens, positions, start = [], [], 0
    for length in lengths:
        size = length // (2 * ranks)
        for piece in (rank, 2 * ranks - 1 - rank):
            mine = torch.arange(piece * size, (piece + 1) * size)
            tokens.append(start + mine)
            positions.append(mine)
        start += length
    return torch.cat(tokens), torch.cat(positions)


def test_tokens_and_positions_of_a_rank():
    tokens, positions = tokens_of(0, 2, (4, 4))
    assert (tokens.tolist(), positions.tolist()) == ([0, 3, 4, 7], [0, 3, 0, 3])


# Whole sequences, one of 7 tokens that is padded to 8, one of 698 that is padded to 704.
@pytest.mark.parametrize("ranks, lengths", [(2, (4, 4)), (2, (8,)), (4, (704,)), (2, (8, 4, 12))])
def test_packed_sequences_on_several_ranks_are_as_on_one(handle_of, device, ranks, lengths):
    kernel, total, longest = handle_of("rope"), sum(lengths), max(lengths)
    q, k = heads(1, 4, total, 16, device=device), heads(1, 2, total, 16, device=device)
    per_sequence = tables(1, longest, 16, device=device, duplicated="halves")
    within = torch.cat([torch.arange(n) for n in lengths])
    per_token = [t[:, within] for t in per_sequence]
    whole = call_rope(q, k, *per_token, kernel=kernel)
    upstream = [torch.randn_like(y) for y in whole]
    want = (*whole, *gradients(whole, (q, k), upstream))
    seen = []
    for rank in range(ranks):
        tokens, positions = tokens_of(rank, ranks, lengths)
        seen.append(tokens)
        mine = [x[:, :, tokens].detach().requires_grad_() for x in (q, k)]
        for cos, sin in (
            [t[:, tokens] for t in per_token],
            [t[:, positions] for t in per_sequence],
        ):
            got = call_rope(*mine, cos, sin, kernel=kernel)
            got = (*got, *gradients(got, mine, [u[:, :, tokens] for u in upstream]))
            assert all(torch.equal(a, b[:, :, tokens]) for a, b in zip(got, want, strict=True))
    assert torch.equal(torch.cat(seen).sort().values, torch.arange(total))


def test_is_a_rotation(handle_of, device):
    kernel = handle_of("rope")
    positions = torch.arange(6, dtype=torch.float64, device=device)
    frequency = torch.tensor([1.0, 0.3, 0.1, 0.01], dtype=torch.float64, device=device)
    angle = torch.cat([positions[:, None] * frequency] * 2, dim=-1)
    cos, sin = angle.cos().float(), angle.sin().float()
    row = torch.randn(1, 2, 1, 8, device=device)
    q = row.expand(1, 2, 6, 8).contiguous().requires_grad_()
    y, _ = call_rope(q, None, cos, sin, kernel=kernel)
    assert torch.equal(y[:, :, 0], q[:, :, 0])
    torch.testing.assert_close(y.norm(dim=-1), q.norm(dim=-1))
    (back,) = gradients(y, q, y.detach())
    torch.testing.assert_close(back, q)
    scores = y @ y.transpose(-1, -2)
    for offset in range(6):
        diagonal = scores.diagonal(offset, dim1=-2, dim2=-1)
        torch.testing.assert_close(diagonal, diagonal[..., :1].expand_as(diagonal))


def test_the_results_lie_in_memory_as_the_inputs(handle_of, device):
    kernel = handle_of("rope")
    cos, sin = tables(3, 8, device=device)
    orders = [(0, 1, 2), (0, 2, 1), (2, 0, 1), (1, 0, 2), (1, 2, 0), (2, 1, 0)]
    for order in orders:
        inverse = [order.index(i) for i in range(3)]
        base = torch.randn(*[(2, 4, 3)[i] for i in order], 8, device=device)
        q = base.permute(*inverse, 3).requires_grad_()
        y, _ = call_rope(q, None, cos, sin, kernel=kernel)
        assert y.stride() == q.stride()
        # Whatever the upstream gradient looks like: expanded, or in another order.
        for upstream in (torch.ones((), device=device).expand_as(y), torch.randn(2, 4, 3, 8, device=device)):  # fmt: skip
            (dq,) = gradients(y, q, upstream)
            assert dq.stride() == q.stride()
            q64 = q.detach().double().requires_grad_()
            (want,) = gradients(rope(q64, cos.double(), sin.double()), q64, upstream.double())
            assert_near(dq, want)
            y, _ = call_rope(q, None, cos, sin, kernel=kernel)


def test_slices_of_a_packed_projection_need_no_copy(handle_of, device):
    packed = torch.randn(2, 5, 3, 8 * 16, device=device)[..., : 6 * 16].view(2, 5, 3, 6, 16)
    q, k = packed[:, :, 0].transpose(1, 2), packed[:, :, 1, ::2].transpose(1, 2)
    q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
    cos, sin = tables(1, 5, 16, device=device)
    check(q, k, cos, sin, (cos, sin), handle_of("rope"))
    # Another stride than 1 in the last dimension is copied.
    q = torch.randn(2, 16, 6, 5, device=device).permute(0, 2, 3, 1).requires_grad_()
    check(q, k, cos, sin, (cos, sin), handle_of("rope"))


@pytest.mark.parametrize("which", ["q", "k", "neither"])
def test_only_what_needs_a_gradient_gets_one(handle_of, device, which):
    q, k = heads(1, 4, 3, 8, device=device), heads(1, 2, 3, 8, device=device)
    q, k = (x if name == which else x.detach() for name, x in (("q", q), ("k", k)))
    cos, sin = tables(1, 3, 8, device=device)
    q_out, k_out = call_rope(q, k, cos, sin, kernel=handle_of("rope"))
    assert (q_out.requires_grad, k_out.requires_grad) == (which == "q", which == "k")
    if which != "neither":
        x, y = (q, q_out) if which == "q" else (k, k_out)
        (dx,) = gradients(y, x, torch.ones_like(y))
        x64 = x.detach().double().requires_grad_()
        y64 = rope(x64, cos.double(), sin.double())
        assert_near(dx, gradients(y64, x64, torch.ones_like(y64))[0])


def test_a_loss_of_one_output_alone_leaves_the_other_without_gradient(handle_of, device):
    q, k = heads(1, 4, 3, 8, device=device), heads(1, 2, 3, 8, device=device)
    cos, sin = tables(1, 3, 8, device=device)
    for used in (0, 1):
        outputs = call_rope(q, k, cos, sin, kernel=handle_of("rope"))
        got = torch.autograd.grad(outputs[used].sum(), (q, k), allow_unused=True)
        assert got[used] is not None
        assert got[1 - used] is None or not got[1 - used].any()


def test_what_is_not_rotated_keeps_its_bits(handle_of, device):
    q = torch.randn(1, 2, 3, 16, device=device).bfloat16()
    q[..., 8:] = torch.tensor([float("inf"), float("-inf"), float("nan"), -0.0] * 2)
    cos, sin = tables(1, 3, 8, device=device, dtype=torch.bfloat16)
    for interleaved in (False, True):
        y, _ = call_rope(q, None, cos, sin, 8, interleaved=interleaved, kernel=handle_of("rope"))
        assert torch.equal(y[..., 8:].view(torch.int16), q[..., 8:].view(torch.int16))
        assert y[..., :8].isfinite().all()


@pytest.mark.parametrize("b, h, s", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_nothing_to_do_is_done(handle_of, device, b, h, s):
    q, k = heads(b, h, s, 8, device=device), heads(b, 1, s, 8, device=device)
    cos, sin = tables(1, s, 8, device=device)
    outputs = call_rope(q, k, cos, sin, kernel=handle_of("rope"))
    assert [y.shape for y in outputs] == [q.shape, k.shape]
    got = gradients([y.sum() for y in outputs], (q, k), None)
    assert [g.shape for g in got] == [q.shape, k.shape]


def test_the_inputs_are_left_alone_also_under_checkpoint(handle_of, device):
    kernel = handle_of("rope")
    cos, sin = tables(1, 3, 8, device=device)
    for q in (heads(1, 2, 3, 8, device=device), heads(1, 2, 3, 8, device=device, inside=False)):
        before = q.detach().clone()

        def loss(x):
            y, _ = call_rope(x * 2, None, cos, sin, kernel=kernel)
            return (y * x).sum()

        (want,) = torch.autograd.grad(loss(q), q)
        for reentrant in (False, True):
            q.grad = None
            checkpoint(loss, q, use_reentrant=reentrant).backward()
            assert torch.equal(q.grad, want)
        assert torch.equal(q, before) and q._version == 0


def test_dtypes_may_differ(handle_of, device):
    q = heads(1, 2, 3, 8, device=device)
    k = heads(1, 2, 3, 8, torch.bfloat16, device)
    for dtype in (torch.float32, torch.float16):
        cos, sin = tables(1, 3, 8, device=device, dtype=dtype)
        check(q, k, cos, sin, (cos, sin), handle_of("rope"))


def test_float64_passes_gradcheck(handle_of):
    q = torch.randn(2, 2, 3, 6, dtype=torch.float64, requires_grad=True)
    k = torch.randn(2, 1, 3, 6, dtype=torch.float64, requires_grad=True)
    cos, sin = (torch.randn(1, 3, 4, dtype=torch.float64) for _ in range(2))
    for interleaved in (False, True):

        def function(a, b):
            return call_rope(a, b, cos, sin, 4, (), interleaved, kernel=handle_of("rope"))  # noqa: B023

        assert torch.autograd.gradcheck(function, (q, k))


def test_errors_name_the_field_and_both_values():
    q, (cos, sin) = torch.randn(1, 2, 3, 8), tables(1, 3, 8)
    fewer = torch.randn(1, 2, 3, 6)
    cases = [
        (r"rotary_dim is 7, want an even number", {"rotary_dim": 7}),
        (r"rotary_dim is 10 but a head has 8 elements", {"rotary_dim": 10}),
        (r"cos has 8 columns, want 6 or 3", {"rotary_dim": 6}),
        (r"sections are \[1, 1, 1\], want three that add up to 4", {"sections": (1, 1, 1)}),
        (r"k has 3 dimensions, want 4", {"k": torch.randn(2, 3, 8)}),
        (r"q has shape \[1, 2, 3, 8\] but k has shape \[1, 2, 3, 6\]", {"k": fewer}),
        (r"positions of a table is 4 but that of the heads is 3", {"cos": tables(1, 4, 8)[0]}),
        (r"cos has a batch of 5, want 1 or 1", {"cos": tables(5, 3, 8)[0]}),
        (r"cos has dtype Long", {"cos": torch.ones(1, 3, 8).long()}),
        (r"cos requires grad, but no gradient is", {"cos": cos.clone().requires_grad_()}),
    ]
    for message, changed in cases:
        with pytest.raises(RuntimeError, match=message):
            call_rope(**{"q": q, "k": None, "cos": cos, "sin": sin, **changed})
    with pytest.raises(RuntimeError, match="q has 2 dimensions, want 3 or 4"):
        call_rope(torch.randn(3, 8), None, cos, sin)


def test_second_derivative_raises_with_the_operators_name():
    q = torch.randn(1, 2, 3, 8, requires_grad=True)
    y, _ = call_rope(q, None, *tables(1, 3, 8))
    (dq,) = torch.autograd.grad(y.square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="rope_backward"):
        dq.sum().backward()


def test_opcheck_is_clean(handle_of, device):
    operator, kernel = torch.ops.fuseboard.rope.default, handle_of("rope")
    for dtype in (torch.float32, torch.bfloat16):
        q, k = heads(2, 4, 3, 8, dtype, device), heads(2, 2, 3, 8, dtype, device)
        table = tables(1, 3, 8, dtype=dtype, device=device)
        torch.library.opcheck(operator, (q, k, *table, 8, [], False, True, kernel))
    three = tables(3, 2, 3, 8, device=device)
    vision = heads(1, 4, 3, 8, dtype, device).detach()[0].requires_grad_()
    for arguments in (
        (q.detach(), k, *table, 8, [], True, False),
        (q, None, *three, 8, [1, 2, 1], False, True),
        (vision, None, *(t[0] for t in table), 8, [], False, False),
    ):
        torch.library.opcheck(operator, (*arguments, kernel))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_a_graph_break(device, dynamic):
    torch._dynamo.reset()
    kernel = load("rope")

    def attention(x, cos, sin):
        q, k = (t.view(*x.shape[:2], -1, 16).transpose(1, 2) for t in (x[..., :64], x[..., 64:]))
        q, k = call_rope(q, k, cos, sin, kernel=kernel)
        return q.transpose(1, 2).reshape(x.shape[0], -1).sum(), (k @ k.transpose(-1, -2)).tanh()

    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for positions in (4, 5) if dynamic else (4,):
        x = torch.randn(2, positions, 96, device=device, requires_grad=True)
        cos, sin = tables(1, positions, 16, device=device)
        got, want = compiled(x, cos, sin), attention(x, cos, sin)
        torch.testing.assert_close(got, want)
        got = torch.autograd.grad(got[0] + got[1].sum(), x)
        want = torch.autograd.grad(want[0] + want[1].sum(), x)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_compiled_autograd_traces_the_node():
    torch._dynamo.reset()
    q, k = heads(1, 4, 3, 8), heads(1, 2, 3, 8)
    cos, sin = tables(3, 1, 3, 8)

    def loss():
        return sum(y.square().sum() for y in call_rope(q, k, cos, sin, sections=(1, 2, 1)))

    want = torch.autograd.grad(loss(), (q, k))
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        loss().backward()
    torch.testing.assert_close((q.grad, k.grad), want)


def fused_calls():
    return json.loads(torch.ops.fuseboard.counters())["rope"]["fused"]


@st.composite
def problems(draw):
    """A problem that the kernel library takes, in any layout."""
    size = st.integers
    b, s = draw(size(1, 3)), draw(size(1, 9))
    counts = draw(size(1, 9)), draw(size(0, 5))
    d = draw(st.sampled_from([2, 4, 6, 8, 16, 24, 32, 40, 64, 72, 80, 96, 128, 256]) | size(2, 70))
    rotary_dim = draw(st.sampled_from([d // 2 * 2, max(d // 4 * 2, 2)]) | size(1, d // 2).map(lambda n: 2 * n))  # fmt: skip
    return {
        "dtype": draw(st.sampled_from(DTYPES)),
        "sizes": (b, s, d),
        "counts": counts,
        "rotary_dim": rotary_dim,
        "orders": [draw(st.permutations([0, 1, 2])) for _ in range(4)],
        "pads": [draw(st.sampled_from([0, 0, 1, 3, 8])) for _ in range(4)],
        "offsets": [draw(st.sampled_from([0, 0, 1, 8])) for _ in range(6)],
        "wide_tables": draw(st.booleans()),
        "per_pair": draw(st.booleans()),
        "table_step": draw(st.sampled_from([1, 1, 2])),
        "table_batch": draw(st.sampled_from([None, 1, b])),
        "cuts": draw(st.none() | st.tuples(size(0, rotary_dim // 2), size(0, rotary_dim // 2))),
        "interleaved": draw(st.booleans()),
        "round_products": draw(st.booleans()),
        "device": draw(st.sampled_from(["cpu"] + ["cuda"] * torch.cuda.is_available())),
        "seed": draw(size(0, 1 << 30)),
    }


def strided(shape, order, pad, offset, dtype, device):
    """Random, of `shape`, its dimensions in memory in `order`, rows `pad` longer, unaligned."""
    sizes = [shape[i] for i in order]
    rows = torch.randn([*sizes, shape[3] + pad], dtype=dtype, device=device)
    storage = torch.empty(rows.numel() + offset, dtype=dtype, device=device)
    view = storage[offset:].view(rows.shape).copy_(rows)[..., : shape[3]]
    return view.permute(*[order.index(i) for i in range(3)], 3)


@hypothesis.settings(max_examples=examples(150), deadline=None, derandomize=True)
@hypothesis.given(problems())
def test_any_problem_equals_float64(p):
    torch.manual_seed(p["seed"])
    (b, s, d), dtype, device = p["sizes"], p["dtype"], p["device"]
    sides = [
        strided((b, h, s, d), p["orders"][i], p["pads"][i], p["offsets"][i], dtype, device)
        for i, h in enumerate(p["counts"])
    ]
    q, k = (x.requires_grad_() for x in sides)
    upstream = [
        strided(x.shape, p["orders"][2 + i], p["pads"][2 + i], p["offsets"][2 + i], dtype, device)
        for i, x in enumerate(sides)
    ]
    pairs = p["rotary_dim"] // 2
    width = pairs if p["per_pair"] else 2 * pairs
    sections = ()
    if p["cuts"] is not None:
        first, second = sorted(p["cuts"])
        sections = (first, second - first, pairs - second)
    leading = ([3] if sections else []) + ([] if p["table_batch"] is None else [p["table_batch"]])
    table_dtype = torch.float32 if p["wide_tables"] else dtype
    step = p["table_step"]

    def table(offset):
        rows = torch.randn(*leading, s, width * step + offset, device=device).to(table_dtype)
        return rows[..., offset::step][..., :width]

    cos, sin = table(p["offsets"][4]), table(p["offsets"][5])
    before = fused_calls()
    outputs = call_rope(
        q, k, cos, sin, 2 * pairs, sections, p["interleaved"], p["round_products"], load("rope")
    )
    got = gradients(outputs, (q, k), upstream)
    assert fused_calls() == before + 2

    def per_element(table):
        wide = table.double()
        if p["per_pair"]:
            wide = (
                wide.repeat_interleave(2, dim=-1) if p["interleaved"] else torch.cat([wide] * 2, -1)
            )
        if not sections:
            return wide
        element = torch.arange(2 * pairs, device=device)
        pair = element // 2 if p["interleaved"] else element % pairs
        stream = (pair >= sections[0]).long() + (pair >= sections[0] + sections[1]).long()
        return sum(wide[i] * (stream == i) for i in range(3))

    cos64, sin64 = per_element(cos), per_element(sin)
    q64, k64 = double(q, k)
    want_outputs = [rope(x, cos64, sin64, p["interleaved"]) for x in (q64, k64)]
    want = gradients(want_outputs, (q64, k64), [u.double() for u in upstream])
    for a, b64 in zip((*outputs, *got), (*want_outputs, *want), strict=True):
        assert_near(a, b64)
