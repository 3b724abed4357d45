"""What torch.compile and torch.library ask of an operator."""

import pytest
import torch

from tests.client_py.ops.conftest import load
from tests.client_py.ops.linear_jsd import call_linear_jsd
from tests.client_py.ops.reference import (
    MEAN,
    NONE,
    SUM,
    call_cross_entropy,
    call_linear_cross_entropy,
    call_rms_norm,
    call_scaled_cross_entropy,
    call_selected_log_probs,
)

ops = torch.ops.fuseboard


def leaf(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(*shape, dtype=dtype, device=device, requires_grad=True)


def samples(device):
    """Arguments of each operator, all options at least once."""
    target = torch.tensor([0, -100, 12, 3], device=device)
    weighted = torch.rand(13, device=device)
    for dtype in (torch.float32, torch.bfloat16):
        x = leaf(2, 3, 8, dtype=dtype, device=device)
        yield ops.rms_norm.default, (x, leaf(8, device=device), 1e-6, 0.0, 0)
        yield ops.rms_norm.default, (x, None, 1e-6, 1.0, 1)
        yield ops.swiglu.default, (x, leaf(2, 3, 8, dtype=dtype, device=device), True)
        for reduction in (NONE, MEAN, SUM) if dtype == torch.float32 else (MEAN,):
            options = (-100, 0.1, 5.0, 1.0, 1e-3, True, reduction)
            logits = leaf(4, 13, dtype=dtype, device=device)
            yield ops.cross_entropy.default, (logits, target, weighted, None, *options)
            linear = (
                leaf(4, 8, dtype=dtype, device=device),
                leaf(13, 8, dtype=dtype, device=device),
            )
            bias = leaf(13, dtype=dtype, device=device)
            yield (
                ops.fused_linear_cross_entropy.default,
                (*linear, bias, target, None, None, *options, 0, 1024),
            )


def linear_samples(device):
    """The same of the losses of a linear layer's rows."""
    target = torch.tensor([0, -100, 12, 3], device=device)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        head = [leaf(*s, dtype=dtype, device=device) for s in ((4, 8), (13, 8), (13,))]
        teacher = [leaf(*s, dtype=dtype, device=device).detach() for s in ((4, 6), (13, 6))]
        cut = (0, 1024)
        yield ops.selected_log_probs.default, (*head, target, -100, 5.0, 1.0, 0.7, *cut)
        for entropy in (False, True):
            yield (
                ops.fused_linear_scaled_cross_entropy.default,
                (*head, target, -100, 5.0, 1.0, 0.7, entropy, *cut),
            )
        for label in (None, target):
            yield (
                ops.fused_linear_jsd.default,
                (*head, *teacher, None, label, 0.3, -100, 0.7, *cut),
            )


LIBRARY_OF = {
    "fused_linear_cross_entropy": "cross_entropy",
    "fused_linear_scaled_cross_entropy": "cross_entropy",
    "selected_log_probs": "cross_entropy",
    "fused_linear_jsd": "jsd",
}


def handle_for(operator, handle_of):
    name = operator.name().split("::")[1].split(".")[0]
    return handle_of(LIBRARY_OF.get(name, name))


def test_opcheck_is_clean(handle_of, device):
    for operator, arguments in samples(device):
        torch.library.opcheck(operator, (*arguments, handle_for(operator, handle_of)))


def test_opcheck_of_linear_losses_is_clean(handle_of, device):
    for operator, arguments in linear_samples(device):
        torch.library.opcheck(operator, (*arguments, handle_for(operator, handle_of)))


def everything(x, norm, gate, head, bias, target, handles):
    y = call_rms_norm(x, norm, kernel=handles[0])
    y = ops.swiglu(y, gate, True, handles[1])
    loss, _ = call_linear_cross_entropy(y, head, bias, target, kernel=handles[2])
    rows, z_loss = call_cross_entropy(
        torch.nn.functional.linear(y, head), target, reduction=NONE, z_loss_scale=1e-3,
        kernel=handles[2],
    )  # fmt: skip
    return loss + rows.sum() + z_loss.sum()


def check_compiled(handles, device, row_counts, dynamic):
    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in row_counts:
        tensors = [leaf(*s, device=device) for s in ((rows, 8), (8,), (rows, 8), (13, 8), (13,))]
        target = torch.randint(0, 13, (rows,), device=device)
        want = everything(*tensors, target, handles)
        got = compiled(*tensors, target, handles)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            torch.autograd.grad(got * 3, tensors), torch.autograd.grad(want * 3, tensors),
            rtol=1e-4, atol=1e-5,
        )  # fmt: skip
        with torch.no_grad():
            torch.testing.assert_close(compiled(*tensors, target, handles), want.detach())


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_a_graph_break(device, dynamic):
    torch._dynamo.reset()
    handles = tuple(load(name) for name in ("rms_norm", "swiglu", "cross_entropy"))
    check_compiled(handles, device, (4, 5) if dynamic else (4,), dynamic)


