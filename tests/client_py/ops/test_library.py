"""Loading kernel libraries, handles, counters, and the fall-back inside an operator."""

import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import threading

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tests.client_py.ops.conftest import ROOT, kernel_path, load
from tests.client_py.ops.reference import call_cross_entropy, call_linear_cross_entropy

ops = torch.ops.fuseboard


@pytest.fixture
def build_fake(tmp_path):
    """Compiles fake_kernel.c with macros."""

    def build(stem="fake", **macros):
        path = tmp_path / f"{stem}.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", f"-I{ROOT}", "-o", path]
            + [f"-D{name}={value}" for name, value in macros.items()]
            + [pathlib.Path(__file__).with_name("fake_kernel.c")],
            check=True,
        )
        return path

    return build


def fallbacks(operation):
    return json.loads(ops.counters())[operation]["fallback"]


def test_the_same_file_gives_the_same_handle_whatever_its_name(tmp_path):
    handle = load("cross_entropy")
    link = tmp_path / "other.so"
    link.symlink_to(kernel_path("cross_entropy"))
    assert ops.load_kernel(str(link)) == handle == load("cross_entropy")
    with open(link, "rb") as file:
        assert ops.load_kernel(f"/proc/self/fd/{file.fileno()}") == handle
    assert ops.describe_kernel(handle)[0] == "cross_entropy"
    ops.prepare_kernel(handle, torch.device("cpu"))


def test_one_name_for_two_files_gives_two_handles(tmp_path, build_fake):
    name = tmp_path / "kernel.so"
    shutil.copy(build_fake("a"), name)
    first = ops.load_kernel(str(name))
    os.replace(build_fake("b", FAKE_NAME='"rms_norm"'), name)
    second = ops.load_kernel(str(name))
    assert ops.describe_kernel(first)[0] == "swiglu"
    assert ops.describe_kernel(second)[0] == "rms_norm"


def test_one_descriptor_number_for_two_files_gives_two_handles(build_fake):
    handles = []
    with open(os.devnull) as file:  # A number that nobody has, whatever this process has opened.
        number = fcntl.fcntl(file.fileno(), fcntl.F_DUPFD_CLOEXEC, 200)
    for stem, name in (("a", '"swiglu"'), ("b", '"rms_norm"')):
        path = build_fake(stem, FAKE_NAME=name)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.dup2(descriptor, number)
            handles.append(ops.load_kernel(f"/proc/self/fd/{number}"))
        finally:
            os.close(descriptor)
    os.close(number)
    assert [ops.describe_kernel(h)[0] for h in handles] == ["swiglu", "rms_norm"]


