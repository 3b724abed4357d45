"""How far results and gradients are from float64, beside the plain PyTorch that they replace.

Root mean squares over seeds, in which options and shapes vary too: at most 1.05 times native's in the same
dtype, or 0.6 of a unit in the last place, which is what one rounding costs at worst, nearly.
"""

import math
import random

import pytest
import torch

from tests.client_py.ops.catalogue import OPERATIONS, name_of
from tests.client_py.ops.conftest import load
from tests.client_py.ops.problems import DTYPES, Source, outputs_of
from tests.client_py.ops.reference import (
    SUM,
    call_linear_cross_entropy,
    examples,
    linear_cross_entropy,
)

SEEDS = range(100, 100 + examples(12))
# A sum whose terms cancel has any error relative to itself, and one such seed of twelve outweighs the others: in 64
# windows of 12 seeds on a CPU, the error of selected_log_probs' bf16 gradient of the bias is 0.15 to 2.2 times native's,
# in 8 of 96 seeds 0.26 to 0.76 times. What exceeds its bound is asked again with these.
MORE_SEEDS = range(100, 100 + examples(96))
OF_NATIVE, OF_ULP = 1.05, 0.6
# A loss is one number for each seed, too few to tell 5 %; f32 whatever the dtype. An H200 adds up in f32: its
# entropy has 2.9 units, kl_div of 65,536 classes 1.4.
OF_ULP_OF_A_LOSS = {"cpu": 1.0, "cuda": 3.2}
# In fp32 the kernels add up in another order than torch and have exponentials of their own. Over 96 seeds, where that
# is more than OF_ULP: at most 1.4 times native's error on a CPU (a gradient of a bias, which adds up rows one after the
# other; most are below 1) and 1.3 on an H200, where 6 seeds of wide rows have more.
OF_NATIVE_IN_FP32 = {"cpu": 1.5, "cuda": 2.0}
# Below this a result is the rounding of 0, as the gradient of the norm of one element is.
NOTHING = 1e-12


def computed(call, tensors, upstream):
    """Outputs and gradients; nothing where there is no gradient to compare."""
    outputs = outputs_of(call(tensors))
    leaves = [t for t in tensors if t is not None and t.requires_grad]
    given = [u.to(y.dtype) for u, y in zip(upstream, outputs, strict=True)]
    gradients = torch.autograd.grad(outputs, leaves, given)
    return [*outputs, *gradients]


def squares(got, want, dtype):
    """Sums of the squares of errors and of units in the last place, relative to the result's size."""
    scale = want.square().mean().sqrt().clamp(min=1e-30)
    ulp = torch.exp2(torch.floor(torch.log2(want.abs().clamp(min=1e-30)))) * torch.finfo(dtype).eps
    return tuple((t / scale).square().mean().item() for t in (got.double() - want, ulp))


def errors_of(operation, dtype, device, kernel, width=None, rows=48, seeds=SEEDS, hidden=None):
    """By output or gradient: the squares of ours, of native's, of units in the last place."""
    totals = {}
    for seed in seeds:
        source = Source(
            random.Random(seed), device, dtype, width, layouts=False, accurate=True, hidden=hidden
        )
        problem = operation.make(source, rows)
        shapes = outputs_of(problem.call(problem.tensors, kernel))
        upstream = [source.upstream(y) for y in shapes]
        ours = computed(lambda t, p=problem: p.call(t, kernel), problem.copy(), upstream)
        native = computed(problem.formula, problem.copy(), upstream)
        want = computed(
            problem.formula, problem.copy(torch.float64), [u.double() for u in upstream]
        )
        for index, (a, b, w) in enumerate(zip(ours, native, want, strict=True)):
            if not w.numel() or not (w.isfinite().all() and b.isfinite().all()):
                continue  # Of nothing, or what native overflows in.
            if w.abs().max() < NOTHING:
                continue
            mine, ulp = squares(a, w, a.dtype)
            name = f"output {index}" if index < len(shapes) else f"gradient {index - len(shapes)}"
            total = totals.setdefault(name, [0.0, 0.0, 0.0])
            for i, value in enumerate((mine, squares(b, w, a.dtype)[0], ulp)):
                total[i] += value
    return totals


def excesses(operation, dtype, device, found):
    """The outputs and gradients that are not within their bounds, with their errors."""
    assert found
    excesses = []
    of_native = OF_NATIVE_IN_FP32[device] if dtype == torch.float32 else OF_NATIVE
    for name, total in found.items():
        ours, native, ulp = (math.sqrt(value) for value in total)
        of_ulp = OF_ULP
        if operation.is_loss and "output" in name:
            of_ulp = OF_ULP_OF_A_LOSS[device]
        if ours > max(of_native * native, of_ulp * ulp):
            excesses.append(
                f"{name}: {ours:.3g}, native {native:.3g}, unit in the last place {ulp:.3g}"
            )
    return excesses


def check_errors(operation, dtype, device, some_seeds, **sizes):
    """They are within their bounds for one of the choices of seeds."""
    kernel = load(operation.library)
    for seeds in some_seeds:
        found = errors_of(operation, dtype, device, kernel, seeds=seeds, **sizes)
        excess = excesses(operation, dtype, device, found)
        if not excess:
            return
    assert not excess


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", OPERATIONS, ids=name_of)
def test_the_error_is_no_larger_than_natives(operation, device, dtype):
    check_errors(operation, dtype, device, (SEEDS, MORE_SEEDS))


@pytest.mark.gpu
@pytest.mark.parametrize("width", [4096, 5120, 16384, 65536, 131072, 262144])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o.any_width], ids=name_of)
def test_the_error_of_wide_rows_is_no_larger_than_natives(operation, dtype, width):
    check_errors(operation, dtype, "cuda", (SEEDS[:6],), width=width, rows=16)


# The products of a model: sums of 4096 terms, of which the logits are made and the gradients of the weight.
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", [o for o in OPERATIONS if o.has_head], ids=name_of)
def test_the_error_of_wide_hidden_states_is_no_larger_than_natives(operation, dtype):
    check_errors(operation, dtype, "cuda", (SEEDS[:6], MORE_SEEDS[:24]), width=1000, hidden=4096)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_error_of_dweight_does_not_grow_with_the_number_of_chunks(device, dtype):
    kernel, rows, vocab = load("cross_entropy"), 512, 96
    squares_of = dict.fromkeys((1, 4, 16, 64), 0.0)
    for seed in range(6):
        source = Source(random.Random(seed), device, dtype, layouts=False)
        hidden, weight = source.tensor(rows, 32), source.tensor(vocab, 32, scale=0.3)
        target = torch.randint(vocab, (rows,), generator=source.generator, device=device)
        doubles = [t.detach().double().requires_grad_() for t in (hidden, weight)]
        exact, _ = linear_cross_entropy(*doubles, None, target, reduction=SUM)
        (want,) = torch.autograd.grad(exact, doubles[1])
        for chunks in squares_of:
            # The buffer's rows are padded to a multiple of 64 elements of two bytes.
            loss, _ = call_linear_cross_entropy(
                hidden, weight, None, target, reduction=SUM, dweight_dtype=2,
                chunk_bytes=rows // chunks * 128 * 2, kernel=kernel,
            )  # fmt: skip
            (got,) = torch.autograd.grad(loss, weight)
            squares_of[chunks] += (got.double() - want).square().mean().item()
    for chunks, square in squares_of.items():
        assert math.sqrt(square) <= 1.05 * math.sqrt(squares_of[1]), (chunks, squares_of)
