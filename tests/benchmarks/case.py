"""What a benchmarked case is, and what it runs with: device, kernels, peers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Tensors = tuple[torch.Tensor, ...]
Forward = Callable[..., Any]  # To a tensor, or to a tuple of tensors.


@dataclasses.dataclass(frozen=True)
class Case:
    """One operation at one shape.

    Attributes:
        operation: Stem, e.g. "rms_norm".
        shape: For people, e.g. "16384x4096".
        make: Seed to input tensors; floating ones that need a gradient have requires_grad set.
        forwards: Implementation to callable of those inputs; "eager" also takes them in float64.
        bytes_forward: Least bytes to move, forward; 0 where matrix products are the limit.
        bytes_full: The same for forward and backward.
        products: Matrix products (m, n, k) of forward and backward, where they are the limit.
        forward_products: Those of the forward alone.
        has_error: Compare with float64 (needs the memory for it).
        host: Measure the host's time per call too: a case that the launches decide.
        upstream: The gradient that a loss is given; 1 is what loss.backward() gives. Other results
            are given random numbers.
    """

    operation: str
    shape: str
    make: Callable[[int], Tensors]
    forwards: dict[str, Forward]
    bytes_forward: float = 0
    bytes_full: float = 0
    products: Sequence[tuple[int, int, int]] = ()
    forward_products: Sequence[tuple[int, int, int]] = ()
    has_error: bool = True
    host: bool = False
    upstream: float = 1.0


@dataclasses.dataclass(frozen=True)
class Bench:
    """What cases are made for.

    Attributes:
        device: "cuda", or "cpu" for a run that only tries everything.
        kernels: Handle of each loaded kernel library.
        compile: torch.compile in the way of this run.
        peers: Names of the implementations to compare with, beside those of torch.
        absent: Those that are not here, with the reason.
    """

    device: str
    kernels: Mapping[str, int]
    compile: Callable[[Forward], Forward]
    peers: frozenset[str]
    absent: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """Whether times mean anything."""
        return self.device == "cuda"

    def generator(self, seed: int) -> torch.Generator:
        """Random numbers on the device."""
        return torch.Generator(self.device).manual_seed(seed)

    def normal(
        self, generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.bfloat16
    ) -> torch.Tensor:
        """A leaf of random numbers that wants a gradient."""
        values = torch.randn(*shape, generator=generator, device=self.device, dtype=dtype)
        return values.requires_grad_()


def outputs(result: Any) -> Tensors:
    """What a forward returns, always as a tuple."""
    return result if isinstance(result, tuple) else (result,)


def computed(x: torch.Tensor) -> torch.Tensor:
    """`x` in the dtype that models compute norms and losses in; float64 stays."""
    return x if x.dtype == torch.float64 else x.float()
