"""The operations in plain PyTorch, in whatever dtype they are given: float64 for judging, or the model's.

`call_*` give the operators Python defaults, so that a test names only what it is about.
"""

import os

import torch
import torch.nn.functional as F

LLAMA, GEMMA, NONE_CASTING = 0, 1, 2
NONE, MEAN, SUM = 0, 1, 2


def llama_rms_norm(x, weight, eps=1e-6):
    """transformers' LlamaRMSNorm.forward."""
    input_dtype = x.dtype
    x = x.to(torch.float32)
    variance = x.pow(2).mean(-1, keepdim=True)
    x = x * torch.rsqrt(variance + eps)
    return weight * x.to(input_dtype)


def exact_rms_norm(x, weight=None, eps=1e-6, offset=0.0):
    """Without any intermediate rounding."""
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return y if weight is None else y * (weight + offset)


def call_rms_norm(x, weight=None, eps=1e-6, offset=0.0, casting=LLAMA, kernel=-1):
    """fuseboard::rms_norm."""
    return torch.ops.fuseboard.rms_norm(x, weight, eps, offset, casting, kernel)


def pair_partner(x, interleaved):
    """(a, b) of each pair to (-b, a): transformers' rotate_half, and GLM's and Cohere's."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def rope(x, cos, sin, interleaved=False):
    """transformers' apply_rotary_pos_emb of one tensor of heads; what the factors leave is copied."""
    cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)
    rotated, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    rotated = (rotated * cos) + (pair_partner(rotated, interleaved) * sin)
    return torch.cat((rotated, rest), dim=-1)


def call_rope(
    q,
    k,
    cos,
    sin,
    rotary_dim=None,
    sections=(),
    interleaved=False,
    round_products=True,
    kernel=-1,
):
    """fuseboard::rope."""
    rotary_dim = q.shape[-1] if rotary_dim is None else rotary_dim
    return torch.ops.fuseboard.rope(
        q, k, cos, sin, rotary_dim, list(sections), interleaved, round_products, kernel
    )


def norm_heads(norm, x, weight, all_heads=False):
    """norm(x, weight) of each head [..., heads, positions, dim], or of all heads of a position."""
    if not all_heads:
        return norm(x, weight)
    rows = x.transpose(-3, -2)
    return norm(rows.flatten(-2), weight).view(rows.shape).transpose(-3, -2)


def qk_norm_rope(
    x, weight, cos, sin, eps=1e-6, offset=0.0, all_heads=False, interleaved=False
):  # fmt: skip
    """One of q and k, without any intermediate rounding."""
    normed = norm_heads(lambda a, w: exact_rms_norm(a, w, eps, offset), x, weight, all_heads)
    return rope(normed, cos, sin, interleaved)


def call_qk_norm_rope(
    q,
    k,
    q_weight,
    k_weight,
    cos,
    sin,
    eps=1e-6,
    offset=0.0,
    casting=LLAMA,
    all_heads=False,
    rotary_dim=None,
    sections=(),
    interleaved=False,
    round_products=True,
    kernel=-1,
):
    """fuseboard::qk_norm_rope."""
    rotary_dim = q.shape[-1] if rotary_dim is None else rotary_dim
    return torch.ops.fuseboard.qk_norm_rope(
        q, k, q_weight, k_weight, cos, sin, eps, offset, casting, all_heads, rotary_dim,
        list(sections), interleaved, round_products, kernel,
    )  # fmt: skip


def cross_entropy(
    logits,
    target,
    class_weight=None,
    divisor=None,
    ignore_index=-100,
    label_smoothing=0.0,
    softcap=0.0,
    logit_scale=1.0,
    z_loss_scale=0.0,
    z_loss_in_loss=False,
    reduction=MEAN,
):
    """Loss and z-loss by the formula of kernels/abi/cross_entropy.h."""
    z = logits * logit_scale
    if softcap:
        z = softcap * torch.tanh(z / softcap)
    lse = torch.logsumexp(z, -1)
    logp = z - lse[:, None]
    valid = target != ignore_index
    column = target.long().clamp(0, logits.shape[1] - 1)
    ones = logits.new_ones(logits.shape[1])
    weight = ones if class_weight is None else class_weight.to(logits.dtype)
    picked = -logp.gather(1, column[:, None]).squeeze(1) * weight[column]
    smooth = -(logp * weight).sum(-1) / logits.shape[1]
    zero = torch.zeros((), dtype=logits.dtype, device=logits.device)
    loss = (1 - label_smoothing) * picked + (label_smoothing * smooth if label_smoothing else 0)
    z_loss = torch.where(valid, z_loss_scale * lse.square(), zero)
    loss = torch.where(valid, loss, zero) + (z_loss if z_loss_in_loss else 0)
    if reduction == NONE:
        return loss, z_loss
    if reduction == SUM:
        return loss.sum(), z_loss.sum()
    total = (weight[column] * valid).sum() if divisor is None else divisor.to(logits)
    scale = torch.where(total == 0, zero, 1 / total)
    return loss.sum() * scale, z_loss.sum() * scale


