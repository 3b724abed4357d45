"""The fingerprint of a module's forward: "fb1:" and the SHA-256 of what the code is.

Hashed are the normalised source of the effective callable (an instance's own `forward` first) and,
transitively, every function, method, property, default, closure value and constant that it reaches
(docs/fingerprints.md). Functions of torch, of the standard library and C functions enter by name:
their version is part of the environment. What cannot be known is an error, never a guess.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import hashlib
import json
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from fuseboard._syntax import FunctionSyntax, UnreadableSource, canonical_text, read_function
from fuseboard._wrappers import UnknownWrapper, innermost

_VERSION = "fb1:"
# Packages whose functions are known by name. Their code belongs to the environment's version.
_NAMED_PACKAGES = frozenset(sys.stdlib_module_names) | {"torch", "numpy", "builtins"}
_MAX_ELEMENTS = 256


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """Either a value ("fb1:" and 64 hex digits) or, with value "", the reason there is none."""

    value: str
    error: str = ""


class _Unknown(Exception):
    """Something reached cannot be fingerprinted."""


def fingerprint_module(module: nn.Module) -> Fingerprint:
    """Fingerprints what `module.forward` runs.

    Memoised by class and function; a remembered value is used only while every name it was
    computed from still means the same object, so a helper that somebody replaces is noticed.
    """
    forward = effective_forward(module)
    remembered = _memo.get((type(module), forward))
    if remembered is not None and remembered.holds(module):
        return remembered.fingerprint
    reader = _Reader()
    try:
        found = Fingerprint(_VERSION + reader.function_digest(forward, module))
    except (_Unknown, UnreadableSource, UnknownWrapper) as error:
        found = Fingerprint("", str(error))
    except RecursionError:
        found = Fingerprint("", "the code reached is nested too deeply")
    if "forward" not in module.__dict__:
        _memo[type(module), forward] = _Remembered(found, tuple(reader.seen))
    return found


def effective_forward(module: nn.Module) -> Callable[..., Any]:
    """What a call of `module` runs: its own `forward` first (seen through ours), else its class's.

    Two calls return the same object as long as nobody replaced the forward.
    """
    own = module.__dict__.get("forward")
    own = getattr(own, "fuseboard_original", own)
    if own is None:
        return type(module).forward
    if isinstance(own, types.MethodType) and own.__self__ is module:
        function: Callable[..., Any] = own.__func__
        return function
    result: Callable[..., Any] = own
    return result


def own_class(module: nn.Module) -> type[nn.Module]:
    """The class as its author wrote it: fully_shard puts a subclass of its own in its place."""
    cls = type(module)
    if cls.__module__.startswith("torch.distributed.") and cls.forward is not nn.Module.forward:
        index: int = getattr(cls, "_orig_cls_mro_index", 0)
        return cls.__mro__[index]
    return cls


@dataclasses.dataclass(frozen=True)
class _Seen:
    """One name that was looked up, and what it meant."""

    root: Mapping[str, Any] | None  # None: looked up on the module
    path: tuple[str, ...]
    meaning: Any

    def holds(self, module: nn.Module) -> bool:
        try:
            if self.root is None:
                found: Any = module
                for name in self.path:
                    found = getattr(found, name)
            else:
                found = _resolve(self.root, self.path)
        except (AttributeError, KeyError):
            found = _MISSING
        return _identity(found) is _identity(self.meaning)


@dataclasses.dataclass(frozen=True)
class _Remembered:
    fingerprint: Fingerprint
    seen: tuple[_Seen, ...]

    def holds(self, module: nn.Module) -> bool:
        return all(entry.holds(module) for entry in self.seen)


_MISSING = object()
# Bounded by the classes of the process; holds classes and functions, never modules.
_memo: dict[tuple[type[nn.Module], Callable[..., Any]], _Remembered] = {}


def _identity(value: Any) -> Any:
    """A bound method is a new object at each access; its function is not."""
    return value.__func__ if isinstance(value, types.MethodType) else value


def _resolve(namespace: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Follows a dotted name through modules and classes; stops at the first other object."""
    if path[0] in namespace:
        found = namespace[path[0]]
    else:
        found = vars(builtins)[path[0]]
    for name in path[1:]:
        if not isinstance(found, types.ModuleType | type):
            break
        found = getattr(found, name)
    return found


