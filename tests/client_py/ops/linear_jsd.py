"""fused_linear_jsd in plain PyTorch, beside its operator, and problems for it."""

import torch
import torch.nn.functional as F

from tests.client_py.ops.row_losses import IGNORED, jsd

TEACHER_WIDTH = 10


def problem(rows, width, vocab, dtype=torch.float32, device="cpu", bias=True, ignored=0.3):
    """The student's tensors, leaves; the teacher's, of another width; labels."""

    def head(width, bias):
        return [
            torch.randn(rows, width, device=device).to(dtype),
            (torch.randn(vocab, width, device=device) * 2 / width**0.5).to(dtype),
            torch.randn(vocab, device=device).to(dtype) if bias else None,
        ]

    student = [t if t is None else t.requires_grad_() for t in head(width, bias)]
    label = torch.randint(0, max(1, vocab), (rows,), device=device)
    label = torch.where(torch.rand(rows, device=device) < ignored, IGNORED, label)
    return student, head(TEACHER_WIDTH, not bias), label


def linear_jsd(student, teacher, label, beta=0.5, ignore_index=IGNORED, temperature=1.0):
    """The loss with all logits."""
    x, y = (torch.log_softmax(F.linear(*t) / temperature, -1) for t in (student, teacher))
    losses = jsd(beta).elements(x, y).sum(-1)
    if label is None:
        return losses.sum() / max(1, losses.shape[0])
    counts = label != ignore_index
    losses = torch.where(counts, losses, torch.zeros_like(losses))
    return losses.sum() / counts.sum().clamp(min=1)


def call_linear_jsd(
    student,
    teacher,
    label,
    beta=0.5,
    ignore_index=IGNORED,
    temperature=1.0,
    dweight_dtype=0,
    chunk_bytes=0,
    kernel=-1,
):
    """fuseboard::fused_linear_jsd."""
    return torch.ops.fuseboard.fused_linear_jsd(
        *student,
        *teacher,
        label,
        beta,
        ignore_index,
        temperature,
        dweight_dtype,
        chunk_bytes,
        kernel,
    )
