"""What is true of kl_div, jsd and tvd alike: checks that their test files run with their own function.

A `RowLoss` has the elements of the loss in plain PyTorch, in whatever dtype it is given, and how to call the
operator. Reductions: 0 none, 1 mean, 2 sum, 3 batchmean.
"""

import dataclasses
import typing

import torch

from tests.client_py.ops.reference import assert_near

NONE, MEAN, SUM, BATCHMEAN = 0, 1, 2, 3
REDUCTIONS = [NONE, MEAN, SUM, BATCHMEAN]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
IGNORED = -100


@dataclasses.dataclass(frozen=True)
class RowLoss:
    """An operator with its options."""

    call: typing.Callable  # call(input, target, label, reduction, kernel)
    elements: typing.Callable  # elements(input, target)
    of_probabilities: tuple  # Whether input and target are, or else log-probabilities.

    def distribution(self, index, shape, dtype=torch.float32, device="cpu"):
        """A random input (index 0) or target (1)."""
        logits = torch.randn(shape, device=device, dtype=torch.float64).mul_(2)
        softmax = torch.softmax if self.of_probabilities[index] else torch.log_softmax
        return softmax(logits, -1).to(dtype)

    def pair(self, shape, dtype=torch.float32, device="cpu"):
        """A leaf and its target."""
        return (
            self.distribution(0, shape, dtype, device).requires_grad_(),
            self.distribution(1, shape, dtype, device),
        )

    def reference(self, x, y, label, reduction):
        """The loss by its formula; examples are rows that count, without labels all of size(0)."""
        losses = self.elements(x, y)
        if label is None:
            rows, count = x.shape[0], x.numel()
        else:
            valid = label != IGNORED
            losses = torch.where(valid.unsqueeze(-1), losses, torch.zeros_like(losses))
            rows = valid.sum().item()
            count = rows * x.shape[-1]
        if reduction == NONE:
            return losses
        total = losses.sum()
        if reduction == SUM:
            return total
        divisor = count if reduction == MEAN else rows
        if label is not None and divisor == 0:
            return total * 0
        return total / divisor


def labels(rows, device="cpu", ignored=0.4):
    """Labels of which some are ignored, the first in any case."""
    label = torch.randint(0, 50, (rows,), device=device)
    label[torch.rand(rows, device=device) < ignored] = IGNORED
    label[:1] = IGNORED
    return label


def compare(loss, x, y, kernel, reduction, label=None, upstream=1.7):
    """Loss and gradient against float64 on the same inputs."""
    before = x.detach().clone(), y.clone()
    value = loss.call(x, y, label, reduction, kernel)
    (got,) = torch.autograd.grad(value.sum() * upstream, x)
    x64 = x.detach().double().requires_grad_()
    value64 = loss.reference(x64, y.double(), label, reduction)
    (want,) = torch.autograd.grad(value64.sum() * upstream, x64)
    assert value.dtype == (torch.float64 if x.dtype == torch.float64 else torch.float32)
    assert got.dtype == x.dtype
    assert value.shape == (x.shape if reduction == NONE else ())
    # The loss is f32 whatever the inputs are.
    assert_near(value, value64, torch.float32)
    assert_near(got, want)
    if label is not None:
        assert (got[label == IGNORED] == 0).all()
        if reduction == NONE:
            assert (value[label == IGNORED] == 0).all()
    assert torch.equal(x.detach(), before[0]) and torch.equal(y, before[1])


def check_upstream_gradients(loss, kernel, device):
    """Gradients are scaled as the upstream gradient is, kept for a second pass, and never shared."""
    for reduction in REDUCTIONS:
        x, y = loss.pair((5, 33), device=device)
        value = loss.call(x, y, None, reduction, kernel).sum()
        (one,) = torch.autograd.grad(value, x, retain_graph=True)
        (two,) = torch.autograd.grad(value * 2, x, retain_graph=True)
        (again,) = torch.autograd.grad(value, x)
        torch.testing.assert_close(two, 2 * one, rtol=1e-6, atol=0)
        assert torch.equal(one, again)


def check_element_gradients(loss, kernel, device):
    """Without a reduction: any layout of the upstream gradient, also one number for each row."""
    x, y = loss.pair((5, 33), device=device)
    losses = loss.call(x, y, None, NONE, kernel)
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
        assert_near(got, want)


def check_layouts(loss, kernel, device):
    """Padded, transposed, expanded and stepped inputs need no copy by the caller."""
    padded = [loss.distribution(i, (6, 40), device=device)[:, 3:36] for i in (0, 1)]
    transposed = [loss.distribution(i, (33, 6), device=device).t() for i in (0, 1)]
    expanded = [loss.distribution(i, (1, 33), device=device).expand(6, 33) for i in (0, 1)]
    stepped = [loss.distribution(i, (12, 33), device=device)[::2] for i in (0, 1)]
    for x, y in (padded, transposed, expanded, stepped):
        for reduction in (NONE, BATCHMEAN):
            compare(loss, x.detach().requires_grad_(), y, kernel, reduction)


