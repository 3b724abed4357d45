"""What is true of kl_div, jsd and tvd alike; what is not stands in the test file of each."""

import itertools
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client_py.ops.conftest import load
from tests.client_py.ops.reference import examples
from tests.client_py.ops.row_losses import (
    BATCHMEAN,
    DTYPES,
    IGNORED,
    LOSSES,
    MEAN,
    NONE,
    REDUCTIONS,
    SUM,
    assert_close_to_largest,
    compare,
    jsd,
    kl_div,
    labels,
    tvd,
)

ops = torch.ops.fuseboard
OF_EACH_OPERATOR = {"kl_div": kl_div(eps=1e-10), "jsd": jsd(0.3), "tvd": tvd()}


@pytest.fixture(params=LOSSES)
def loss(request):
    return LOSSES[request.param]


@pytest.fixture(params=OF_EACH_OPERATOR)
def one_loss(request):
    return OF_EACH_OPERATOR[request.param]


# Widths around powers of two and vector widths, several tiles, and other ranks.
SHAPES = [(9, 1), (5, 7), (3, 129), (2, 1000), (2, 3, 50), (16,), (0, 16)]
WIDE = [((2, 32001), torch.bfloat16), ((2, 70000), torch.float32), ((1, 70000), torch.float16)]


@pytest.mark.parametrize("shape, dtype", [*itertools.product(SHAPES, DTYPES), *WIDE])
def test_values_and_gradients_equal_float64(loss, handle_of, device, shape, dtype):
    for reduction in REDUCTIONS:
        if 0 in shape and reduction in (MEAN, BATCHMEAN):
            continue
        x, y = loss.pair(shape, dtype, device)
        compare(loss, x, y, handle_of(loss.operation), reduction)


@settings(max_examples=examples(150), deadline=None)
@given(
    rows=st.integers(1, 9),
    cols=st.integers(1, 70),
    loss=st.one_of(
        st.builds(kl_div, st.booleans(), st.sampled_from([0.0, 1e-10, 1e-2])),
        st.builds(jsd, st.sampled_from([0.0, 1e-6, 0.1, 0.5, 0.9, 1.0])),
        st.builds(tvd),
    ),
    reduction=st.sampled_from(REDUCTIONS),
    dtype=st.sampled_from(DTYPES),
    ignored=st.sampled_from([None, 0.0, 0.4, 1.0]),
    use_kernel=st.booleans(),
)
def test_any_combination_of_options_equals_float64(
    rows, cols, loss, reduction, dtype, ignored, use_kernel
):
    x, y = loss.pair((rows, cols), dtype)
    if loss.of_probabilities[1]:
        y[:, ::3] = 0
    label = None if ignored is None else labels(rows, ignored=ignored)
    compare(loss, x, y, load(loss.operation) if use_kernel else -1, reduction, label)


@pytest.mark.parametrize("label_dtype", [torch.int64, torch.int32])
def test_labels_of_any_rank_and_stride(loss, handle_of, device, label_dtype):
    x, y = loss.pair((4, 3, 20), device=device)
    label = labels(24, device).to(label_dtype).reshape(4, 6)[:, ::2]
    for reduction in REDUCTIONS:
        compare(loss, x, y, handle_of(loss.operation), reduction, label)


def test_ignored_rows_are_not_read(loss, handle_of, device):
    kernel = handle_of(loss.operation)
    for dtype in DTYPES:
        x, y = loss.pair((6, 40), dtype, device)
        label = labels(6, device)
        nan_x, nan_y = x.detach().clone(), y.clone()
        nan_x[label == IGNORED] = nan_y[label == IGNORED] = float("nan")
        nan_x.requires_grad_()
        for reduction in REDUCTIONS:
            value = loss.call(x, y, label, reduction, kernel)
            nan_value = loss.call(nan_x, nan_y, label, reduction, kernel)
            assert torch.equal(value, nan_value)
            (gradient,) = torch.autograd.grad(value.sum(), x)
            (nan_gradient,) = torch.autograd.grad(nan_value.sum(), nan_x)
            assert torch.equal(gradient, nan_gradient)


def test_all_rows_ignored_is_exactly_zero(loss, handle_of, device):
    label = torch.full((4,), 7, device=device)
    for dtype in DTYPES:
        for reduction in REDUCTIONS:
            x, y = loss.pair((4, 16), dtype, device)
            value = loss.call(x, y, label, reduction, handle_of(loss.operation), ignore_index=7)
            (gradient,) = torch.autograd.grad(value.sum(), x)
            assert (value == 0).all() and (gradient == 0).all()


def test_upstream_gradients_scale_and_are_never_shared(loss, handle_of, device):
    for reduction in REDUCTIONS:
        x, y = loss.pair((5, 33), device=device)
        value = loss.call(x, y, None, reduction, handle_of(loss.operation)).sum()
        (one,) = torch.autograd.grad(value, x, retain_graph=True)
        (two,) = torch.autograd.grad(value * 2, x, retain_graph=True)
        (again,) = torch.autograd.grad(value, x)
        torch.testing.assert_close(two, 2 * one, rtol=1e-6, atol=0)
        assert torch.equal(one, again)


