"""No tensor of [rows, vocab] exists inside fused_linear_cross_entropy, whoever computes it.

On the CPU the process's peak resident set tells: each case runs in a process of its own, which first runs
a small call so that everything is loaded, then resets the kernel's high-water mark.
"""

import subprocess
import sys

import pytest
import torch

from tests.client_py.ops.conftest import ROOT, load
from tests.client_py.ops.reference import MEAN, NONE, call_linear_cross_entropy

# All logits in fp32 would be 512 MiB; a chunk is 16 MiB, dW 4 MiB.
ROWS, WIDTH, VOCAB = 2048, 16, 65536
CHUNK_BYTES = 64 * VOCAB * 4
MIB = 1 << 20

SCRIPT = """
import sys, torch
sys.path.insert(0, {root!r})
from tests.client_py.ops import conftest, test_memory

print(test_memory.peak_bytes_on_cpu({use_kernel}, {reduction}, {train}))
"""


def run(rows, kernel, reduction, train, device="cpu", ignored=0):
    hidden = torch.randn(rows, WIDTH, device=device, requires_grad=train)
    weight = torch.randn(VOCAB, WIDTH, device=device, requires_grad=train)
    target = torch.randint(0, VOCAB, (rows,), device=device)
    target[:ignored] = -100
    loss, _ = call_linear_cross_entropy(
        hidden, weight, None, target, reduction=reduction, chunk_bytes=CHUNK_BYTES, kernel=kernel
    )
    if train:
        loss.sum().backward()


def high_water_mark():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def peak_bytes_on_cpu(use_kernel, reduction, train):
    kernel = load("cross_entropy") if use_kernel else -1
    run(2, kernel, reduction, train)
    with open("/proc/self/clear_refs", "w") as marks:
        marks.write("5")
    before = resident()
    run(ROWS, kernel, reduction, train)
    return high_water_mark() - before


@pytest.mark.parametrize("use_kernel", [False, True])
@pytest.mark.parametrize("reduction", [NONE, MEAN])
@pytest.mark.parametrize("train", [False, True])
def test_peak_on_the_cpu_is_a_few_chunks(use_kernel, reduction, train):
    script = SCRIPT.format(root=str(ROOT), use_kernel=use_kernel, reduction=reduction, train=train)
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=300
    )
    # The composite's temporaries are another 3 x 24 MiB at most; GEMMs bring their own buffers.
    assert int(done.stdout.split()[-1]) < (200 * MIB)


@pytest.mark.gpu
def test_peak_on_cuda_is_the_logits_chunk_and_the_gradients():
    peaks = []
    for kernel in (load("cross_entropy"), -1):
        run(ROWS, kernel, MEAN, True, "cuda")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(ROWS, kernel, MEAN, True, "cuda")
        peaks.append(torch.cuda.max_memory_allocated() - before)
    inputs_and_gradients = 2 * (VOCAB + ROWS) * WIDTH * 4
    assert peaks[0] <= inputs_and_gradients + CHUNK_BYTES + 16 * MIB
    assert peaks[1] <= inputs_and_gradients + CHUNK_BYTES + 128 * MIB


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