def test_threads_that_load_one_file_get_one_handle(build_fake):
    path, handles = str(build_fake()), []
    threads = [
        threading.Thread(target=lambda: handles.append(ops.load_kernel(path))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(handles) == 8 and len(set(handles)) == 1


@pytest.mark.parametrize(
    "macros, message",
    [
        ({"FAKE_ABI": 2}, "has ABI 2, want 1"),
        (
            {"FAKE_NAME": '"gelu_of_nobody"'},
            "is of operation gelu_of_nobody, which this binding does not have",
        ),
        ({"fb_get_kernel": "another_name"}, "has no symbol fb_get_kernel"),
    ],
)
def test_a_library_of_no_use_is_refused_with_the_reason(build_fake, macros, message):
    with pytest.raises(RuntimeError, match=message):
        ops.load_kernel(str(build_fake(**macros)))


def test_a_file_that_is_no_library_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="cannot be opened: No such file"):
        ops.load_kernel(str(tmp_path / "absent.so"))
    (tmp_path / "text.so").write_text("not a library")
    with pytest.raises(RuntimeError, match="cannot be mapped"):
        ops.load_kernel(str(tmp_path / "text.so"))


def test_a_wrong_handle_is_refused():
    x = torch.randn(2, 8)
    with pytest.raises(RuntimeError, match="kernel 1000000 does not exist"):
        ops.swiglu(x, x, True, 1000000)
    with pytest.raises(RuntimeError, match="is of operation cross_entropy, want swiglu"):
        ops.swiglu(x, x, True, load("cross_entropy"))


def test_a_rejected_call_runs_the_composite_and_is_counted(build_fake):
    reason = 'want cols 7, got \\"8\\"'
    handle = ops.load_kernel(str(build_fake(FAKE_REASON=f'"{reason}"')))
    gate = torch.randn(2, 8, requires_grad=True)
    out = ops.swiglu(gate, gate, True, handle)
    assert torch.equal(out, F.silu(gate) * gate)
    out.sum().backward()
    assert fallbacks("swiglu")['want cols 7, got "8"'] == 2


def test_a_launch_that_fails_raises_with_the_operators_name(build_fake, device):
    # 700: an illegal address, after which a device is of no use. 999: unknown.
    for error in (700, 999):
        handle = ops.load_kernel(str(build_fake(f"fake{error}", FAKE_ERROR=error)))
        x = torch.randn(2, 8, device=device)
        before = fallbacks("swiglu")
        with pytest.raises(RuntimeError, match="(?is)error.*swiglu"):
            ops.swiglu(x, x, True, handle)
        assert fallbacks("swiglu") == before


def test_without_memory_for_a_workspace_the_composite_runs(build_fake, device):
    reason = "no memory for the kernel's workspace"
    before = fallbacks("swiglu").get(reason, 0)
    handle = ops.load_kernel(str(build_fake(FAKE_WORKSPACE="(1ull << 60)")))
    gate = torch.randn(2, 8, device=device, requires_grad=True)
    out = ops.swiglu(gate, gate, True, handle)
    torch.testing.assert_close(out, F.silu(gate) * gate)
    out.sum().backward()
    assert gate.grad.any()
    assert fallbacks("swiglu")[reason] == before + 2


@pytest.mark.gpu
def test_a_launch_that_lacks_resources_runs_the_composite(build_fake):
    reason = "the launch failed for lack of resources"
    before = fallbacks("swiglu").get(reason, 0)
    for number, error in enumerate((2, 9, 701)):
        handle = ops.load_kernel(str(build_fake(f"fake{number}", FAKE_ERROR=error)))
        gate = torch.randn(2, 8, device="cuda")
        torch.testing.assert_close(ops.swiglu(gate, gate, True, handle), F.silu(gate) * gate)
    assert fallbacks("swiglu").get(reason, 0) == before + 3, fallbacks("swiglu")


def test_reasons_are_bounded_in_number(build_fake):
    before = fallbacks("swiglu").get("other", 0)
    x = torch.randn(1, 8)
    for number in range(70):
        path = build_fake(f"r{number}", FAKE_REASON=f'"reason {number}"')
        ops.swiglu(x, x, True, ops.load_kernel(str(path)))
    assert fallbacks("swiglu")["other"] > before
    assert len(fallbacks("swiglu")) <= 65


def test_fused_calls_are_counted_by_phase_and_not_by_chunk():
    before = json.loads(ops.counters())["fused_linear_cross_entropy"]["fused"]
    hidden = torch.randn(8, 4, requires_grad=True)
    loss, _ = call_linear_cross_entropy(
        hidden,
        torch.randn(9, 4),
        None,
        torch.arange(8),
        chunk_bytes=1,
        kernel=load("cross_entropy"),
    )
    loss.backward()
    assert json.loads(ops.counters())["fused_linear_cross_entropy"]["fused"] == before + 1


def test_recompute_of_a_checkpoint_may_run_without_the_kernel_of_its_forward():
    logits = torch.randn(6, 32, requires_grad=True)
    target = torch.tensor([1, -100, 3, 4, 5, 31])
    results = []
    for handles in ((-1, -1), (load("cross_entropy"), -1), (-1, load("cross_entropy"))):
        remaining = list(handles)

        def loss(x):
            return call_cross_entropy(x * 2, target, kernel=remaining.pop(0))[0]  # noqa: B023

        (gradient,) = torch.autograd.grad(checkpoint(loss, logits, use_reentrant=False), logits)
        assert not remaining
        results.append(gradient)
    for gradient in results[1:]:
        torch.testing.assert_close(gradient, results[0], rtol=1e-5, atol=1e-7)
