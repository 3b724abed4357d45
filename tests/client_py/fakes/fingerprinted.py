"""Modules whose fingerprints the tests compare. Editing the code of `Golden` changes its value."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

SCALE = 2.0


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


def other_helper(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE + 0


class Golden(nn.Module):
    """Uses what differs between Pythons: f-strings, defaults, comprehensions, nested functions."""

    def forward(self, x: torch.Tensor, *rest: int, eps: float = 1e-6) -> torch.Tensor:
        """Documented."""
        limit: float = 3.0  # A comment.

        def inner(y: torch.Tensor) -> torch.Tensor:
            return helper(y) + eps

        if x.dim() > 9:
            raise ValueError(f"got {x.dim():>{2}} dims, want at most {9!r}!")
        parts = [F.silu(inner(x[..., i:])) for i in range(1) if i is not None]
        return torch.clamp(parts[0], max=limit)


class SameWrittenOtherwise(nn.Module):
    def forward(self, x, *rest, eps=1e-6):
        limit = 3.0

        def inner(y):
            # Said differently, meant the same.
            return (
                helper(
                    y,
                )
                + eps
            )

        if x.dim() > 9:
            raise ValueError(f"got {x.dim():>{2}} dims, want at most {9!r}!")
        parts = [F.silu(inner(x[..., i:])) for i in range(1) if i is not None]
        return torch.clamp(parts[0], max=limit)


class OtherConstant(nn.Module):
    def forward(self, x):
        return helper(x) + 1.5


class OtherConstantToo(nn.Module):
    def forward(self, x):
        return helper(x) + 1.25


class Grouped(nn.Module):
    """The difference lies in a method that the forward calls."""

    def forward(self, x):
        return self._norm(x)

    def _norm(self, x):
        return x / x.norm()


class GroupedOtherwise(Grouped):
    def _norm(self, x):
        return x / x.norm(dim=-1)


class ByProperty(nn.Module):
    """As transformers' loss_function: a property that returns code."""

    choice: Any = staticmethod(helper)

    @property
    def chosen(self):
        return self.__dict__.get("mine", helper)

    def forward(self, x):
        return self.chosen(x)


class ClassConstant(nn.Module):
    factor = 2

    def forward(self, x):
        return x * self.factor


class OtherClassConstant(ClassConstant):
    factor = 3


def closed_over(value: Any) -> type[nn.Module]:
    class Closed(nn.Module):
        def forward(self, x):
            return x, value

    return Closed


def passing(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Decorated(nn.Module):
    @passing
    def forward(self, x):
        return x


class NoGrad(nn.Module):
    @torch.no_grad()
    def forward(self, x):
        return x + 1


class WithGrad(nn.Module):
    def forward(self, x):
        return x + 1


class Recursive(nn.Module):
    def forward(self, x, depth=2):
        return x if depth == 0 else self.forward(x, depth - 1)


class Dynamic(nn.Module):
    def forward(self, x):
        return getattr(self, "_" + str(x.dim()))(x)


class OwnName(nn.Module):
    def forward(self, x):
        return super().extra_repr(), x


class OtherName(nn.Module):
    def forward(self, x):
        return super().extra_repr(), x
