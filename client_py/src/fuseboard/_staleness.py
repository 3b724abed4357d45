"""Whether tensors still hold the values that they held.

A tensor's version tells of most changes, but not of all: a fused optimizer does not count its change of
a DTensor (torch 2.11), kernels of other projects (8-bit optimizers) count nothing, and optimizers with
master weights copy into `.data`. So the steps of optimizers count as changes, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook


class Snapshot:
    """What a set of tensors held at the moment of its making. On the training thread only."""

    def __init__(self, tensors: Sequence[torch.Tensor], *, movable: bool = False) -> None:
        """Keeps the tensors, not copies of them.

        Args:
            tensors: If none of them is a parameter, the step of any optimizer counts.
            movable: Whether their values may come to lie elsewhere in memory.
        """
        self._tensors = tuple(tensors)
        self._versions = tuple(version(t) for t in tensors)
        self._places = () if movable else tuple(t.data_ptr() for t in tensors)
        self._ids = frozenset(id(t) for t in tensors if isinstance(t, torch.nn.Parameter))
        self._stepped = False
        _snapshots.add(self)

    def change(self) -> str:
        """How the tensors changed since, or ""."""
        for tensor, then in zip(self._tensors, self._versions, strict=True):
            now = version(tensor)
            if now != then:
                return f"version {then}, now {now}"
        if self._places and self._places != tuple(t.data_ptr() for t in self._tensors):
            return "their memory was given away"
        return "an optimizer stepped" if self._stepped else ""

    def notice_step(self, optimizer: Optimizer) -> None:
        """Takes note of a step, unless the optimizer is somebody else's.

        One that holds tensors which are no parameters holds copies, of whose parameters is unknown.
        """
        if not self._stepped:
            self._stepped = not self._ids or any(
                id(tensor) in self._ids or not isinstance(tensor, torch.nn.Parameter)
                for group in optimizer.param_groups
                for tensor in group["params"]
            )


_snapshots: weakref.WeakSet[Snapshot] = weakref.WeakSet()


def _after_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
    for snapshot in list(_snapshots):
        snapshot.notice_step(optimizer)


# NOTE: for life, and from the import on. torch iterates over its hooks while they run, so one that is
# added or removed meanwhile would end that optimizer's step with an exception.
register_optimizer_step_post_hook(_after_step)


def version(tensor: torch.Tensor) -> int | None:
    """Counts changes in place. Tensors made in inference mode have no version and cannot change afterwards."""
    return None if tensor.is_inference() else tensor._version
