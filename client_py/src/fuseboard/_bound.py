"""The object that stands as `forward` on one module, and what it runs there.

A BoundForward is set as an attribute of the instance, never of the class. It runs an Operation, or
the module's own code. Copies and pickles of the module carry the module's own code: a copy is not
under the control of the plan that patched the original.
"""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from torch import nn


class Operation(Protocol):
    """What runs instead of a module's own code."""

    def __call__(
        self, bound: BoundForward, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Computes what `bound.native(*args, **kwargs)` would."""
        ...


class BoundForward:
    """Stands in `module.__dict__["forward"]`.

    Attributes:
        operation: What a call runs; None: the module's own code. Set between two steps only.
        fuseboard_original: What stood there before, or None.
    """

    def __init__(self, module: nn.Module, operation: Operation | None) -> None:
        """Does not bind yet: `bind` does."""
        self.operation = operation
        self.fuseboard_original: Callable[..., Any] | None = module.__dict__.get("forward")
        # Weak: a strong reference would be a cycle, and the model's memory would wait for the
        # garbage collector.
        self._module = weakref.ref(module)
        self.__name__ = "forward"
        self.__doc__ = module.forward.__doc__
        self.__signature__ = inspect.signature(module.forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self._module()
        assert module is not None
        operation = self.operation
        if operation is None:
            return self.native(*args, **kwargs)
        return operation(self, module, args, kwargs)

    def native(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module's own code."""
        if self.fuseboard_original is not None:
            return self.fuseboard_original(*args, **kwargs)
        module = self._module()
        assert module is not None
        return type(module).forward(module, *args, **kwargs)

    def only_argument(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The argument of a forward that has exactly one.

        Raises:
            TypeError: As a call of the module's own forward would.
        """
        if len(args) == 1 and not kwargs:
            return args[0]
        bound = self.__signature__.bind(*args, **kwargs)
        (value,) = bound.arguments.values()
        return value

    def bind(self) -> None:
        """Puts itself on the module."""
        module = self._module()
        if module is not None:
            module.__dict__["forward"] = self
            module.__dict__["_replicate_for_data_parallel"] = _NativeReplica(self._module)

    def unbind(self) -> None:
        """Puts back exactly what was there.

        If someone wrapped this object meanwhile, it stays inside their wrapper and runs native.
        """
        self.operation = None
        module = self._module()
        if module is None:
            return
        if isinstance(module.__dict__.get("_replicate_for_data_parallel"), _NativeReplica):
            del module.__dict__["_replicate_for_data_parallel"]
        if module.__dict__.get("forward") is not self:
            return
        if self.fuseboard_original is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = self.fuseboard_original

    def is_wrapped(self, module: nn.Module) -> bool:
        """Whether something else now stands on `module` and may call this object."""
        return module.__dict__.get("forward") not in (None, self, self.fuseboard_original)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        module = self._module()
        copied = memo.get(id(module))
        if copied is None or self.fuseboard_original is not None:
            return self.fuseboard_original or self
        return types.MethodType(type(copied).forward, copied)

    def __reduce__(self) -> tuple[Any, ...]:
        # While a pickled module is rebuilt it has no attributes yet: this finds its class's forward.
        return getattr, (self._module(), "forward")


class _NativeReplica:
    """Makes the replicas of nn.DataParallel native.

    They share the instance's attributes, so the bound forward would compute with the weights of the
    first device.
    """

    def __init__(self, module: weakref.ref[nn.Module]) -> None:
        self._module = module

    def __call__(self) -> Any:
        module = self._module()
        assert module is not None
        replica = type(module)._replicate_for_data_parallel(module)  # type: ignore[no-untyped-call]
        replica.__dict__.pop("_replicate_for_data_parallel", None)
        bound = replica.__dict__.pop("forward", None)
        if isinstance(bound, BoundForward) and bound.fuseboard_original is not None:
            replica.__dict__["forward"] = bound.fuseboard_original
        return replica

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = memo.get(id(self._module()))
        return self if copied is None else copied._replicate_for_data_parallel

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._module(), "_replicate_for_data_parallel")
