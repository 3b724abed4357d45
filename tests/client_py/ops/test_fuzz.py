"""Any problem of any operation against float64: thousands of them where time allows.

On the CPU hypothesis draws them: EXAMPLES of each operation, FUSEBOARD_FUZZ times as many if that is set.
On a device random seeds do, from FUSEBOARD_FUZZ_SEED on, else from the time; a failure names its seed.
"""

import os
import random
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client_py.ops.catalogue import OPERATIONS, name_of
from tests.client_py.ops.conftest import load
from tests.client_py.ops.problems import WIDE, Source, largest, outputs_of
from tests.client_py.ops.reference import assert_near, examples

EXAMPLES = 20
SEED = int(os.environ.get("FUSEBOARD_FUZZ_SEED", time.time_ns() // 1000 % 2**31))


each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=name_of)


def results_and_gradients(compute, tensors, upstream):
    """Outputs and the gradients of the inputs that want one."""
    outputs = outputs_of(compute(tensors))
    leaves = [t for t in tensors if t is not None and t.requires_grad]
    given_ = [u.to(y.dtype) for u, y in zip(upstream, outputs, strict=True)]
    return outputs, torch.autograd.grad(outputs, leaves, given_)


def check(operation, source, kernel):
    """One problem: values, gradients and their dtypes; the inputs stay as they are."""
    problem = operation.make(source, source.rng.randrange(10))
    tensors = problem.tensors
    before = [None if t is None else t.detach().clone() for t in tensors]
    upstream = [source.upstream(y) for y in outputs_of(problem.call(tensors, kernel))]
    outputs, got = results_and_gradients(lambda t: problem.call(t, kernel), tensors, upstream)
    exact = problem.copy(torch.float64)
    wide_upstream = [u.double() for u in upstream]
    outputs64, want = results_and_gradients(problem.formula, exact, wide_upstream)
    steepest = largest(*upstream) * problem.terms(tensors)
    least = [0.05] * len(outputs) + [max(0.05, steepest)] * len(got)
    for a, b, floor in zip((*outputs, *got), (*outputs64, *want), least, strict=True):
        assert torch.equal(a.isnan(), b.isnan())  # The mean of nothing is.
        coarser = max(a.dtype, source.dtype, key=lambda d: torch.finfo(d).eps)
        assert_near(a.nan_to_num(), b.nan_to_num(), coarser, problem.slack, floor)
    for gradient, leaf in zip(got, problem.leaves(), strict=True):
        assert gradient.dtype == leaf.dtype
    for a, b in zip(before, tensors, strict=True):
        assert a is None or torch.equal(a, b.detach())


@each_operation
@settings(max_examples=examples(EXAMPLES), deadline=None)
@given(rng=st.randoms(use_true_random=False), use_kernel=st.booleans())
def test_any_problem_equals_float64(operation, rng, use_kernel):
    check(operation, Source(rng), load(operation.library) if use_kernel else -1)


@pytest.mark.gpu
@each_operation
def test_any_problem_equals_float64_on_a_device(operation):
    kernel = load(operation.library)
    for seed in range(SEED, SEED + examples(EXAMPLES)):
        print(f"FUSEBOARD_FUZZ_SEED={seed}")  # The last that is printed is the one that fails.
        rng = random.Random(seed)
        width = rng.choice([None, *WIDE]) if operation.any_width else None
        check(operation, Source(rng, "cuda", width=width), kernel)
