"""What holds for every operation on a device: graphs, no waiting, problems of any size."""

import random

import pytest
import torch

from tests.client_py.ops.catalogue import OPERATIONS, name_of
from tests.client_py.ops.conftest import load
from tests.client_py.ops.problems import Source, outputs_of
from tests.client_py.ops.test_every_operation import run, sources

each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=name_of)


def captured(problem, tensors, kernel):
    """A graph of forward and backward, and what it writes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run(problem, tensors, kernel)
    torch.cuda.current_stream().wait_stream(stream)
    outputs = outputs_of(problem.call(tensors, kernel))
    upstream = [torch.randn_like(y) for y in outputs]
    leaves = [t for t in tensors if t is not None and t.requires_grad]

    def call():
        results = outputs_of(problem.call(tensors, kernel))
        return [*results, *torch.autograd.grad(results, leaves, upstream)]

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        written = call()
    return graph, written, call


@pytest.mark.gpu
@each_operation
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_captured_graph_gives_what_eager_gives_for_new_inputs(operation, dtype):
    kernel = load(operation.library)
    # A chunk holds other rows when none may be left out: its sums are then rounded elsewhere.
    rtol, atol = (1e-4, 1e-5) if dtype == torch.float32 else (2e-2, 1e-3)
    for source in sources("cuda", [dtype], layouts=False, accurate=True):
        problem = operation.make(source, 40)
        tensors = problem.copy()
        graph, written, call = captured(problem, tensors, kernel)
        for step in range(2):
            for t in tensors:
                if t is not None and t.is_floating_point():
                    t.data.copy_(t.data.roll(step + 1, 0))
            graph.replay()
            torch.testing.assert_close(written, call(), rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.gpu
@each_operation
def test_nothing_waits_for_the_device(operation):
    kernel = load(operation.library)
    for source in sources("cuda"):
        problem = operation.make(source, 40)
        run(problem, problem.tensors, kernel)
        outputs = outputs_of(problem.call(problem.tensors, kernel))
        upstream = [torch.randn_like(y) for y in outputs]
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            outputs = outputs_of(problem.call(problem.tensors, kernel))
            torch.autograd.grad(outputs, problem.leaves(), upstream)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@each_operation
def test_the_last_rows_are_as_if_alone(operation, device):
    check_last_rows(operation, 70, 24, torch.float32, device)


@pytest.mark.gpu
@each_operation
@pytest.mark.parametrize("rows", [65535, 65536, 65537, 131073])
def test_the_last_of_many_rows_are_as_if_alone(operation, rows):
    check_last_rows(operation, rows, 32, torch.float32)


# 2^31 elements are 524288 rows of 4096; of 4095 columns the boundary lies within a row.
@pytest.mark.gpu
@each_operation
@pytest.mark.parametrize("rows, width", [(524289, 4096), (524417, 4095)])
def test_the_last_rows_beyond_two_to_the_31_elements_are_as_if_alone(operation, rows, width):
    # An example of modulated_rms_norm has two rows at least.
    rows = rows // 2 + 1 if operation.name == "modulated_rms_norm" else rows
    check_last_rows(operation, rows, width, torch.bfloat16)


def check_last_rows(operation, rows, width, dtype, device="cuda", last=3):
    """Rows that do not depend on each other: the last ones alone give what they give among all.

    Upstream gradients are 0 but for the last rows, so that gradients of parameters are theirs alone.
    """
    kernel = load(operation.library)
    for seed in range(20):
        source = Source(random.Random(seed), device, dtype, width, layouts=False)
        problem = operation.make(source, 2)
        if problem.rows:
            break
    else:
        pytest.skip("its rows depend on each other")
    source = Source(random.Random(seed), device, dtype, width, layouts=False)
    problem = operation.make(source, rows)
    tensors = problem.tensors
    few = [
        t[-last:].detach().clone().requires_grad_(t.requires_grad) if i in problem.rows else t
        for i, t in enumerate(tensors)
    ]
    outputs = outputs_of(problem.call(tensors, kernel))
    want = outputs_of(problem.call(few, kernel))
    upstream = [torch.randn_like(y) for y in want]
    whole = []
    for y, dy in zip(outputs, upstream, strict=True):
        whole.append(torch.zeros_like(y))
        whole[-1][-last:] = dy
    gradients = torch.autograd.grad(outputs, problem.leaves(), whole)
    few_leaves = [t for t in few if t is not None and t.requires_grad]
    few_gradients = torch.autograd.grad(want, few_leaves, upstream)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for a, b in zip(outputs, want, strict=True):
        torch.testing.assert_close(a[-last:], b, rtol=tolerance, atol=tolerance)
    for a, b, leaf in zip(gradients, few_gradients, problem.leaves(), strict=True):
        is_row = leaf.shape[:1] == (rows,)
        torch.testing.assert_close(a[-last:] if is_row else a, b, rtol=tolerance, atol=tolerance)
        if is_row:
            assert not a[:-last].any()
