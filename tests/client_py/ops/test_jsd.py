"""fuseboard::jsd: its ends, infinite logarithms, and a student near its teacher."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.client_py.ops.row_losses import BATCHMEAN, DTYPES, IGNORED, MEAN, NONE, SUM, jsd

ops = torch.ops.fuseboard


# The second probability underflows on both sides.
@pytest.mark.parametrize("beta, want", [(0.0, 0.110944), (0.5, 0.028535), (1.0, 0.120115)])
def test_values_of_each_convention(handle_of, device, beta, want):
    x = torch.log_softmax(torch.tensor([[0.0, -200.0, 0.0]], device=device), -1).requires_grad_()
    y = torch.log_softmax(torch.tensor([[0.0, -200.0, 1.0]], device=device), -1)
    value = ops.jsd(x, y, None, beta, IGNORED, BATCHMEAN, handle_of("jsd"))
    assert value.item() == pytest.approx(want, abs=1e-6)
    (gradient,) = torch.autograd.grad(value, x)
    assert gradient.isfinite().all() and gradient[0, 1] == 0


def test_the_ends_are_kl_divergences_of_torch(handle_of, device):
    x, y = jsd().pair((6, 50), device=device)
    forward = ops.jsd(x, y, None, 0.0, IGNORED, BATCHMEAN, handle_of("jsd"))
    torch.testing.assert_close(forward, F.kl_div(x, y, reduction="batchmean", log_target=True))
    reverse = ops.jsd(x, y, None, 1.0, IGNORED, BATCHMEAN, handle_of("jsd"))
    torch.testing.assert_close(reverse, F.kl_div(y, x, reduction="batchmean", log_target=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_infinite_logarithms_give_the_limits(handle_of, device, dtype, beta):
    logs = torch.tensor([-math.inf, -3.0, -1.0], dtype=torch.float64)
    x, y = (t.reshape(-1) for t in torch.meshgrid(logs, logs, indexing="ij"))
    p, q = y.exp(), x.exp()
    m = (beta * p + (1 - beta) * q).log()
    of_target = torch.where(p > 0, p * (y - m), 0.0)
    of_input = torch.where(q > 0, q * (x - m), 0.0)
    want = {0.0: of_target, 1.0: of_input}.get(beta, beta * of_target + (1 - beta) * of_input)
    want_gradient = {0.0: -p, 1.0: of_input + q}.get(beta, (1 - beta) * of_input)
    x = x.to(device, dtype).requires_grad_()
    got = ops.jsd(x, y.to(device, dtype), None, beta, IGNORED, NONE, handle_of("jsd"))
    (gradient,) = torch.autograd.grad(got.sum(), x)
    torch.testing.assert_close(got.cpu().double(), want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient.cpu().double(), want_gradient, rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.7, 1.0])
def test_equal_distributions_have_no_loss(handle_of, device, beta):
    for dtype in DTYPES:
        x = jsd(beta).distribution(0, (3, 1000), dtype, device)
        value = ops.jsd(x, x, None, beta, IGNORED, SUM, handle_of("jsd"))
        assert value.abs() < 1e-5


# As training converges: gradients are differences of nearly equal logarithms.
@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_gradients_of_a_student_near_its_teacher(device, handle_of, beta):
    logits = torch.randn(4, 32000, device=device, dtype=torch.float64).mul_(2)
    near = logits + 0.02 * torch.randn_like(logits)
    x = torch.log_softmax(near, -1).float().requires_grad_()
    y = torch.log_softmax(logits, -1).float()
    value = ops.jsd(x, y, None, beta, IGNORED, SUM, handle_of("jsd"))
    (got,) = torch.autograd.grad(value, x)
    x64 = x.detach().double().requires_grad_()
    want_value = jsd(beta).elements(x64, y.double()).sum()
    (want,) = torch.autograd.grad(want_value, x64)
    assert (got - want).norm() < 2e-3 * want.norm()
    assert value.item() == pytest.approx(want_value.item(), rel=0.02)


@pytest.mark.parametrize("beta", [-0.1, 1.5, math.nan])
def test_a_beta_outside_its_range_is_refused(beta):
    with pytest.raises(RuntimeError, match=r"jsd: beta is .*, want a number in \[0, 1\]"):
        ops.jsd(torch.ones(2, 3), torch.ones(2, 3), None, beta, IGNORED, MEAN, -1)
