"""What only a device can show: graphs, streams, threads, other devices, waiting, and large problems."""

import math
import threading

import pytest
import torch

from tests.client_py.ops.conftest import load
from tests.client_py.ops.linear_jsd import call_linear_jsd
from tests.client_py.ops.reference import (
    NONE,
    SUM,
    assert_near,
    call_cross_entropy,
    call_linear_cross_entropy,
    call_qk_norm_rope,
    call_rms_norm,
    call_scaled_cross_entropy,
    call_selected_log_probs,
    cross_entropy,
    linear_cross_entropy,
)
from tests.client_py.ops.row_losses import jsd, kl_div, tvd

pytestmark = pytest.mark.gpu
ROWS, WIDTH, VOCAB = 48, 64, 1000


def leaf(*shape, device="cuda"):
    return torch.randn(*shape, device=device, requires_grad=True)


def cases(device="cuda"):
    """name, function of the inputs to a scalar, inputs, target or None."""
    target = torch.randint(0, VOCAB, (ROWS,), device=device)
    target[::3] = -100
    x, gate, norm = leaf(ROWS, WIDTH, device=device), leaf(ROWS, WIDTH, device=device), leaf(WIDTH, device=device)  # fmt: skip
    logits, head = leaf(ROWS, VOCAB, device=device), leaf(VOCAB, WIDTH, device=device)
    rms, swiglu, loss = load("rms_norm"), load("swiglu"), load("cross_entropy")
    geglu, modulated = load("geglu"), load("modulated_rms_norm")
    examples = leaf(4, ROWS // 4, WIDTH, device=device)
    scale, shift = leaf(4, WIDTH, device=device), leaf(4, WIDTH, device=device)
    group_norm = load("group_norm")
    bias = leaf(WIDTH, device=device)
    images = {f"group_norm_of_{n}x{n}": leaf(3, WIDTH, n, n, device=device) for n in (8, 7, 64)}
    gpt_oss = {"alpha": 1.702, "limit": 1.5, "up_offset": 1.0}
    ops = torch.ops.fuseboard
    # As a projection's views, with positions that no tile divides.
    q, k = leaf(2, 37, 6, WIDTH, device=device), leaf(2, 37, 2, WIDTH, device=device)
    cos, sin = torch.randn(2, 1, 37, WIDTH, device=device)

    def rotated(all_heads):
        def function(a, b, v, w):
            outputs = call_qk_norm_rope(
                a.transpose(1, 2), b.transpose(1, 2), v, w, cos, sin, all_heads=all_heads,
                kernel=load("qk_norm_rope"),
            )  # fmt: skip
            return sum(y.square().sum() for y in outputs)

        sizes = (6 * WIDTH, 2 * WIDTH) if all_heads else (WIDTH, WIDTH)
        return function, (q, k, *(leaf(n, device=device) for n in sizes)), None

    return {
        "rms_norm": (lambda a, w: call_rms_norm(a, w, kernel=rms).square().sum(), (x, norm), None),
        "swiglu": (
            lambda a, b: ops.swiglu(a, b, True, swiglu).square().sum(),
            (x, gate),
            None,
        ),
        "swiglu_options": (
            lambda a, b: ops.swiglu(a, b, True, swiglu, **gpt_oss).square().sum(),
            (x, gate),
            None,
        ),
        "swiglu_packed": (
            lambda a: ops.swiglu_packed(a, False, True, swiglu).square().sum(),
            (x,),
            None,
        ),
        "swiglu_interleaved": (
            lambda a: ops.swiglu_packed(a, True, True, swiglu, **gpt_oss).square().sum(),
            (x,),
            None,
        ),
        "geglu_packed": (
            lambda a: ops.geglu_packed(a, False, True, True, geglu).square().sum(),
            (x,),
            None,
        ),
        "modulated_rms_norm": (
            lambda a, w, s, t: (
                ops.modulated_rms_norm(a, w, s, t, 1e-6, 0.0, 0, modulated).square().sum()
            ),
            (examples, norm, scale, shift),
            None,
        ),
        **{
            name: (
                lambda a, w, b: ops.group_norm(a, 4, w, b, 1e-5, group_norm).square().sum(),
                (image, norm, bias),
                None,
            )
            for name, image in images.items()
        },
        "cross_entropy": (
            lambda a: call_cross_entropy(a, target, kernel=loss)[0] * 3,
            (logits,),
            target,
        ),
        "fused_linear_cross_entropy": (
            lambda a, w: call_linear_cross_entropy(a, w, None, target, kernel=loss)[0] * 3,
            (x, head),
            target,
        ),
        "qk_norm_rope": rotated(all_heads=False),
        "qk_norm_rope_of_all_heads": rotated(all_heads=True),
        **linear_loss_cases(x, head, target, loss),
        **row_loss_cases(target, device),
    }


def linear_loss_cases(x, head, target, cross_entropy_kernel):
    """The same of the losses of a linear layer's rows."""
    options = {"temperature": 0.7, "chunk_bytes": 16 * VOCAB * 4, "kernel": cross_entropy_kernel}
    bias = leaf(VOCAB, device=x.device)
    generator = torch.Generator(x.device).manual_seed(5)
    slope = torch.randn(ROWS, device=x.device, generator=generator)
    teacher = (
        torch.randn(ROWS, 32, device=x.device, generator=generator),
        torch.randn(VOCAB, 32, device=x.device, generator=generator) * 0.2,
        None,
    )

    def log_probs(a, w, b):
        return (call_selected_log_probs(a, w, b, target, **options) * slope).mean()

    def with_entropy(a, w, b):
        nll, entropy = call_scaled_cross_entropy(a, w, b, target, **options)
        return (nll * slope - 0.1 * entropy).mean()

    def divergence(a, w, b):
        jsd_options = options | {"kernel": load("jsd")}
        return call_linear_jsd((a, w, b), teacher, target, beta=0.3, **jsd_options) * 3

    return {
        "selected_log_probs": (log_probs, (x, head, bias), target),
        "fused_linear_scaled_cross_entropy": (with_entropy, (x, head, bias), target),
        "fused_linear_jsd": (divergence, (x, head, bias), target),
    }


def row_loss_cases(target, device):
    """The same of the losses of two matrices; reduction 3 is batchmean."""

    def case(loss):
        y = loss.distribution(1, (ROWS, VOCAB), device=device)
        kernel = load(loss.operation)
        x = loss.distribution(0, (ROWS, VOCAB), device=device).requires_grad_()
        return lambda a: loss.call(a, y, target, 3, kernel) * 3, (x,), target

    return {loss.operation: case(loss) for loss in ROW_LOSSES}


ROW_LOSSES = [kl_div(log_target=True), jsd(0.3), tvd()]
NAMES = [
    "rms_norm",
    "swiglu",
    "swiglu_options",
    "swiglu_packed",
    "swiglu_interleaved",
    "geglu_packed",
    "modulated_rms_norm",
    "group_norm_of_8x8",
    "group_norm_of_7x7",
    "group_norm_of_64x64",
    "cross_entropy",
    "fused_linear_cross_entropy",
    "selected_log_probs",
    "fused_linear_scaled_cross_entropy",
    "fused_linear_jsd",
    "qk_norm_rope",
    "qk_norm_rope_of_all_heads",
    *(loss.operation for loss in ROW_LOSSES),
]


def run(function, inputs):
    value = function(*inputs)
    return (value.detach(), *torch.autograd.grad(value, inputs))


@pytest.mark.parametrize("name", NAMES)
def test_a_captured_graph_gives_what_eager_gives_for_new_data(name):
    function, inputs, target = cases()[name]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run(function, inputs)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(function, inputs)
    for step in range(3):
        for tensor in inputs:
            tensor.data.normal_()
        if target is not None:
            target.random_(0, VOCAB)
            target[step::2] = -100
            if step == 2:
                target.fill_(-100)
        graph.replay()
        torch.testing.assert_close(captured, run(function, inputs), rtol=1e-4, atol=1e-6)
    if target is not None:
        assert all((value == 0).all() for value in captured)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_waits_for_the_device(name):
    function, inputs, _ = cases()[name]
    run(function, inputs)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(function, inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", NAMES)
def test_runs_on_the_current_stream(name):
    function, inputs, _ = cases()[name]
    want = run(function, inputs)
    fresh = [torch.zeros_like(t).requires_grad_() for t in inputs]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # Work on another stream would read the zeros.
        for a, b in zip(fresh, inputs, strict=True):
            a.data.copy_(b)
        got = run(function, fresh)
    stream.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_runs_from_a_new_thread(name):
    function, inputs, _ = cases()[name]
    want, got = run(function, inputs), []
    thread = threading.Thread(target=lambda: got.extend(run(function, inputs)))
    thread.start()
    thread.join()
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("name", NAMES)
def test_runs_where_its_tensors_are(name):
    torch.manual_seed(1)
    function, inputs, target = cases("cuda:1")[name]
    assert torch.cuda.current_device() == 0
    value, *gradients = run(function, inputs)
    assert torch.cuda.current_device() == 0
    assert value.device.index == 1 and all(g.device.index == 1 for g in gradients)
    if name == "cross_entropy":
        assert_near(value, 3 * cross_entropy(inputs[0].double(), target)[0])
    elif name == "fused_linear_cross_entropy":
        want = linear_cross_entropy(*(t.double() for t in inputs), None, target)[0]
        assert_near(value, 3 * want)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_the_divisor_may_lie_on_another_cuda_device():
    logits, target = torch.randn(4, 8, device="cuda:1"), torch.zeros(4, device="cuda:1").long()
    loss, _ = call_cross_entropy(
        logits, target, divisor=torch.tensor(5, device="cuda:0"), kernel=load("cross_entropy")
    )
    assert_near(loss, cross_entropy(logits.double(), target, reduction=NONE)[0].sum() / 5)


@pytest.mark.parametrize("rows", [65535, 65536, 65537, 131073])
def test_many_rows(rows):
    x = torch.randn(rows, 32, device="cuda", requires_grad=True)
    weight = torch.randn(32, device="cuda", requires_grad=True)
    y = call_rms_norm(x, weight, kernel=load("rms_norm"))
    alone = call_rms_norm(x[-1:], weight, kernel=load("rms_norm"))
    torch.testing.assert_close(y[-1:], alone, rtol=1e-6, atol=1e-6)
    (dweight,) = torch.autograd.grad(y.sum(), weight)
    normed = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
    assert_near(dweight, normed.sum(0))


def test_more_than_two_to_the_31_logits():
    rows, vocab = 8193, 262144
    logits = torch.zeros(rows, vocab, dtype=torch.bfloat16, device="cuda")
    logits[-1, 7] = 10
    target = torch.full((rows,), 7, device="cuda")
    logits.requires_grad_()
    loss, _ = call_cross_entropy(logits, target, reduction=NONE, kernel=load("cross_entropy"))
    want_last = math.log(vocab - 1 + math.exp(10)) - 10
    assert loss[-1].item() == pytest.approx(want_last, rel=1e-5)
    assert (loss[:-1] - math.log(vocab)).abs().max() < 1e-4
    (gradient,) = torch.autograd.grad(loss[-1], logits)
    assert gradient[-1, 7] != 0
    assert not gradient[:-1].any()


@pytest.mark.parametrize("reduction", [NONE, SUM])
def test_a_chunk_of_more_than_two_to_the_31_logits_gives_what_smaller_ones_give(reduction):
    hidden, weight = (
        (torch.randn(n, 64, device="cuda") * scale).bfloat16().requires_grad_()
        for n, scale in ((8193, 1.0), (262144, 0.25))
    )
    target = torch.randint(262144, (8193,), device="cuda")
    results = []
    for chunk_bytes in (0, 1 << 40):
        loss, _ = call_linear_cross_entropy(
            hidden, weight, None, target, reduction=reduction, dweight_dtype=2,
            chunk_bytes=chunk_bytes, kernel=load("cross_entropy"),
        )  # fmt: skip
        results.append((loss.detach(), *torch.autograd.grad(loss.sum(), (hidden, weight))))
    (want_loss, *want), (loss, *got) = results
    # A label's logit may be rounded to another neighbour in bf16.
    torch.testing.assert_close(loss, want_loss, rtol=1e-4, atol=0.05)
    for a, b in zip(got, want, strict=True):
        error, size = ((x.float()).norm(dim=1) for x in (a - b, b))
        assert size.min() > 0 and (error <= 0.03 * size).all()


# Few rows, of which the ignored ones are masked, and rows that are counted first.
@pytest.mark.parametrize("rows", [256, 1024])
def test_half_the_rows_ignored_equals_the_other_half_alone(rows):
    hidden, weight = leaf(rows, WIDTH), leaf(VOCAB, WIDTH)
    target = torch.randint(0, VOCAB, (rows,), device="cuda")
    target[::2] = -100
    kernel = load("cross_entropy")
    loss, _ = call_linear_cross_entropy(hidden, weight, None, target, kernel=kernel)
    alone, _ = call_linear_cross_entropy(hidden[1::2], weight, None, target[1::2], kernel=kernel)
    got = torch.autograd.grad(loss, (hidden, weight))
    want = torch.autograd.grad(alone, (hidden, weight))
    torch.testing.assert_close(loss, alone)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("rows", [256, 1024])
def test_linear_losses_of_half_the_rows_equal_the_other_half_alone(rows):
    hidden, weight, bias = leaf(rows, WIDTH), leaf(VOCAB, WIDTH), leaf(VOCAB)
    target = torch.randint(0, VOCAB, (rows,), device="cuda")
    target[::2] = -100
    teacher = (torch.randn(rows, 32, device="cuda"), torch.randn(VOCAB, 32, device="cuda"), None)
    loss, jsd_kernel = load("cross_entropy"), load("jsd")

    def losses(some):
        head = (hidden[some], weight, bias)
        nll, entropy = call_scaled_cross_entropy(*head, target[some], kernel=loss)
        yield (nll - 0.1 * entropy).sum()
        yield call_selected_log_probs(*head, target[some], kernel=loss).sum()
        taught = (teacher[0][some], *teacher[1:])
        yield call_linear_jsd(head, taught, target[some], kernel=jsd_kernel)

    for got, want in zip(losses(slice(None)), losses(slice(1, None, 2)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        gradients = (torch.autograd.grad(v, (hidden, weight, bias)) for v in (got, want))
        for a, b in zip(*gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