def test_element_gradients_of_any_layout(loss, handle_of, device):
    x, y = loss.pair((5, 33), device=device)
    losses = loss.call(x, y, None, NONE, handle_of(loss.operation))
    x64 = x.detach().double().requires_grad_()
    losses64 = loss.elements(x64, y.double())
    for upstream in (
        torch.randn(5, 33, device=device),
        torch.randn(33, 5, device=device).t(),
        torch.randn(5, 1, device=device).expand(5, 33),
        torch.randn(33, device=device).expand(5, 33),
        torch.randn((), device=device).expand(5, 33),
    ):
        (got,) = torch.autograd.grad(losses, x, upstream, retain_graph=True)
        (want,) = torch.autograd.grad(losses64, x64, upstream.double(), retain_graph=True)
        assert_close_to_largest(got, want)


def test_padded_transposed_expanded_and_stepped_inputs(loss, handle_of, device):
    padded = [loss.distribution(i, (6, 40), device=device)[:, 3:36] for i in (0, 1)]
    transposed = [loss.distribution(i, (33, 6), device=device).t() for i in (0, 1)]
    expanded = [loss.distribution(i, (1, 33), device=device).expand(6, 33) for i in (0, 1)]
    stepped = [loss.distribution(i, (12, 33), device=device)[::2] for i in (0, 1)]
    for x, y in (padded, transposed, expanded, stepped):
        for reduction in (NONE, BATCHMEAN):
            compare(loss, x.detach().requires_grad_(), y, handle_of(loss.operation), reduction)


def test_value_does_not_depend_on_requires_grad(loss, handle_of, device):
    kernel = handle_of(loss.operation)
    x, y = (t.detach() for t in loss.pair((4, 30), device=device))
    want = loss.call(x, y, None, MEAN, kernel)
    with torch.inference_mode():
        assert torch.equal(loss.call(x, y, None, MEAN, kernel), want)
    got = loss.call(x.requires_grad_(), y, None, MEAN, kernel)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=0)


def test_two_runs_are_bit_equal(loss, handle_of, device):
    x, y = loss.pair((7, 40000), torch.bfloat16, device)
    for reduction in REDUCTIONS:
        runs = []
        for _ in range(2):
            value = loss.call(x, y, None, reduction, handle_of(loss.operation))
            runs.append((value, *torch.autograd.grad(value.sum(), x)))
        assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_dtypes_may_differ_as_in_eager(loss, handle_of, device):
    x = loss.distribution(0, (4, 33), torch.bfloat16, device).requires_grad_()
    y = loss.distribution(1, (4, 33), torch.float32, device)
    for reduction in REDUCTIONS:
        compare(loss, x, y, handle_of(loss.operation), reduction)


# A gradient over 131,072 elements is below f16's smallest number; a loss scale must still reach it.
def test_a_loss_scale_reaches_gradients_in_half(loss, handle_of, device):
    x, y = loss.pair((2, 65536), torch.float16, device)
    scale = 2.0**24
    value = loss.call(x, y, None, MEAN, handle_of(loss.operation))
    (got,) = torch.autograd.grad(value * scale, x)
    x64 = x.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(loss.elements(x64, y.double()).mean() * scale, x64)
    assert_close_to_largest(got, want)


def test_no_element_means_what_it_means_in_torch(one_loss, handle_of, device):
    kernel = handle_of(one_loss.operation)
    empty = torch.empty(0, 4, device=device)
    assert one_loss.call(empty, empty, None, MEAN, kernel).isnan()
    assert one_loss.call(empty, empty, None, BATCHMEAN, kernel).isnan()
    assert one_loss.call(empty, empty, None, SUM, kernel) == 0
    flat = torch.empty(3, 0, device=device)
    assert one_loss.call(flat, flat, None, SUM, kernel) == 0
    assert one_loss.call(flat, flat, None, NONE, kernel).shape == (3, 0)


def test_runs_the_library_and_counts_it(one_loss, device):
    def fused():
        return json.loads(ops.counters())[one_loss.operation]["fused"]

    for reduction, dtype, launches in (
        (MEAN, torch.bfloat16, 1),
        (NONE, torch.float32, 2),
        (SUM, torch.float16, 2),
    ):
        before = fused()
        x, y = one_loss.pair((4, 40), dtype, device)
        one_loss.call(x, y, labels(4, device), reduction, load(one_loss.operation)).sum().backward()
        assert fused() == before + launches


def test_float64_passes_gradcheck(loss, handle_of):
    x, y = loss.pair((3, 5), torch.float64)
    for reduction in REDUCTIONS:
        torch.autograd.gradcheck(
            lambda a: loss.call(a, y, None, reduction, handle_of(loss.operation)),  # noqa: B023
            x,
        )


def test_opcheck_is_clean(one_loss, handle_of, device):
    operator = getattr(ops, one_loss.operation).default
    for reduction, dtype in zip(REDUCTIONS, [*DTYPES, torch.float32], strict=True):
        x, y = one_loss.pair((2, 3, 8), dtype, device)
        label = labels(6, device).reshape(2, 3) if reduction != SUM else None
        arguments = (x, y, label, *one_loss.options, IGNORED, reduction)
        torch.library.opcheck(operator, (*arguments, handle_of(one_loss.operation)))


