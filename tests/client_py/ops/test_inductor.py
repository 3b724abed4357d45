"""One graph with every operation under inductor, which decides where inputs and gradients lie."""

import random

import torch
import torch._inductor.config

from tests.client_py.ops.catalogue import OPERATIONS
from tests.client_py.ops.conftest import load
from tests.client_py.ops.problems import Source, outputs_of

ROWS, WIDTH = 4, 16
# Compiles the few loops of the graph on the spot and as they stand, without what pays for many: processes,
# precompiled headers, and finding out which vector instructions the compiler knows.
QUICK = {"compile_threads": 1, "cpp_cache_precompile_headers": False, "cpp.vec_isa_ok": False}


def problems_of(device):
    """A problem of each operation, of contiguous tensors in fp32."""
    source = Source(random.Random(5), device, torch.float32, WIDTH, layouts=False)
    return [(operation, operation.make(source, ROWS)) for operation in OPERATIONS]


def is_input(tensor):
    """Whether a problem's tensor is one that inductor shall make."""
    return tensor is not None and tensor.requires_grad


@torch._inductor.config.patch(QUICK)
def test_every_operation_in_one_graph(device):
    # One compilation for all, as it takes seconds: all inputs are slices, at any offset, of one tensor, and
    # their gradients become one again. It is an operation's result: slices of what inductor's own code
    # writes would be a loop each.
    torch._dynamo.reset()
    problems = problems_of(device)
    inputs = [t for _, problem in problems for t in problem.tensors if is_input(t)]
    kernels = [load(operation.library) for operation, _ in problems]
    squared = load("relu_squared")
    sizes = [t.numel() for t in inputs]

    def run(flat):
        made = torch.ops.fuseboard.relu_squared(flat * 2, squared)
        slices = iter(zip(made.split(sizes), inputs, strict=True))
        results = []
        for (_, problem), kernel in zip(problems, kernels, strict=True):
            tensors = []
            for tensor in problem.tensors:
                if is_input(tensor):
                    part, like = next(slices)
                    tensor = part.view(like.shape)
                tensors.append(tensor)
            results += outputs_of(problem.call(tensors, kernel))
        return results

    flat = torch.cat([t.detach().flatten() for t in inputs]).requires_grad_()
    compiled = torch.compile(run, fullgraph=True, backend="inductor", dynamic=False)
    got, want = compiled(flat), run(flat)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    upstream = [torch.randn_like(y) for y in want]
    gradients = [torch.autograd.grad(results, flat, upstream) for results in (got, want)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