def call_cross_entropy(
    logits,
    target,
    class_weight=None,
    divisor=None,
    ignore_index=-100,
    label_smoothing=0.0,
    softcap=0.0,
    logit_scale=1.0,
    z_loss_scale=0.0,
    z_loss_in_loss=False,
    reduction=MEAN,
    kernel=-1,
):
    """fuseboard::cross_entropy."""
    return torch.ops.fuseboard.cross_entropy(
        logits,
        target,
        class_weight,
        divisor,
        ignore_index,
        label_smoothing,
        softcap,
        logit_scale,
        z_loss_scale,
        z_loss_in_loss,
        reduction,
        kernel,
    )


def linear_cross_entropy(hidden, weight, bias, target, **options):
    """The loss with all logits."""
    return cross_entropy(F.linear(hidden, weight, bias), target, **options)


def call_linear_cross_entropy(
    hidden,
    weight,
    bias,
    target,
    class_weight=None,
    divisor=None,
    ignore_index=-100,
    label_smoothing=0.0,
    softcap=0.0,
    logit_scale=1.0,
    z_loss_scale=0.0,
    z_loss_in_loss=False,
    reduction=MEAN,
    dweight_dtype=0,
    chunk_bytes=0,
    kernel=-1,
):
    """fuseboard::fused_linear_cross_entropy."""
    return torch.ops.fuseboard.fused_linear_cross_entropy(
        hidden,
        weight,
        bias,
        target,
        class_weight,
        divisor,
        ignore_index,
        label_smoothing,
        softcap,
        logit_scale,
        z_loss_scale,
        z_loss_in_loss,
        reduction,
        dweight_dtype,
        chunk_bytes,
        kernel,
    )


def token_losses(
    hidden, weight, bias, target, ignore_index=-100, softcap=0.0, logit_scale=1.0, temperature=1.0
):  # fmt: skip
    """Cross entropy and entropy of each row, with all logits; 0 for ignored rows."""
    z = F.linear(hidden, weight, bias) * logit_scale
    if softcap:
        z = softcap * torch.tanh(z / softcap)
    logp = torch.log_softmax(z / temperature, -1)
    valid = target != ignore_index
    column = target.long().clamp(0, max(0, weight.shape[0] - 1))
    zero = torch.zeros((), dtype=logp.dtype, device=logp.device)
    nll = -logp.gather(1, column[:, None]).squeeze(1)
    entropy = torch.special.entr(logp.exp()).sum(1)
    return torch.where(valid, nll, zero), torch.where(valid, entropy, zero)


def call_scaled_cross_entropy(
    hidden,
    weight,
    bias,
    target,
    ignore_index=-100,
    softcap=0.0,
    logit_scale=1.0,
    temperature=1.0,
    return_entropy=True,
    dweight_dtype=0,
    chunk_bytes=0,
    kernel=-1,
):
    """fuseboard::fused_linear_scaled_cross_entropy."""
    return torch.ops.fuseboard.fused_linear_scaled_cross_entropy(
        hidden,
        weight,
        bias,
        target,
        ignore_index,
        softcap,
        logit_scale,
        temperature,
        return_entropy,
        dweight_dtype,
        chunk_bytes,
        kernel,
    )


def call_selected_log_probs(
    hidden,
    weight,
    bias,
    target,
    ignore_index=-100,
    softcap=0.0,
    logit_scale=1.0,
    temperature=1.0,
    dweight_dtype=0,
    chunk_bytes=0,
    kernel=-1,
):
    """fuseboard::selected_log_probs."""
    return torch.ops.fuseboard.selected_log_probs(
        hidden,
        weight,
        bias,
        target,
        ignore_index,
        softcap,
        logit_scale,
        temperature,
        dweight_dtype,
        chunk_bytes,
        kernel,
    )


# Of a result in each dtype against float64, relative to the largest value: a few roundings.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}


def assert_near(got, want, dtype=None, slack=1.0, least=0.05):
    """Compares with a float64 reference at `slack` times the tolerance of `dtype` (default: got's).

    `least` is what the largest value counts as at least.
    """
    assert got.shape == want.shape
    want = want.double()
    # By default 0.05: a loss of exactly 0 is a difference of logits of order 1.
    scale = want.abs().max().clamp(min=least).item() if want.numel() else 1.0
    tolerance = slack * TOLERANCE[dtype or got.dtype]
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance * scale)


def examples(count):
    """How many random problems a test tries: `count`, times FUSEBOARD_FUZZ if that is set."""
    return int(count * float(os.environ.get("FUSEBOARD_FUZZ", "1")))


def products(call):
    """How often call() multiplied matrices, without and with a bias."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    names = [event.name for event in profile.events()]
    return names.count("aten::mm"), names.count("aten::addmm")
