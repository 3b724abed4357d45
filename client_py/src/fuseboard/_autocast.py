"""The state of autocast at one moment, to be entered again at another."""

from __future__ import annotations

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class Autocast:
    """State of autocast for one kind of device."""

    device_type: str
    enabled: bool
    dtype: torch.dtype

    @classmethod
    def current(cls, device_type: str) -> Autocast:
        """What holds now."""
        return cls(
            device_type,
            torch.is_autocast_enabled(device_type),
            torch.get_autocast_dtype(device_type),
        )

    def enter(self) -> torch.autocast:
        """A context in which it holds."""
        return torch.autocast(self.device_type, self.dtype, self.enabled, cache_enabled=False)

    def cast(self, tensor: torch.Tensor) -> torch.Tensor:
        """As autocast casts the inputs of a matrix product."""
        return tensor.to(self.dtype) if self.enabled else tensor
