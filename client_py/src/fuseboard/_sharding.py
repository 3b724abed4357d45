"""Where fully_shard (FSDP2) keeps the parameters of one module, and how to have them whole for a moment.

Between a unit's forward and its backward its parameters are usually cut up again: the module holds
DTensors then. Reads private attributes of torch.distributed.fsdp, as of torch 2.11; where they are
missing, it says so (UnknownSharding) and guesses nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_WHOLE = (torch.Tensor, nn.Parameter)


class UnknownSharding(Exception):
    """The parameters are sharded in a way that this client does not know."""


@dataclasses.dataclass(frozen=True)
class Shards:
    """The hold of fully_shard on the parameters of one module.

    Attributes:
        module: The module.
        unit: The module that was given to fully_shard and gathers them, with others.
        state: What fully_shard knows of the unit.
        parameters: The sharded parameters, which are what optimizers and checkpoints know.
    """

    module: nn.Module
    unit: Any
    state: Any
    parameters: tuple[nn.Parameter, ...]

    def are_whole(self) -> bool:
        """Whether the module holds all of its parameters now."""
        held = self.module._parameters.values()
        return all(type(p) in _WHOLE for p in held if p is not None)

    def in_forward(self) -> bool:
        """Whether a forward of the sharded model runs, so that all ranks pass here."""
        return self.state._state_ctx.iter_forward_root is not None

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Has the parameters whole inside, and afterwards as they were. A collective if they are cut."""
        if self.are_whole():
            yield
            return
        self.gather()
        try:
            yield
        finally:
            self.unit.reshard()

    def gather(self) -> None:
        """Makes the parameters whole; a backward cuts them up again at its end. As `gathered`."""
        self.unit.unshard()

    def groups(self) -> list[Any]:
        """The process groups whose ranks hold the pieces."""
        found = []
        for parameter in self.parameters[:1]:
            layout: Any = parameter
            for dimension, placement in enumerate(layout.placements):
                if placement.is_shard():
                    found.append(layout.device_mesh.get_group(dimension))
        return found


def shards_of(module: nn.Module) -> Shards | None:
    """How `module` is sharded by fully_shard, or None if it is not.

    Raises:
        UnknownSharding: It is, in an unknown way.
    """
    if not module.__dict__.get("_is_fsdp_managed_module", False):
        return None
    try:
        from torch.distributed._composable_state import _module_state_mapping
        from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

        for unit, reference in list(_module_state_mapping.items()):
            state: Any = reference()
            held = _held(state, module) if isinstance(state, FSDPState) else ()
            if held:
                _ = state._state_ctx.iter_forward_root, unit.unshard, unit.reshard
                return Shards(module, unit, state, tuple(p.sharded_param for p in held))
    except (ImportError, AttributeError) as error:
        raise UnknownSharding(f"fully_shard of torch {torch.__version__}: {error}") from error
    return None  # Its parameters are left out (ignored_params).


def _held(state: Any, module: nn.Module) -> list[Any]:
    """What `state` holds of the parameters of `module`."""
    found = []
    group = state._fsdp_param_group
    for parameter in group.fsdp_params if group is not None else ():
        where = parameter._module_info
        if any(m is module for m in (where.module, *where.shared_modules)):
            found.append(parameter)
    return found
