"""Counting the operators that the framework dispatches."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fuseboard._measure import Method
from fuseboard._operator_counts import OperatorCountSource
from fuseboard._sources import SourceError
from torch.utils._python_dispatch import TorchDispatchMode


class LoggingMode(TorchDispatchMode):
    """Somebody else's mode."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def names(counts) -> dict[str, int]:
    return {kernel.name: kernel.count for kernel in counts.kernels}


def test_counts_forward_and_backward_by_name():
    source = OperatorCountSource()
    x = torch.randn(4, 4, requires_grad=True)
    source.start()
    source.mark(0)
    torch.mm(x, x).sum().backward()
    counts = source.stop()
    assert names(counts)["aten.mm"] == 3  # One forward, two backward.
    assert counts.launches == (sum(names(counts).values()),)
    assert all(kernel.device_ns is None for kernel in counts.kernels)
    assert source.method is Method.OPERATOR_COUNT


def test_counts_per_step():
    source = OperatorCountSource()
    a = torch.ones(2)
    source.start()
    for step, calls in enumerate((1, 3, 2)):
        source.mark(step)
        for _ in range(calls):
            torch.add(a, a)
    assert source.stop().launches == (1, 3, 2)


def test_views_are_not_counted():
    source = OperatorCountSource()
    a = torch.ones(2, 3)
    source.start()
    source.mark(0)
    a.view(3, 2).t().unsqueeze(0)
    torch.add(a, a)
    assert names(source.stop()) == {"aten.add": 1}


def test_operators_without_a_tensor_are_not_counted():
    source = OperatorCountSource()
    library = torch.library.Library("fb_test_counts_state", "DEF")
    library.define("state(str[] names) -> str")
    library.impl("state", lambda names: "", "CompositeExplicitAutograd")
    a = torch.ones(2)
    source.start()
    source.mark(0)
    torch.ops.fb_test_counts_state.state(["a"])
    with torch.autograd.profiler.record_function("a range"):
        torch.add(a, a)
    assert names(source.stop()) == {"aten.add": 1}


def test_lists_of_tensors_are_counted():
    source = OperatorCountSource()
    a = torch.ones(2)
    source.start()
    source.mark(0)
    torch.cat([a, a])
    torch._foreach_add_([a, a], 1.0)
    a[torch.tensor([True, False])]
    counted = names(source.stop())
    assert {"aten.cat", "aten._foreach_add_", "aten.index"} <= set(counted)


def test_an_operator_counts_as_one_whatever_it_runs_inside():
    source = OperatorCountSource()
    library = torch.library.Library("fb_test_counts", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x.add(1).mul(2), "CPU")
    source.start()
    source.mark(0)
    torch.ops.fb_test_counts.twice(torch.ones(2))
    assert names(source.stop()) == {"aten.ones": 1, "fb_test_counts.twice": 1}


def test_nothing_is_counted_outside_the_window():
    source = OperatorCountSource()
    a = torch.ones(2)
    source.start()
    source.mark(0)
    torch.mul(a, a)
    source.stop()
    torch.add(a, a)
    source.start()
    source.mark(0)
    torch.sub(a, a)
    assert names(source.stop()) == {"aten.sub": 1}


def test_a_window_without_operators_is_an_error_not_a_zero():
    source = OperatorCountSource()
    source.start()
    source.mark(0)
    counts = source.stop()
    assert counts.error == "window holds no operator call"
    assert counts.launches == ()


def test_counting_changes_no_result():
    def step() -> torch.Tensor:
        torch.manual_seed(0)
        x = torch.randn(16, 16, requires_grad=True)
        torch.tanh(x @ x).sum().backward()
        return x.grad

    plain = step()
    source = OperatorCountSource()
    source.start()
    source.mark(0)
    counted = step()
    source.stop()
    assert torch.equal(plain, counted)


def test_an_active_dispatch_mode_makes_it_stand_down():
    with LoggingMode(), pytest.raises(SourceError, match="another dispatch mode"):
        OperatorCountSource().start()


def test_a_mode_that_is_not_left_spoils_the_window_but_not_the_program():
    source = OperatorCountSource()
    source.start()
    source.mark(0)
    other = LoggingMode()
    other.__enter__()
    assert "was entered and not left" in source.stop().error
    other.__exit__(None, None, None)
    # Ours is innermost again: the program may go on; leave it for the tests that follow.
    torch.add(torch.ones(1), 1)
    torch._C._pop_torch_dispatch_stack(None)


def test_abandoning_stops_counting():
    source = OperatorCountSource()
    source.start()
    source.abandon()
    assert source.stop().error == "no window is open"
