"""fuseboard::kl_div against F.kl_div, and the cases that broke others."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.client_py.ops.row_losses import (
    BATCHMEAN,
    DTYPES,
    IGNORED,
    MEAN,
    NONE,
    REDUCTIONS,
    SUM,
    kl_div,
)

ops = torch.ops.fuseboard
F_REDUCTIONS = {NONE: "none", MEAN: "mean", SUM: "sum", BATCHMEAN: "batchmean"}


@pytest.mark.parametrize("shape", [(40, 77), (4, 5, 77)])
@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_equals_torch_in_fp32(handle_of, device, shape, log_target, reduction):
    loss = kl_div(log_target)
    x, y = loss.pair(shape, device=device)
    got = loss.call(x, y, None, reduction, handle_of("kl_div"))
    want = F.kl_div(x, y, reduction=F_REDUCTIONS[reduction], log_target=log_target)
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
    got = ops.kl_div(x, y, None, log_target, 0.0, IGNORED, NONE, handle_of("kl_div"))
    want = F.kl_div(x.float(), y.float(), reduction="none", log_target=log_target)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)
    (gradient,) = torch.autograd.grad(got.sum(), x)
    torch.testing.assert_close(gradient, -(y.exp() if log_target else y), equal_nan=True)


def test_zero_targets_add_nothing_and_batchmean_is_the_sum_over_rows(handle_of, device):
    x = torch.log_softmax(torch.randn(4, 10, device=device), -1)
    y = torch.zeros(4, 10, device=device)
    y[:, 3] = 1
    total = ops.kl_div(x, y, None, False, 0.0, IGNORED, SUM, handle_of("kl_div"))
    torch.testing.assert_close(total, -x[:, 3].sum())
    batchmean = ops.kl_div(x, y, None, False, 0.0, IGNORED, BATCHMEAN, handle_of("kl_div"))
    torch.testing.assert_close(batchmean, total / 4)


def test_a_negative_eps_is_refused():
    with pytest.raises(RuntimeError, match="kl_div: eps is -1, want 0 or more"):
        ops.kl_div(torch.ones(2, 3), torch.ones(2, 3), None, False, -1.0, IGNORED, MEAN, -1)
