"""What holds for every operation on a device: graphs, no waiting, problems of any size."""

import contextlib
import fcntl
import pathlib
import random
import tempfile

import pytest
import torch

from tests.client_py.ops.catalogue import OPERATIONS, name_of
from tests.client_py.ops.conftest import load
from tests.client_py.ops.problems import Source, outputs_of
from tests.client_py.ops.reference import assert_near
from tests.client_py.ops.test_every_operation import equal, flat, run, sources

each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=name_of)


def captured(problem, tensors, kernel):
    """A graph of forward and backward, and what it writes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run(problem, tensors, kernel)
    torch.cuda.current_stream().wait_stream(stream)
    # Without a history: one that is alive while the graph is captured ties it to the legacy stream.
    with torch.no_grad():
        upstream = [torch.randn_like(y) for y in outputs_of(problem.call(tensors, kernel))]
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


@pytest.mark.gpu
@each_operation
def test_runs_on_the_current_stream(operation):
    kernel = load(operation.library)
    for source in sources("cuda", [torch.float32], seeds=range(2), layouts=False):
        problem = operation.make(source, 40)
        values, fresh = problem.copy(), problem.copy()  # Of one layout: the order of sums is its.
        want = run(problem, values, kernel)
        for t in fresh:
            if t is not None and t.is_floating_point():
                t.data.zero_()
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)  # Work on another stream would read the zeros.
            for a, b in zip(fresh, values, strict=True):
                if a is not None:
                    a.data.copy_(b)
            got = run(problem, fresh, kernel)
        stream.synchronize()
        assert equal(flat(got), flat(want))


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@each_operation
def test_runs_where_its_tensors_are(operation):
    kernel = load(operation.library)
    for source in sources("cuda:1", [torch.float32], seeds=range(2)):
        problem = operation.make(source, 40)
        outputs, gradients = run(problem, problem.tensors, kernel)
        assert torch.cuda.current_device() == 0
        assert all(t.device.index == 1 for t in (*outputs, *gradients))
        want = outputs_of(problem.formula(problem.copy(torch.float64)))
        for a, b in zip(outputs, want, strict=True):
            assert_near(a.nan_to_num(), b.detach().nan_to_num(), slack=problem.slack)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["rope", "qk_norm_rope"])
@pytest.mark.parametrize("positions", [65535, 65536, 65537, 131073])
def test_the_last_of_many_positions_is_as_if_alone(name, positions):
    operation = next(o for o in OPERATIONS if o.name == name)
    source = Source(random.Random(2), "cuda", torch.float32, 16, layouts=False)
    problem = operation.make(source, positions)
    last = list(problem.tensors)
    for i in range(2):
        last[i] = last[i][:, :, -1:]
        last[i + 2] = last[i + 2][:, -1:]
    got = outputs_of(problem.call(problem.tensors, load(name)))
    want = outputs_of(problem.call(last, load(name)))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a[:, :, -1:], b, rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("examples", [65535, 65536, 65537])
def test_the_last_of_many_examples_is_as_if_alone(examples):
    x = torch.randn(examples, 8, 12, device="cuda")
    kernel = load("group_norm")
    y = torch.ops.fuseboard.group_norm(x, 4, None, None, 1e-5, kernel)
    alone = torch.ops.fuseboard.group_norm(x[-1:], 4, None, None, 1e-5, kernel)
    torch.testing.assert_close(y[-1:], alone, rtol=1e-6, atol=1e-6)


@each_operation
def test_the_last_rows_are_as_if_alone(operation, device):
    check_last_rows(operation, 70, 24, torch.float32, device)


@pytest.mark.gpu
@each_operation
@pytest.mark.parametrize("rows", [65535, 65536, 65537, 131073])
def test_the_last_of_many_rows_are_as_if_alone(operation, rows):
    check_last_rows(operation, rows, 32, torch.float32)


# 2^31 elements are 524288 rows of 4096; of 4095 columns the boundary lies within a row. 2^32: unsigned 32 bits.
@pytest.mark.gpu
@each_operation
@pytest.mark.parametrize("rows, width", [(524289, 4096), (524417, 4095), (1048577, 4096)])
def test_the_last_rows_beyond_two_to_the_31_elements_are_as_if_alone(operation, rows, width):
    with memory_for(rows * width):
        # One of modulated_rms_norm is an example, one of a packed activation both halves.
        few = last_rows_problem(operation, 2, width, torch.bfloat16, "cuda")
        per_row = few.tensors[0][0].numel()
        check_last_rows(operation, -(-rows * width // per_row), width, torch.bfloat16)


@contextlib.contextmanager
def memory_for(elements):
    """Waits for other processes' tests, beside which 2^32 elements would not fit: seven tensors are 56 GiB."""
    path = pathlib.Path(tempfile.gettempdir()) / "fuseboard-tests-of-a-gpus-memory"
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX if elements > 2**32 else fcntl.LOCK_SH)
        try:
            yield
        finally:
            torch.cuda.empty_cache()


def last_rows_problem(operation, rows, width, dtype, device):
    """A problem whose rows do not depend on each other; the same options for any number of rows."""
    for seed in range(20):
        source = Source(random.Random(seed), device, dtype, width, layouts=False)
        if operation.make(source, 2).rows:
            source = Source(random.Random(seed), device, dtype, width, layouts=False)
            return operation.make(source, rows)
    pytest.skip("its rows depend on each other")


def check_last_rows(operation, rows, width, dtype, device="cuda", last=3):
    """Rows that do not depend on each other: the last ones alone give what they give among all.

    Upstream gradients are 0 but for the last rows, so that gradients of parameters are theirs alone.
    """
    kernel = load(operation.library)
    problem = last_rows_problem(operation, rows, width, dtype, device)
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
