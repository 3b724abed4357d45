"""fuseboard::kl_div against float64, F.kl_div, and the cases that broke others."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client_py.ops import row_loss_checks as checks
from tests.client_py.ops.conftest import load
from tests.client_py.ops.row_loss_checks import (
    BATCHMEAN,
    DTYPES,
    MEAN,
    NONE,
    REDUCTIONS,
    SUM,
    RowLoss,
    compare,
)

ops = torch.ops.fuseboard
F_REDUCTIONS = {NONE: "none", MEAN: "mean", SUM: "sum", BATCHMEAN: "batchmean"}


def kl_div(log_target=False, eps=0.0):
    def call(x, y, label, reduction, kernel):
        assert label is None
        return ops.kl_div(x, y, log_target, eps, reduction, kernel)

    def elements(x, y):
        if log_target or not eps:
            return F.kl_div(x, y, reduction="none", log_target=log_target)
        return torch.xlogy(y, y.clamp(min=eps)) - y * x

    return RowLoss(call, elements, (False, not log_target))


@pytest.fixture(params=["target", "log_target"])
def loss(request):
    return kl_div(request.param == "log_target")


# Widths around powers of two and vector widths, several tiles, and other ranks.
SHAPES = [(9, 1), (5, 7), (3, 129), (2, 1000), (2, 32001), (2, 3, 50), (16,), (0, 16), (2, 70000)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_equal_float64(loss, handle_of, device, dtype, shape):
    for reduction in REDUCTIONS:
        if 0 in shape and reduction in (MEAN, BATCHMEAN):
            continue
        x, y = loss.pair(shape, dtype, device)
        compare(loss, x, y, handle_of("kl_div"), reduction)


@settings(max_examples=100, deadline=None)
@given(
    rows=st.integers(1, 9),
    cols=st.integers(1, 70),
    log_target=st.booleans(),
    eps=st.sampled_from([0.0, 1e-10, 1e-2]),
    reduction=st.sampled_from(REDUCTIONS),
    dtype=st.sampled_from(DTYPES),
    use_kernel=st.booleans(),
)
def test_any_combination_of_options_equals_float64(
    rows, cols, log_target, eps, reduction, dtype, use_kernel
):
    loss = kl_div(log_target, eps)
    x, y = loss.pair((rows, cols), dtype)
    if not log_target:
        y[:, ::3] = 0
    compare(loss, x, y, load("kl_div") if use_kernel else -1, reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_equals_torch_in_fp32(loss, handle_of, device, reduction):
    x, y = loss.pair((40, 77), device=device)
    got = loss.call(x, y, None, reduction, handle_of("kl_div"))
    want = F.kl_div(
        x, y, reduction=F_REDUCTIONS[reduction], log_target=not loss.of_probabilities[1]
    )
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-7)
    upstream = torch.full_like(got, 2.0)
    torch.testing.assert_close(
        torch.autograd.grad(got, x, upstream), torch.autograd.grad(want, x, upstream)
    )


# All pairs of special values: infinite, NaN or 0 where and only where F.kl_div is.
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("log_target", [False, True])
def test_special_values_are_as_in_torch(handle_of, device, dtype, log_target):
    logs = torch.tensor([-math.inf, -200.0, -3.0, 0.0, math.nan])
    probabilities = torch.tensor([0.0, 1e-3, 0.5, 1.0, -0.5, math.inf, math.nan])
    x, y = torch.meshgrid(logs, logs if log_target else probabilities, indexing="ij")
    x = x.reshape(-1).to(device, dtype).requires_grad_()
    y = y.reshape(-1).to(device, dtype)
    got = ops.kl_div(x, y, log_target, 0.0, NONE, handle_of("kl_div"))
    want = F.kl_div(x.float(), y.float(), reduction="none", log_target=log_target)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)
    (gradient,) = torch.autograd.grad(got.sum(), x)
    torch.testing.assert_close(gradient, -(y.exp() if log_target else y), equal_nan=True)


def test_zero_targets_add_nothing_and_batchmean_is_the_sum_over_rows(handle_of, device):
    x = torch.log_softmax(torch.randn(4, 10, device=device), -1)
    y = torch.zeros(4, 10, device=device)
    y[:, 3] = 1
    total = ops.kl_div(x, y, False, 0.0, SUM, handle_of("kl_div"))
    torch.testing.assert_close(total, -x[:, 3].sum())
    batchmean = ops.kl_div(x, y, False, 0.0, BATCHMEAN, handle_of("kl_div"))
    torch.testing.assert_close(batchmean, total / 4)


# A gradient over 2 million elements is below f16's smallest number; a loss scale must still reach it.
def test_a_loss_scale_reaches_gradients_in_half(handle_of, device):
    x = torch.log_softmax(torch.randn(16, 131072, device=device), -1).half().requires_grad_()
    y = torch.softmax(torch.randn(16, 131072, device=device), -1).half()
    scale = 2.0**24
    value = ops.kl_div(x, y, False, 0.0, MEAN, handle_of("kl_div"))
    (got,) = torch.autograd.grad(value * scale, x)
    want = -y.double() / x.numel() * scale
    assert (got != 0).sum() > 0.9 * (y != 0).sum()
    torch.testing.assert_close(got.double(), want, rtol=2e-3, atol=1e-7)


def test_no_element_means_what_it_means_in_torch(handle_of, device):
    x, y = torch.empty(0, 4, device=device), torch.empty(0, 4, device=device)
    kernel = handle_of("kl_div")
    assert ops.kl_div(x, y, False, 0.0, MEAN, kernel).isnan()
    assert ops.kl_div(x, y, False, 0.0, SUM, kernel) == 0
    flat = torch.empty(3, 0, device=device)
    assert ops.kl_div(flat, flat, False, 0.0, SUM, kernel) == 0
    assert ops.kl_div(flat, flat, False, 0.0, NONE, kernel).shape == (3, 0)


def test_dtypes_may_differ_as_in_eager(handle_of, device):
    loss = kl_div()
    x = loss.distribution(0, (4, 33), torch.bfloat16, device).requires_grad_()
    y = loss.distribution(1, (4, 33), torch.float32, device)
    for reduction in REDUCTIONS:
        compare(loss, x, y, handle_of("kl_div"), reduction)


def test_runs_the_library_and_counts_it(device):
    def fused():
        return json.loads(ops.counters())["kl_div"]["fused"]

    before = fused()
    loss = kl_div()
    for reduction, dtype, launches in ((MEAN, torch.bfloat16, 1), (NONE, torch.float32, 2),
                                       (SUM, torch.float16, 2)):  # fmt: skip
        x, y = loss.pair((4, 40), dtype, device)
        loss.call(x, y, None, reduction, load("kl_div")).sum().backward()
        assert fused() == before + launches
        before = fused()


def test_upstream_gradients(loss, handle_of, device):
    checks.check_upstream_gradients(loss, handle_of("kl_div"), device)


def test_element_gradients(loss, handle_of, device):
    checks.check_element_gradients(loss, handle_of("kl_div"), device)


def test_layouts(loss, handle_of, device):
    checks.check_layouts(loss, handle_of("kl_div"), device)


def test_value_does_not_depend_on_requires_grad(loss, handle_of, device):
    checks.check_value_does_not_depend_on_requires_grad(loss, handle_of("kl_div"), device)


def test_float64_passes_gradcheck(loss, handle_of):
    checks.check_gradcheck(loss, handle_of("kl_div"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_opcheck_is_clean(handle_of, device, dtype):
    for reduction in REDUCTIONS:
        x, y = kl_div().pair((2, 3, 8), dtype, device)
        arguments = (x, y, False, 1e-10, reduction, handle_of("kl_div"))
        torch.library.opcheck(ops.kl_div.default, arguments)


@pytest.mark.parametrize("backend, dynamic", [("aot_eager", False), ("aot_eager", True)])
def test_compiles_without_a_graph_break(handle_of, device, backend, dynamic):
    checks.check_compiles(kl_div(), handle_of("kl_div"), device, backend, dynamic)


def test_compiles_with_inductor(handle_of, device):
    checks.check_compiles(kl_div(), handle_of("kl_div"), device, "inductor", False, (4,))


def test_compiled_autograd_traces_the_nodes():
    checks.check_compiled_autograd(kl_div())


def test_second_derivative_raises_with_the_operators_name():
    checks.check_second_derivative_raises(kl_div(), "kl_div_backward")


@pytest.mark.parametrize(
    "x, y, options, message",
    [
        (torch.ones(2, 3).long(), torch.ones(2, 3), {}, "input has dtype Long"),
        (torch.ones(2, 3), torch.ones(2, 3).int(), {}, "target has dtype Int"),
        (torch.ones(2, 3), torch.ones(3), {}, "input has 2 dimensions but target has 1"),
        (torch.ones(2, 3), torch.ones(2, 4), {}, r"shape \[2, 3\] but target has shape \[2, 4\]"),
        (torch.ones(()), torch.ones(()), {}, "input has 0 dimensions, want at least 1"),
        (torch.ones(2, 3), torch.ones(2, 3), {"reduction": 4}, "reduction is 4"),
        (torch.ones(2, 3), torch.ones(2, 3), {"eps": -1.0}, "eps is -1"),
    ],
)
def test_errors_name_the_field_and_its_value(x, y, options, message):
    with pytest.raises(RuntimeError, match=message):
        ops.kl_div(x, y, False, options.get("eps", 0.0), options.get("reduction", 1), -1)


def test_a_gradient_for_target_is_refused():
    y = torch.rand(2, 8, requires_grad=True)
    with pytest.raises(RuntimeError, match="target requires grad"):
        ops.kl_div(torch.randn(2, 8), y, False, 0.0, MEAN, -1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cols", [50257, 128256, 151936])
def test_wide_rows_on_a_device(loss, dtype, cols):
    x, y = loss.pair((5, cols), dtype, "cuda")
    for reduction in REDUCTIONS:
        compare(loss, x, y, load("kl_div"), reduction)


@pytest.mark.gpu
def test_a_captured_graph_gives_what_eager_gives_for_new_data(loss):
    checks.check_captured_graph(loss, load("kl_div"))


@pytest.mark.gpu
def test_nothing_waits_for_the_device(loss):
    checks.check_nothing_waits_for_the_device(loss, load("kl_div"), None)
