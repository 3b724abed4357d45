"""kl_div, jsd and tvd in plain PyTorch, in whatever dtype they are given, beside their operators.

Reductions: 0 none, 1 mean, 2 sum, 3 batchmean.
"""

import dataclasses
import math
import typing

import torch

from tests.client_py.ops.reference import TOLERANCE

NONE, MEAN, SUM, BATCHMEAN = 0, 1, 2, 3
REDUCTIONS = [NONE, MEAN, SUM, BATCHMEAN]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
IGNORED = -100


@dataclasses.dataclass(frozen=True)
class RowLoss:
    """An operator with its options."""

    operation: str
    options: tuple
    elements: typing.Callable  # elements(input, target)
    of_probabilities: tuple  # Whether input and target are, or else log-probabilities.

    def call(self, x, y, label, reduction, kernel, ignore_index=IGNORED):
        """The operator."""
        operator = getattr(torch.ops.fuseboard, self.operation)
        return operator(x, y, label, *self.options, ignore_index, reduction, kernel)

    def distribution(self, index, shape, dtype=torch.float32, device="cpu"):
        """A random input (index 0) or target (1)."""
        logits = torch.randn(shape, device=device, dtype=torch.float64).mul_(2)
        softmax = torch.softmax if self.of_probabilities[index] else torch.log_softmax
        return softmax(logits, -1).to(dtype)

    def largest_probability(self, index, values):
        """Of an input (index 0) or target (1)."""
        if not values.numel():
            return 0.0
        largest = values.detach().double().max()
        return (largest if self.of_probabilities[index] else largest.exp()).item()

    def pair(self, shape, dtype=torch.float32, device="cpu"):
        """A leaf and its target."""
        return (
            self.distribution(0, shape, dtype, device).requires_grad_(),
            self.distribution(1, shape, dtype, device),
        )

    def divisor(self, x, label, reduction):
        """What the sum is divided by: examples are the rows that count; of kl_div without labels, size(0)."""
        rows = math.prod(x.shape[:-1]) if label is None else (label != IGNORED).sum().item()
        if label is None and self.operation == "kl_div" and reduction == BATCHMEAN:
            rows = x.shape[0]
        return {MEAN: rows * x.shape[-1], BATCHMEAN: rows}.get(reduction, 1)

    def reference(self, x, y, label, reduction):
        """The loss by its formula, 0 if no row counts."""
        losses = self.elements(x, y)
        if label is not None:
            losses = torch.where((label != IGNORED).unsqueeze(-1), losses, torch.zeros_like(losses))
        if reduction == NONE:
            return losses
        divisor = self.divisor(x, label, reduction)
        return losses.sum() * 0 if label is not None and divisor == 0 else losses.sum() / divisor


def kl_div(log_target=False, eps=0.0):
    """F.kl_div, with the least probability whose logarithm is taken."""

    def elements(x, y):
        if log_target or not eps:
            return torch.nn.functional.kl_div(x, y, reduction="none", log_target=log_target)
        return torch.xlogy(y, y.clamp(min=eps)) - y * x

    return RowLoss("kl_div", (log_target, eps), elements, (False, not log_target))


def jsd(beta=0.5):
    """The generalised Jensen-Shannon divergence of finite log-probabilities."""

    def elements(x, y):
        if beta == 0:
            return y.exp() * (y - x)
        if beta == 1:
            return x.exp() * (x - y)
        m = torch.logaddexp(y + math.log(beta), x + math.log1p(-beta))
        return beta * y.exp() * (y - m) + (1 - beta) * x.exp() * (x - m)

    return RowLoss("jsd", (beta,), elements, (False, False))


def tvd():
    """The total variation distance."""
    return RowLoss("tvd", (), lambda x, y: (x - y).abs() / 2, (True, True))


LOSSES = {
    "kl_div": kl_div(),
    "kl_div of logarithms": kl_div(log_target=True),
    "jsd, beta 0": jsd(0.0),
    "jsd, beta 0.3": jsd(0.3),
    "jsd, beta 1": jsd(1.0),
    "tvd": tvd(),
}


def labels(rows, device="cpu", ignored=0.4):
    """Labels of which some are ignored, the first in any case."""
    label = torch.randint(0, 50, (rows,), device=device)
    label[torch.rand(rows, device=device) < ignored] = IGNORED
    label[:1] = IGNORED
    return label


def assert_close_to_largest(got, want, dtype=None, floor=1e-30):
    """Compares with float64 at the tolerance of `dtype` (default: got's), relative to the largest value.

    `floor` is the least that values count as: of differences that may be exactly 0, the size of what they are
    differences of.
    """
    assert got.shape == want.shape
    if not want.numel():
        return
    scale = want.abs().max().clamp(min=floor)
    tolerance = TOLERANCE[dtype or got.dtype]
    torch.testing.assert_close(got.double() / scale, want / scale, rtol=tolerance, atol=tolerance)


def compare(loss, x, y, kernel, reduction, label=None):
    """Loss and gradient against float64 on the same inputs, which stay as they are."""
    before = x.detach().clone(), y.clone()
    # Large enough that f16's gradients are normal numbers whatever the loss was divided by.
    divisor = max(1, loss.divisor(x, label, reduction))
    upstream = 1.7 * divisor
    value = loss.call(x, y, label, reduction, kernel)
    (got,) = torch.autograd.grad(value.sum() * upstream, x)
    x64 = x.detach().double().requires_grad_()
    value64 = loss.reference(x64, y.double(), label, reduction)
    (want,) = torch.autograd.grad(value64.sum() * upstream, x64)
    assert value.dtype == (torch.float64 if x.dtype == torch.float64 else torch.float32)
    assert got.dtype == x.dtype
    # Loss and gradient are made of probabilities, and a row's add up to 1. The loss is f32 whatever the inputs are.
    largest = max(loss.largest_probability(index, t) for index, t in enumerate((x, y)))
    total = largest if reduction == NONE else math.prod(x.shape[:-1]) / divisor
    assert_close_to_largest(value, value64.detach(), torch.float32, max(0.05 * total, 1e-30))
    assert_close_to_largest(got, want, floor=0.05 * largest)
    if label is not None:
        assert (got[label == IGNORED] == 0).all()
        if reduction == NONE:
            assert (value[label == IGNORED] == 0).all()
    assert torch.equal(x.detach(), before[0]) and torch.equal(y, before[1])