def check_ignored_rows_are_unread(loss, kernel, device):
    """NaN in a row whose label is ignored changes nothing."""
    for dtype in DTYPES:
        x, y = loss.pair((6, 40), dtype, device)
        label = labels(6, device)
        for reduction in REDUCTIONS:
            value = loss.call(x, y, label, reduction, kernel)
            (gradient,) = torch.autograd.grad(value.sum(), x)
            nan_x, nan_y = x.detach().clone(), y.clone()
            nan_x[label == IGNORED] = nan_y[label == IGNORED] = float("nan")
            nan_x.requires_grad_()
            nan_value = loss.call(nan_x, nan_y, label, reduction, kernel)
            (nan_gradient,) = torch.autograd.grad(nan_value.sum(), nan_x)
            assert torch.equal(value, nan_value) and torch.equal(gradient, nan_gradient)


def check_all_ignored(loss, kernel, device):
    """Loss and gradient are exactly 0."""
    label = torch.full((4,), IGNORED, device=device)
    for dtype in DTYPES:
        for reduction in REDUCTIONS:
            x, y = loss.pair((4, 16), dtype, device)
            value = loss.call(x, y, label, reduction, kernel)
            (gradient,) = torch.autograd.grad(value.sum(), x)
            assert (value == 0).all() and (gradient == 0).all()


def check_value_does_not_depend_on_requires_grad(loss, kernel, device):
    """With and without a gradient, and in inference mode."""
    x, y = (t.detach() for t in loss.pair((4, 30), device=device))
    want = loss.call(x, y, None, MEAN, kernel)
    with torch.inference_mode():
        assert torch.equal(loss.call(x, y, None, MEAN, kernel), want)
    got = loss.call(x.requires_grad_(), y, None, MEAN, kernel)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=0)


def check_gradcheck(loss, kernel):
    """Of the composite in float64."""
    x, y = loss.pair((3, 5), torch.float64)
    for reduction in REDUCTIONS:
        assert torch.autograd.gradcheck(lambda a: loss.call(a, y, None, reduction, kernel), x)  # noqa: B023


def check_compiles(loss, kernel, device, backend, dynamic, row_counts=(4, 5)):
    """Without a graph break, with the values and gradients of eager."""
    torch._dynamo.reset()

    def total(x, y):
        value = loss.call(x * 1, y, None, BATCHMEAN, kernel) * 3
        return value + loss.call(x, y, None, NONE, kernel).sum()

    compiled = torch.compile(total, fullgraph=True, backend=backend, dynamic=dynamic)
    for rows in row_counts:
        x, y = loss.pair((rows, 13), device=device)
        got, want = compiled(x, y), total(x, y)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            torch.autograd.grad(got * 2, x), torch.autograd.grad(want * 2, x), rtol=1e-4, atol=1e-6
        )
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, y), want.detach(), rtol=1e-5, atol=1e-6)


def check_compiled_autograd(loss):
    """Both kinds of node, two of each in a graph."""
    for dtype, reduction in ((torch.float32, MEAN), (torch.float16, MEAN), (torch.float32, NONE)):
        torch._dynamo.reset()
        x, y = loss.pair((4, 13), dtype)

        def total():
            first = loss.call(x, y, None, reduction, -1).sum()  # noqa: B023
            return first + loss.call(x * 2, y, None, reduction, -1).sum()  # noqa: B023

        (want,) = torch.autograd.grad(total(), x)
        value = total()
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
            value.backward()
        torch.testing.assert_close(x.grad, want)


def check_second_derivative_raises(loss, name):
    """With the operator's name, whichever node made the first."""
    for reduction in (NONE, MEAN):
        x, y = loss.pair((2, 8))
        value = loss.call(x, y, None, reduction, -1).sum()
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        try:
            gradient.square().sum().backward()
        except RuntimeError as error:
            assert name in str(error)
        else:
            raise AssertionError("no error")


def check_captured_graph(loss, kernel):
    """A CUDA graph gives for new data what eager gives."""
    x, y = loss.pair((8, 1000), device="cuda")

    def run():
        value = loss.call(x, y, None, BATCHMEAN, kernel) * 3
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
    for _ in range(2):
        x.data.copy_(loss.distribution(0, x.shape, device="cuda"))
        y.copy_(loss.distribution(1, y.shape, device="cuda"))
        graph.replay()
        torch.testing.assert_close(captured, run())


def check_nothing_waits_for_the_device(loss, kernel, label):
    """No host synchronisation in either pass."""
    x, y = loss.pair((8, 1000), device="cuda")
    for reduction in REDUCTIONS:
        torch.autograd.grad(loss.call(x, y, label, reduction, kernel).sum(), x)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            torch.autograd.grad(loss.call(x, y, label, reduction, kernel).sum(), x)
        finally:
            torch.cuda.set_sync_debug_mode("default")