def every_linear_loss(hidden, weight, bias, teacher_hidden, teacher_weight, target, handles):
    values = call_selected_log_probs(hidden, weight, bias, target, kernel=handles[0])
    nll, entropy = call_scaled_cross_entropy(
        hidden, weight, None, target, temperature=0.7, kernel=handles[0]
    )
    teacher = (teacher_hidden, teacher_weight, None)
    divergence = call_linear_jsd((hidden, weight, bias), teacher, target, kernel=handles[1])
    return (values * torch.arange(len(target)).to(values)).sum() + (nll - 0.1 * entropy).sum() + divergence  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
def test_linear_losses_compile_without_a_graph_break(device, dynamic):
    torch._dynamo.reset()
    handles = (load("cross_entropy"), load("jsd"))
    compiled = torch.compile(
        every_linear_loss, fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    for rows in (4, 7) if dynamic else (4,):
        tensors = [leaf(*s, device=device) for s in ((rows, 8), (13, 8), (13,))]
        teacher = [leaf(*s, device=device).detach() for s in ((rows, 6), (13, 6))]
        target = torch.randint(0, 13, (rows,), device=device)
        want = every_linear_loss(*tensors, *teacher, target, handles)
        got = compiled(*tensors, *teacher, target, handles)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            torch.autograd.grad(got * 3, tensors), torch.autograd.grad(want * 3, tensors),
            rtol=1e-4, atol=1e-5,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_compiled_autograd_traces_the_nodes_of_linear_losses(dtype):
    torch._dynamo.reset()
    tensors = [leaf(*s, dtype=dtype) for s in ((4, 8), (13, 8), (13,))]
    teacher = [leaf(*s, dtype=dtype).detach() for s in ((4, 6), (13, 6))]
    target = torch.tensor([0, -100, 12, 3])
    loss = every_linear_loss(*tensors, *teacher, target, (-1, -1))
    want = torch.autograd.grad(loss, tensors)
    loss = every_linear_loss(*tensors, *teacher, target, (-1, -1))
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        loss.backward()
    torch.testing.assert_close([t.grad for t in tensors], list(want))


def test_compiles_under_autocast(device):
    torch._dynamo.reset()
    hidden, head = leaf(4, 8, device=device), leaf(13, 8, device=device)
    target = torch.tensor([0, -100, 12, 3], device=device)

    def loss(h, w):
        with torch.autocast(device, torch.bfloat16):
            return call_linear_cross_entropy(h, w, None, target)[0]

    got = torch.compile(loss, fullgraph=True, backend="aot_eager")(hidden, head)
    torch.testing.assert_close(got, loss(hidden, head))
    got.backward()
    assert hidden.grad.dtype == head.grad.dtype == torch.float32


def test_compiled_autograd_traces_the_nodes():
    torch._dynamo.reset()
    tensors = [leaf(*s) for s in ((4, 8), (8,), (4, 8), (13, 8), (13,))]
    target = torch.tensor([0, -100, 12, 3])
    handles = (-1, -1, -1)
    want = torch.autograd.grad(everything(*tensors, target, handles), tensors)
    loss = everything(*tensors, target, handles)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        loss.backward()
    torch.testing.assert_close([t.grad for t in tensors], list(want))


@pytest.mark.parametrize("reduction", [MEAN, NONE])
def test_compiled_autograd_traces_a_node_more_than_once(reduction):
    # Both reductions have nodes of one name, and each shape is another trace.
    torch._dynamo.reset()
    for rows in (4, 7, 9):
        hidden, weight = leaf(rows, 8), leaf(13, 8)
        target = torch.arange(rows)

        def loss(hidden=hidden, weight=weight, target=target):
            return call_linear_cross_entropy(hidden, weight, None, target, reduction=reduction)[
                0
            ].sum()

        want = torch.autograd.grad(loss(), (hidden, weight))
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
            loss().backward()
        torch.testing.assert_close([hidden.grad, weight.grad], list(want))
        torch._dynamo.reset()