class _Reader:
    """Digests one module's forward, and records every name it looked up."""

    def __init__(self) -> None:
        self.seen: list[_Seen] = []
        self._active: list[tuple[int, int]] = []

    def function_digest(
        self, function: Any, owner: nn.Module | None, cls: type | None = None
    ) -> str:
        """SHA-256 over all that `function` is; `owner` is what its first parameter will be."""
        bare, semantic = innermost(function)
        key = (id(bare), id(owner))
        if key in self._active:
            return f"cycle {len(self._active) - self._active.index(key)}"
        self._active.append(key)
        try:
            return self._digest(bare, semantic, owner, cls)
        finally:
            self._active.pop()

    def _digest(
        self,
        function: types.FunctionType,
        semantic: tuple[str, ...],
        owner: nn.Module | None,
        cls: type | None,
    ) -> str:
        syntax = read_function(function)
        closure = _closure(function)
        reached = self._reached_names(function, syntax, closure, owner)
        if owner is not None:
            for chain in syntax.self_chains:
                reached.update(self._reached_on(owner, chain))
            for name in syntax.super_chains:
                start = closure.get("__class__", cls)
                reached["super." + name] = self._super_method(owner, start, name)
        own = {own_class(owner).__name__} if owner is not None else set()
        own |= {c.__name__ for c in [closure.get("__class__")] if isinstance(c, type)}
        own.add(function.__name__)
        parts = {
            "code": canonical_text(syntax.tree, frozenset(own) - set(syntax.parameters)),
            "decorators": semantic,
            "defaults": [self.describe(v) for v in function.__defaults__ or ()],
            "keyword_defaults": {
                name: self.describe(v) for name, v in (function.__kwdefaults__ or {}).items()
            },
            "reached": reached,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def _reached_names(
        self,
        function: types.FunctionType,
        syntax: FunctionSyntax,
        closure: Mapping[str, Any],
        owner: nn.Module | None,
    ) -> dict[str, str]:
        """Descriptions of the globals and closure values that the function uses."""
        reached = {}
        for path in syntax.free_chains:
            if path[0] in ("super", "__class__"):
                continue
            root = closure if path[0] in closure else function.__globals__
            try:
                found = _resolve(root, path)
            except (AttributeError, KeyError) as error:
                raise _Unknown(
                    f"{'.'.join(path)} in {function.__qualname__} has no meaning"
                ) from error
            if root is not closure:
                self.seen.append(_Seen(root, path, found))
            if found is function or (owner is not None and found is own_class(owner)):
                continue
            try:
                reached[".".join(path)] = self.describe(found)
            except _Unknown as error:
                raise _Unknown(f"{'.'.join(path)} in {function.__qualname__}: {error}") from error
        return reached

    def _reached_on(self, owner: nn.Module, chain: tuple[str, ...]) -> dict[str, str]:
        """What `self.<chain>` is: code is described; parameters and plain attributes are not.

        (Those are conditions of the catalogue: Site.attributes, children and parameters.)
        """
        holder: Any = owner
        for depth, name in enumerate(chain):
            path = chain[: depth + 1]
            if name in holder._modules:
                holder = holder._modules[name]
                if isinstance(holder, nn.Module):
                    continue
                return {}
            if name in holder._parameters or name in holder._buffers:
                return {}
            description = self._attribute(holder, name, path)
            return {} if description is None else {"self." + ".".join(path): description}
        return {}

    def _attribute(self, holder: nn.Module, name: str, path: tuple[str, ...]) -> str | None:
        if name in holder.__dict__:
            value = holder.__dict__[name]
            self.seen.append(_Seen(None, path, value))
            return self.describe(value) if _is_code(value) else None
        static = next((vars(c)[name] for c in type(holder).__mro__ if name in vars(c)), _MISSING)
        if isinstance(static, property):
            return self._property(holder, static, name, path)
        try:
            value = getattr(holder, name)
        except AttributeError:
            value = _MISSING
        self.seen.append(_Seen(None, path, value))
        if value is _MISSING:
            return "missing"
        if isinstance(value, types.MethodType) and value.__self__ is holder:
            return self._method(value.__func__, holder)
        return self.describe(value)

    def _property(
        self, holder: nn.Module, static: property, name: str, path: tuple[str, ...]
    ) -> str:
        """A property that returns code (transformers' loss_function) is that code."""
        try:
            value = getattr(holder, name)
        except Exception as error:
            raise _Unknown(f"self.{name} raises {type(error).__name__}") from error
        if _is_code(value):
            self.seen.append(_Seen(None, path, value))
            return self.describe(value)
        if static.fget is None:
            return "missing"
        return self._method(static.fget, holder)

    def _method(self, function: Any, holder: nn.Module) -> str:
        if _is_named(function):
            return _name_of(function)
        return "function " + self.function_digest(function, holder)

    def _super_method(self, owner: nn.Module, start: Any, name: str) -> str:
        if not isinstance(start, type):
            raise _Unknown(f"super().{name} is called outside a class")
        function = getattr(super(start, owner), name, None)
        if not isinstance(function, types.MethodType):
            return self.describe(function)
        return self._method(function.__func__, owner)

    def describe(self, value: Any) -> str:
        """One line that two values share only if they do the same.

        Raises:
            _Unknown: Nothing safe can be said about `value`.
        """
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return f"{type(value).__name__} {value!r}"
        if value is ... or isinstance(value, torch.dtype | torch.device | torch.memory_format):
            return f"value {value}"
        if isinstance(value, enum.Enum):
            return f"enum {type(value).__module__}.{type(value).__qualname__}.{value.name}"
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, (type, types.GenericAlias)):
            return (
                f"class {getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value)}"
            )
        if isinstance(value, tuple | list | set | frozenset | dict):
            return self._describe_container(value)
        if isinstance(value, functools.partial):
            arguments = self.describe((value.args, dict(value.keywords)))
            return f"partial {self.describe(value.func)} {arguments}"
        return self._describe_code(value)

    def _describe_container(self, value: Any) -> str:
        if len(value) > _MAX_ELEMENTS:
            raise _Unknown(f"a {type(value).__name__} of {len(value)} elements")
        if isinstance(value, dict):
            pairs = [f"{self.describe(k)}: {self.describe(v)}" for k, v in value.items()]
            return f"dict {sorted(pairs)}"
        elements = [self.describe(element) for element in value]
        ordered = elements if isinstance(value, tuple | list) else sorted(elements)
        return f"{type(value).__name__} {ordered}"

    def _describe_code(self, value: Any) -> str:
        if isinstance(value, types.MethodType):
            holder = value.__self__
            if isinstance(holder, nn.Module):
                return self._method(value.__func__, holder)
            return f"method of {self.describe(holder)} {self.describe(value.__func__)}"
        if _is_named(value):
            return _name_of(value)
        if isinstance(value, types.FunctionType):
            return "function " + self.function_digest(value, None)
        if _top_package(type(value).__module__) in _NAMED_PACKAGES and not isinstance(
            value, torch.Tensor | nn.Module
        ):
            return f"object {type(value).__module__}.{type(value).__qualname__}"
        raise _Unknown(f"a {type(value).__module__}.{type(value).__qualname__} cannot be known")


def _is_code(value: Any) -> bool:
    return isinstance(
        value,
        types.FunctionType | types.MethodType | types.BuiltinFunctionType | functools.partial,
    )


def _is_named(value: Any) -> bool:
    """Whether a function is known by its name alone: C code, or of a named package."""
    if isinstance(value, types.FunctionType):
        return _top_package(value.__globals__.get("__name__", "")) in _NAMED_PACKAGES
    return isinstance(
        value,
        types.BuiltinFunctionType
        | types.MethodDescriptorType
        | types.WrapperDescriptorType
        | types.MethodWrapperType
        | types.GetSetDescriptorType,
    ) or type(value).__module__.startswith("torch._ops")


def _name_of(function: Any) -> str:
    package = getattr(function, "__module__", None) or ""
    if isinstance(function, types.FunctionType):
        package = function.__globals__.get("__name__", "")
    return f"name {package}.{getattr(function, '__qualname__', function)}"


def _top_package(module_name: str) -> str:
    return module_name.partition(".")[0]


def _closure(function: types.FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = {}
    for name, cell in cells:
        try:
            found[name] = cell.cell_contents
        except ValueError as error:
            raise _Unknown(f"closure variable {name} is empty") from error
    return found
