"""No tensor of [rows, vocab] exists inside the losses of a linear layer, whoever computes them.

On the CPU the peak resident set of a process of their own tells: each case first runs a small call so that
everything is loaded, then resets the kernel's high-water mark.
"""

import functools
import itertools
import json
import os
import subprocess
import sys

import pytest
import torch

from tests.client_py.ops.conftest import ROOT, load
from tests.client_py.ops.linear_jsd import call_linear_jsd
from tests.client_py.ops.reference import (
    MEAN,
    NONE,
    call_linear_cross_entropy,
    call_scaled_cross_entropy,
    call_selected_log_probs,
)

# All logits in fp32 would be 512 MiB, on the CPU 256; a chunk is 16 MiB, dW 4 MiB.
ROWS, CPU_ROWS, WIDTH, VOCAB = 2048, 1024, 16, 65536
CHUNK_BYTES = 64 * VOCAB * 4
MIB = 1 << 20

SCRIPT = """
import sys, torch
sys.path.insert(0, {root!r})
from tests.client_py.ops import conftest, test_memory

test_memory.print_peaks()
"""


LIBRARY_OF = {
    "mean": "cross_entropy",
    "none": "cross_entropy",
    "log_probs": "cross_entropy",
    "entropy": "cross_entropy",
    "jsd": "jsd",
}


def loss_of(case, hidden, weight, target, kernel):
    """A scalar of one of the losses."""
    options = {"chunk_bytes": CHUNK_BYTES, "kernel": kernel}
    if case == "log_probs":
        return call_selected_log_probs(hidden, weight, None, target, **options).sum()
    if case == "entropy":
        nll, entropy = call_scaled_cross_entropy(hidden, weight, None, target, **options)
        return (nll - entropy).sum()
    if case == "jsd":
        teacher = (hidden.detach().flip(0), weight.detach(), None)
        return call_linear_jsd((hidden, weight, None), teacher, target, **options)
    reduction = {"mean": MEAN, "none": NONE}[case]
    loss, _ = call_linear_cross_entropy(hidden, weight, None, target, reduction=reduction, **options)  # fmt: skip
    return loss.sum()


def run(rows, kernel, case, train, device="cpu", ignored=0):
    hidden = torch.randn(rows, WIDTH, device=device, requires_grad=train)
    weight = torch.randn(VOCAB, WIDTH, device=device, requires_grad=train)
    target = torch.randint(0, VOCAB, (rows,), device=device)
    target[:ignored] = -100
    loss = loss_of(case, hidden, weight, target, kernel)
    if train:
        loss.backward()


def high_water_mark():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def peak_bytes_on_cpu(case, use_kernel, train):
    kernel = load(LIBRARY_OF[case]) if use_kernel else -1
    run(2, kernel, case, train)
    with open("/proc/self/clear_refs", "w") as marks:
        marks.write("5")
    before = resident()
    run(CPU_ROWS, kernel, case, train)
    return high_water_mark() - before


CASES = list(itertools.product(LIBRARY_OF, [False, True], [False, True]))


def print_peaks():
    """Of all cases, in their order."""
    print(json.dumps([peak_bytes_on_cpu(*case) for case in CASES]))


@functools.cache
def peaks():
    """The peak of each case."""
    # What is freed goes back at once, or the next case would have it without a new peak.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(MIB)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(root=str(ROOT))],
        check=True, capture_output=True, text=True, timeout=600, env=environment,
    )  # fmt: skip
    return dict(zip(CASES, json.loads(done.stdout.splitlines()[-1]), strict=True))


# The composite's temporaries are another 3 x 24 MiB at most, 4 x 24 with the gradient of an entropy; GEMMs
# bring their own buffers. jsd has two logits buffers in its budget, and beside them the rows that fit one
# chunk here in fp32 a few times.
MOST_MIB = {"mean": 200, "none": 200, "log_probs": 200, "entropy": 220, "jsd": 220}


@pytest.mark.parametrize("case, use_kernel, train", CASES)
def test_peak_on_the_cpu_is_a_few_chunks(case, use_kernel, train):
    assert peaks()[case, use_kernel, train] < MOST_MIB[case] * MIB


# Beside inputs, gradients and the budget: with the library, and with the composite.
EXTRA_MIB = {"mean": (16, 128), "none": (16, 128), "log_probs": (16, 128),
             "entropy": (16, 144), "jsd": (160, 224)}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("case", LIBRARY_OF)
def test_peak_on_cuda_is_the_logits_chunk_and_the_gradients(case):
    peaks = []
    for kernel in (load(LIBRARY_OF[case]), -1):
        run(ROWS, kernel, case, True, "cuda")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(ROWS, kernel, case, True, "cuda")
        peaks.append(torch.cuda.max_memory_allocated() - before)
    inputs_and_gradients = 2 * (VOCAB + ROWS) * WIDTH * 4
    for peak, extra in zip(peaks, EXTRA_MIB[case], strict=True):
        assert peak <= inputs_and_gradients + CHUNK_BYTES + extra * MIB


@pytest.mark.gpu
@pytest.mark.parametrize("dweight_dtype, most_gib", [(1, 1.7), (2, 3.1)])
def test_peak_on_cuda_at_the_size_of_llama_3(dweight_dtype, most_gib):
    hidden = torch.randn(8192, 4096, device="cuda").bfloat16().requires_grad_()
    weight = torch.randn(128256, 4096, device="cuda").bfloat16().requires_grad_()
    target = torch.randint(0, 128256, (8192,), device="cuda")
    peaks = []
    for kernel in (load("cross_entropy"), -1):
        hidden.grad = weight.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        loss, _ = call_linear_cross_entropy(
            hidden, weight, None, target, dweight_dtype=dweight_dtype, kernel=kernel
        )
        loss.backward()
        peaks.append((torch.cuda.max_memory_allocated() - before) / 2**30)
    assert peaks[0] <= most_gib
    assert peaks[1] <= 1.1 * peaks[0]
