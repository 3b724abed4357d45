"""Arguments that several functions take, from torch's conventions to those of the operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

_CASTINGS = {"llama": 0, "gemma": 1, "none": 2}
_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}
_ACCUMULATIONS = {"auto": 0, "weight": 1, "float32": 2}
_DIVERGENCE_REDUCTIONS = {**_REDUCTIONS, "batchmean": 3}


def choice(name: str, value: str, choices: Mapping[str, int]) -> int:
    """The operator's number of an option.

    Raises:
        ValueError: There is no such option; names all that there are.
    """
    number = choices.get(value)
    if number is None:
        raise ValueError(f"{name} is {value!r}, want one of {', '.join(map(repr, choices))}")
    return number


def casting_number(casting: str) -> int:
    """Where a norm rounds."""
    return choice("casting", casting, _CASTINGS)


def reduction_number(reduction: str) -> int:
    """Of cross entropies."""
    return choice("reduction", reduction, _REDUCTIONS)


def divergence_reduction_number(reduction: str) -> int:
    """Of divergences."""
    return choice("reduction", reduction, _DIVERGENCE_REDUCTIONS)


def epsilon(eps: float | None, input: torch.Tensor) -> float:
    """`eps`, or what torch.nn.functional.rms_norm takes for None."""
    if eps is not None:
        return eps
    computed = torch.float64 if input.dtype == torch.float64 else torch.float32
    return torch.finfo(computed).eps


def as_shape(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    """The dimensions that a norm goes over."""
    if isinstance(normalized_shape, int):
        return (normalized_shape,)
    return tuple(normalized_shape)


def check_normalized(
    input: torch.Tensor, shape: tuple[int, ...], **parameters: torch.Tensor | None
) -> None:
    """Checks what a norm goes over, and its parameters.

    Raises:
        ValueError: The shape is not the end of input's, or a parameter has another one.
    """
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
        raise ValueError(
            f"normalized_shape is {list(shape)}, want the last dimensions of input, which has "
            f"shape {list(input.shape)}"
        )
    for name, parameter in parameters.items():
        if parameter is not None and tuple(parameter.shape) != shape:
            raise ValueError(
                f"{name} has shape {list(parameter.shape)}, want normalized_shape {list(shape)}"
            )


def flat(tensor: torch.Tensor | None, dimensions: int) -> torch.Tensor | None:
    """`tensor` with its last dimensions as one."""
    if tensor is None or dimensions == 1:
        return tensor
    return tensor.flatten(-dimensions)


def check_class_numbers(target: torch.Tensor) -> None:
    """Checks that a target is not one of probabilities.

    Raises:
        TypeError: It is.
    """
    if target.is_floating_point():
        raise TypeError(
            f"target has dtype {target.dtype}, want int64 or int32: class probabilities are not "
            "supported"
        )


def check_target(input: torch.Tensor, target: torch.Tensor) -> None:
    """Checks the target of hidden states.

    Raises:
        TypeError: It holds probabilities.
        ValueError: It has not one number for each row.
    """
    check_class_numbers(target)
    check_per_row(input, "target", target)


def check_per_row(input: torch.Tensor, name: str, tensor: torch.Tensor) -> None:
    """Checks what has an element for each row of hidden states.

    Raises:
        ValueError: It has another shape.
    """
    if tensor.shape != input.shape[:-1]:
        raise ValueError(
            f"{name} has shape {list(tensor.shape)}, but input has shape {list(input.shape)}, "
            "want [...] of [..., in_features]"
        )


def accumulation_number(accumulate: str) -> int:
    """How the gradient of a head is added up."""
    return choice("accumulate", accumulate, _ACCUMULATIONS)
