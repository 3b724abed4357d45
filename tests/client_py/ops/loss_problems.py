"""Problems of the losses, on logits and on hidden states."""

import torch

from tests.client_py.ops.linear_jsd import call_linear_jsd, linear_jsd
from tests.client_py.ops.problems import Problem, largest, wide
from tests.client_py.ops.reference import (
    MEAN,
    NONE,
    SUM,
    call_cross_entropy,
    call_linear_cross_entropy,
    call_scaled_cross_entropy,
    call_selected_log_probs,
    linear_cross_entropy,
    token_losses,
)
from tests.client_py.ops.reference import cross_entropy as cross_entropy_formula
from tests.client_py.ops.row_losses import REDUCTIONS

CLASSES = [1, 2, 7, 64, 127, 129, 500]


def _loss_options(source):
    return {
        "ignore_index": source.one_of([-100, -1, 0]),
        "label_smoothing": source.one_of([0.0, 0.1]),
        "softcap": source.one_of([0.0, 4.0]),
        "logit_scale": source.one_of([1.0, 0.5]),
        "z_loss_scale": source.one_of([0.0, 1e-3]),
        "z_loss_in_loss": source.maybe(),
        "reduction": source.one_of([NONE, MEAN, SUM]),
    }


def cross_entropy(source, length):
    """Every option but class weights and a divisor; the loss alone is compared."""
    classes, options = source.width(CLASSES), _loss_options(source)
    logits = source.tensor(length, classes, scale=2.0)
    target = source.labels(length, classes, ignore_index=options["ignore_index"])
    return Problem(
        [logits, target],
        lambda t, kernel: call_cross_entropy(*t, **options, kernel=kernel)[0],
        lambda t: cross_entropy_formula(wide(t[0]), t[1], **options)[0],
        rows=(0, 1) if options["reduction"] == NONE else (),
    )


def row_loss(loss):
    def make(source, length):
        classes, reduction = source.width(CLASSES), source.one_of(REDUCTIONS)

        def distribution(index):
            function = torch.softmax if loss.of_probabilities[index] else torch.log_softmax
            values = function(source.randn(length, classes).double() * 2, -1)
            return source.laid_out(values.to(source.dtype))

        x, y = distribution(0).requires_grad_(), distribution(1)
        label = source.labels(length, classes)
        label = label if source.maybe() else None
        return Problem(
            [x, y, label],
            lambda t, kernel: loss.call(*t, reduction, kernel),
            lambda t: loss.reference(wide(t[0]), wide(t[1]), t[2], reduction),
            rows=((0, 1) if label is None else (0, 1, 2)) if not reduction else (),
            slack=2,
        )

    return make


def _head(source, length, classes, ignore_index=-100):
    """Hidden states, weight, bias or none, labels."""
    width, has_bias = source.one_of([1, 8, 24, 40]), source.maybe()
    width = source.hidden or width
    hidden = source.tensor(length, width)
    weight = source.tensor(classes, width, scale=width**-0.5)
    bias = source.tensor(classes)
    return [
        hidden,
        weight,
        bias if has_bias else None,
        source.labels(length, classes, ignore_index=ignore_index),
    ]


def _cut(source):
    return {
        "chunk_bytes": source.one_of([0, 1, 4096]),
        # 2: added up in fp32.
        "dweight_dtype": 2 if source.accurate else source.one_of([0, 1, 2]),
    }


def fused_linear_cross_entropy(source, length):
    """Any chunks and either dtype of dW."""
    classes, options, cut = source.width(CLASSES), _loss_options(source), _cut(source)
    return Problem(
        _head(source, length, classes, options["ignore_index"]),
        lambda t, kernel: call_linear_cross_entropy(*t, **options, **cut, kernel=kernel)[0],
        lambda t: linear_cross_entropy(*t, **options)[0],
        slack=4,
        terms=lambda t: largest(*t[:2]),
    )


def _token_options(source):
    return {
        "ignore_index": source.one_of([-100, -1, 0]),
        "softcap": source.one_of([0.0, 4.0]),
        "logit_scale": source.one_of([1.0, 0.5]),
        "temperature": source.one_of([1.0, 0.7]),
    }


def selected_log_probs(source, length):
    """A value for each row."""
    classes, options, cut = source.width(CLASSES), _token_options(source), _cut(source)
    return Problem(
        _head(source, length, classes, options["ignore_index"]),
        lambda t, kernel: call_selected_log_probs(*t, **options, **cut, kernel=kernel),
        lambda t: -token_losses(*t, **options)[0],
        slack=4,
        terms=lambda t: largest(*t[:2]),
    )


def selected_log_probs_of_a_frozen_head(source, length):
    """The hidden states alone want a gradient."""
    problem = selected_log_probs(source, length)
    hidden, *head, target = problem.tensors
    problem.tensors = [hidden, *(t if t is None else t.detach() for t in head), target]
    return problem


def fused_linear_scaled_cross_entropy(source, length):
    """Two values for each row."""
    classes, options, cut = source.width(CLASSES), _token_options(source), _cut(source)
    return Problem(
        _head(source, length, classes, options["ignore_index"]),
        lambda t, kernel: call_scaled_cross_entropy(*t, **options, **cut, kernel=kernel),
        lambda t: token_losses(*t, **options),
        slack=4,
        terms=lambda t: largest(*t[:2]),
    )


def fused_linear_jsd(source, length):
    """A teacher of another width."""
    classes, cut = source.width(CLASSES), _cut(source)
    beta, temperature = source.one_of([0.0, 0.3, 0.5, 1.0]), source.one_of([1.0, 0.7])
    *student, label = _head(source, length, classes)
    teacher = [
        source.tensor(length, 10, grad=False),
        source.tensor(classes, 10, scale=0.3, grad=False),
    ]
    label = label if source.maybe() else None

    def call(t, kernel):
        return call_linear_jsd(
            t[:3], (t[3], t[4], None), t[5], beta, temperature=temperature, **cut, kernel=kernel
        )

    return Problem(
        [*student, *teacher, label],
        call,
        lambda t: linear_jsd(t[:3], (t[3], t[4], None), t[5], beta, temperature=temperature),
        slack=4,
        terms=lambda t: largest(*t[:2]),
    )
