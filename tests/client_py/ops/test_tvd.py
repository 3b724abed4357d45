"""fuseboard::tvd: what it has of its own."""

import pytest
import torch

from tests.client_py.ops.row_losses import BATCHMEAN, DTYPES, IGNORED, NONE

ops = torch.ops.fuseboard


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_probabilities_have_no_gradient(handle_of, device, dtype):
    x = torch.tensor([[0.5, 0.25, 0.25, 0.0]], device=device, dtype=dtype, requires_grad=True)
    y = torch.tensor([[0.25, 0.25, 0.5, 0.0]], device=device, dtype=dtype)
    losses = ops.tvd(x, y, None, IGNORED, NONE, handle_of("tvd"))
    assert losses.tolist() == [[0.125, 0.0, 0.125, 0.0]]
    (gradient,) = torch.autograd.grad(losses.sum(), x)
    assert gradient.tolist() == [[0.5, 0.0, -0.5, 0.0]]


def test_disjoint_distributions_are_at_distance_one(handle_of, device):
    x = torch.eye(4, device=device)
    value = ops.tvd(x, x.roll(1, 0), None, IGNORED, BATCHMEAN, handle_of("tvd"))
    assert value == 1
