"""When a plan may be switched: before the forward after an optimizer step, and at no other time."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import weakref

import pytest

torch = pytest.importorskip("torch")

from fuseboard._steps import StepBoundary
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    """A root that may be hindered, and may call itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.other = nn.Linear(3, 3)
        self.fail = False

    def forward(self, x: torch.Tensor, again: bool = False) -> torch.Tensor:
        if self.fail:
            raise ValueError("bad batch")
        y = self.other(self.linear(x))
        return self(y) if again else y


class Watch:
    """Records the boundaries of a model."""

    def __init__(self, model: nn.Module) -> None:
        self.seen: list[int] = []
        self.boundary = StepBoundary(model, self.seen.append)


@pytest.fixture
def net() -> Net:
    return Net()


def backward(model: nn.Module, **kwargs: bool) -> None:
    model(torch.ones(2, 3), **kwargs).sum().backward()


def test_boundary_comes_before_the_first_forward_and_after_each_optimizer_step(net: Net) -> None:
    watch = Watch(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    assert watch.seen == []
    for _ in range(3):
        backward(net)
        optimizer.step()
    assert watch.seen == [0, 1, 2] and watch.boundary.step == 3


def test_accumulation_and_evaluation_do_not_split_a_step(net: Net) -> None:
    watch = Watch(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        for _ in range(3):
            backward(net)
        optimizer.step()
        with torch.no_grad():
            net(torch.ones(1, 3))
            net(torch.ones(1, 3))
    assert watch.seen == [0, 1, 2]


def test_root_that_calls_itself_is_switched_once(net: Net) -> None:
    watch = Watch(net)
    backward(net, again=True)
    assert watch.seen == [0]


def test_several_optimizers_of_one_model_make_one_step(net: Net) -> None:
    watch = Watch(net)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (net.linear, net.other)]
    for _ in range(2):
        backward(net)
        for optimizer in optimizers:
            optimizer.step()
    backward(net)
    assert watch.seen == [0, 1, 2] and watch.boundary.step == 2


def test_optimizer_of_another_model_ends_nothing(net: Net) -> None:
    other = Net()
    watch, watch_other = Watch(net), Watch(other)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(2):
        backward(net)
        backward(other)
        optimizer.step()
    assert watch.seen == [0] and watch_other.seen == [0, 1]


def test_optimizer_that_steps_inside_the_backward_does_not_split_the_step(net: Net) -> None:
    watch = Watch(net)
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}
    for parameter, optimizer in optimizers.items():
        parameter.register_post_accumulate_grad_hook(lambda _, o=optimizer: o.step())
    for _ in range(3):
        backward(net)
    assert watch.seen == [0, 1, 2]


def test_root_forward_inside_a_backward_waits(net: Net) -> None:
    """A checkpoint around the root recomputes it in the backward, where an optimizer has stepped."""
    watch = Watch(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.ones(2, 3, requires_grad=True)
    y = checkpoint(net, x, use_reentrant=False)
    y.register_hook(lambda grad: optimizer.step())
    y.sum().backward()
    assert watch.seen == [0]
    backward(net)
    assert watch.seen == [0, 1]


def test_skipped_optimizer_step_of_a_gradient_scaler_ends_nothing(net: Net) -> None:
    watch = Watch(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for scale in (float("inf"), 1.0):
        scaler.scale(net(torch.ones(2, 3)).sum() * scale).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    backward(net)
    assert watch.seen == [0, 1] and watch.boundary.step == 1


def test_exception_in_a_forward_changes_nothing(net: Net) -> None:
    watch = Watch(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.fail = True
    with pytest.raises(ValueError, match="bad batch"):
        backward(net)
    net.fail = False
    backward(net)
    optimizer.step()
    backward(net)
    assert watch.seen == [0, 1]


def test_mark_ends_a_step_at_once_and_optimizers_count_no_more(net: Net) -> None:
    watch = Watch(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        backward(net)
        optimizer.step()
        watch.boundary.mark()
    assert watch.boundary.step == 3
    assert watch.seen == [0, 1, 2, 3]


def test_error_of_the_callback_does_not_reach_training(
    net: Net, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(step: int) -> None:
        raise RuntimeError("no")

    boundary = StepBoundary(net, fail)
    with caplog.at_level(logging.ERROR, "fuseboard"):
        backward(net)
    assert "switching before step 0 failed" in caplog.text
    boundary.close()


def test_close_removes_every_hook(net: Net) -> None:
    from torch.optim import optimizer as torch_optimizer

    before = dict(torch_optimizer._global_optimizer_post_hooks)
    watch = Watch(net)
    watch.boundary.close()
    watch.boundary.close()
    backward(net)
    assert watch.seen == [] and not net._forward_pre_hooks
    assert dict(torch_optimizer._global_optimizer_post_hooks) == before


def test_model_is_freed_without_the_garbage_collector_and_takes_its_hooks_along() -> None:
    from torch.optim import optimizer as torch_optimizer

    before = len(torch_optimizer._global_optimizer_post_hooks)
    model = Net()
    watch = Watch(model)
    reference = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert reference() is None
    finally:
        gc.enable()
    assert len(torch_optimizer._global_optimizer_post_hooks) == before
    del watch


def test_close_within_a_step_does_not_disturb_the_hooks_of_others(net: Net) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    ran = []
    watch = Watch(net)
    handles = [
        register_optimizer_step_post_hook(lambda *_: watch.boundary.close()),
        register_optimizer_step_post_hook(lambda *_: ran.append(True)),
    ]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    backward(net)
    optimizer.step()
    for handle in handles:
        handle.remove()
    assert ran == [True]


def test_copy_and_pickle_of_the_model_are_not_watched(net: Net) -> None:
    watch = Watch(net)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        backward(twin)
    assert watch.seen == []


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("how", ["wrapped", "in_place", "whole_step"])
def test_compiled_models_still_reach_their_boundaries(net: Net, backend: str, how: str) -> None:
    torch._dynamo.reset()
    watch = Watch(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    run = net
    if how == "wrapped":
        run = torch.compile(net, backend=backend, fullgraph=True)
    elif how == "in_place":
        net.compile(backend=backend, fullgraph=True)
    else:
        run = torch.compile(lambda x: net(x), backend=backend, fullgraph=True)
    for _ in range(4):
        backward(run)
        optimizer.step()
    assert watch.boundary.step == 4
    assert watch.seen in ([0, 1, 2, 3], [2, 3, 4])  # Behind the step where the forward is traced.