def test_compiles_without_a_graph_break(one_loss, device):
    torch._dynamo.reset()
    kernel = load(one_loss.operation)

    def total(x, y, label):
        value = one_loss.call(x * 1, y, label, BATCHMEAN, kernel) * 3
        return value + one_loss.call(x, y, None, NONE, kernel).sum()

    compiled = torch.compile(total, fullgraph=True, backend="aot_eager", dynamic=False)
    for rows in (4, 5):
        x, y = one_loss.pair((rows, 13), device=device)
        label = labels(rows, device)
        got, want = compiled(x, y, label), total(x, y, label)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            torch.autograd.grad(got * 2, x), torch.autograd.grad(want * 2, x), rtol=1e-4, atol=1e-6
        )
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, y, label), want.detach(), rtol=1e-5, atol=1e-6)


# Both kinds of node, two of each in a graph, with labels and without.
@pytest.mark.parametrize(
    "dtype, reduction", [(torch.float32, MEAN), (torch.float16, MEAN), (torch.float32, NONE)]
)
def test_compiled_autograd_traces_the_nodes(one_loss, dtype, reduction):
    torch._dynamo.reset()
    x, y = one_loss.pair((4, 13), dtype)
    label = labels(4)

    def total():
        first = one_loss.call(x, y, None, reduction, -1).sum()
        return first + one_loss.call(x * 2, y, label, reduction, -1).sum()

    (want,) = torch.autograd.grad(total(), x)
    value = total()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        value.backward()
    torch.testing.assert_close(x.grad, want)


@pytest.mark.parametrize("reduction", [NONE, MEAN])
def test_second_derivative_raises_with_the_operators_name(one_loss, reduction):
    x, y = one_loss.pair((2, 8))
    value = one_loss.call(x, y, None, reduction, -1).sum()
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    with pytest.raises(RuntimeError, match=f"{one_loss.operation}_backward"):
        gradient.square().sum().backward()


@pytest.mark.parametrize(
    "x, y, label, reduction, message",
    [
        (torch.ones(2, 3).long(), torch.ones(2, 3), None, MEAN, "input has dtype Long"),
        (torch.ones(2, 3), torch.ones(2, 3).int(), None, MEAN, "target has dtype Int"),
        (torch.ones(2, 3), torch.ones(3), None, MEAN, "input has 2 dimensions but target has 1"),
        (torch.ones(2, 3), torch.ones(2, 4), None, MEAN, r"\[2, 3\] but target has shape \[2, 4\]"),
        (torch.ones(()), torch.ones(()), None, MEAN, "input has 0 dimensions, want at least 1"),
        (torch.ones(2, 3), torch.ones(2, 3), None, 4, "reduction is 4"),
        (torch.ones(2, 3), torch.ones(2, 3), torch.ones(2), MEAN, "label has dtype Float"),
        (torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 3).long(), MEAN, "label has 2 dim"),
        (torch.ones(2, 3), torch.ones(2, 3), torch.ones(3).long(), MEAN, r"label has shape \[3\]"),
    ],
)
def test_errors_name_the_field_and_its_value(one_loss, x, y, label, reduction, message):
    with pytest.raises(RuntimeError, match=f"{one_loss.operation}: .*{message}"):
        one_loss.call(x, y, label, reduction, -1)


def test_a_gradient_for_target_is_refused(one_loss):
    y = torch.rand(2, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match="target requires grad"):
        one_loss.call(torch.randn(2, 8), y, None, MEAN, -1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [50257, 128256, 151936])
def test_wide_rows_on_a_device(loss, dtype, cols):
    x, y = loss.pair((5, cols), dtype, "cuda")
    for reduction in REDUCTIONS:
        compare(loss, x, y, load(loss.operation), reduction, labels(5, "cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_captured_graph_gives_what_eager_gives_for_new_data(loss, reduction):
    x, y = loss.pair((8, 1000), device="cuda")
    label = labels(8, "cuda")

    def run():
        value = loss.call(x, y, label, reduction, load(loss.operation)).sum() * 3
        return value.detach(), *torch.autograd.grad(value, x)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    for _ in range(3):
        x.data.copy_(loss.distribution(0, x.shape, device="cuda"))
        y.copy_(loss.distribution(1, y.shape, device="cuda"))
        label.copy_(labels(8, "cuda"))
        graph.replay()
        torch.testing.assert_close(captured, run())


@pytest.mark.gpu
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nothing_waits_for_the_device(loss, reduction):
    x, y = loss.pair((8, 1000), device="cuda")
    for label in (None, labels(8, "cuda")):
        torch.autograd.grad(loss.call(x, y, label, reduction, load(loss.operation)).sum(), x)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            torch.autograd.grad(loss.call(x, y, label, reduction, load(loss.operation)).sum(), x)
        finally:
            torch.cuda.set_sync_debug_mode("default")
