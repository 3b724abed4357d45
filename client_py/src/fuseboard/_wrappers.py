"""Decorators that a fingerprint may look through.

A wrapper changes what a function does, so only decorators of this list are taken off, and the list
says for each whether it computes (then its name is hashed) and in which module its wrapper is
defined (so that a wrapper put around the function later, by anyone else, is noticed).
"""

from __future__ import annotations

import ast
import dataclasses
import types
from typing import Any

from fuseboard._syntax import UnreadableSource, read_function


class UnknownWrapper(Exception):
    """A function is wrapped by something that is not on the list."""


@dataclasses.dataclass(frozen=True)
class _Decorator:
    """How a known decorator behaves.

    Attributes:
        wrapper_module: Where its wrapper's code lives; "" if it returns the function itself.
        computes: Whether it is part of what the function does.
    """

    wrapper_module: str
    computes: bool = False


_HF = "transformers.utils."
_CONTEXT = "torch.utils._contextlib"
_KNOWN = {
    _HF + "auto_docstring.auto_docstring": _Decorator(""),
    _HF + "doc.add_start_docstrings": _Decorator(""),
    _HF + "doc.add_start_docstrings_to_model_forward": _Decorator(""),
    _HF + "doc.add_end_docstrings": _Decorator(""),
    _HF + "doc.replace_return_docstrings": _Decorator(""),
    _HF + "doc.add_code_sample_docstrings": _Decorator(""),
    # These adapt arguments and the form of the result, not what is computed.
    _HF + "generic.can_return_tuple": _Decorator(_HF + "generic"),
    _HF + "generic.merge_with_config_defaults": _Decorator(_HF + "generic"),
    _HF + "deprecation.deprecate_kwarg": _Decorator(_HF + "deprecation"),
    _HF + "output_capturing.capture_outputs": _Decorator(_HF + "output_capturing"),
    "torch.autograd.grad_mode.no_grad": _Decorator(_CONTEXT, computes=True),
    "torch.autograd.grad_mode.enable_grad": _Decorator(_CONTEXT, computes=True),
    "torch.autograd.grad_mode.inference_mode": _Decorator(_CONTEXT, computes=True),
    "builtins.staticmethod": _Decorator(""),
    "builtins.classmethod": _Decorator(""),
    "builtins.property": _Decorator(""),
}
# Wrappers that accelerate puts around a model's forward: they cast inputs' context and outputs.
_TRANSPARENT_OVERRIDES = ("accelerate.utils.operations", "torch.amp.autocast_mode")


def innermost(function: Any) -> tuple[types.FunctionType, tuple[str, ...]]:
    """Takes known wrappers off.

    Returns:
        The function as written, and the decorators that compute, outermost first.

    Raises:
        UnknownWrapper: Something else is wrapped around it.
        UnreadableSource: Its source cannot be read.
    """
    layers = []
    current = function
    while True:
        if isinstance(current, types.MethodType):
            current = current.__func__
        wrapped = getattr(current, "__wrapped__", None)
        if wrapped is None:
            break
        layers.append(_module_of(current))
        current = wrapped
    if not isinstance(current, types.FunctionType):
        raise UnreadableSource(f"a {type(current).__name__} has no source")
    names = [_qualified(node, current) for node in read_function(current).decorators]
    while layers and layers[0] in _TRANSPARENT_OVERRIDES:
        layers.pop(0)
    _check_layers(current, layers, names)
    return current, tuple(name for name in names if _KNOWN[name].computes)


def _check_layers(function: types.FunctionType, layers: list[str], names: list[str]) -> None:
    """The wrappers must be exactly those that the written decorators make."""
    where = f"{function.__module__}.{function.__qualname__}"
    for name in names:
        if name not in _KNOWN:
            raise UnknownWrapper(f"{where} is decorated with {name}, which is not known")
    wanted = [_KNOWN[name].wrapper_module for name in names if _KNOWN[name].wrapper_module]
    if layers != wanted:
        raise UnknownWrapper(
            f"{where} is wrapped by {layers or 'nothing'}, its decorators make {wanted or 'nothing'}"
        )


def _module_of(wrapper: Any) -> str:
    """Where the code of a wrapper lives; functools.wraps hides it in the other attributes."""
    if isinstance(wrapper, types.FunctionType):
        return str(wrapper.__globals__.get("__name__", ""))
    return type(wrapper).__module__


def _qualified(node: ast.expr, function: types.FunctionType) -> str:
    """Qualified name of the object that a decorator expression calls."""
    target = node.func if isinstance(node, ast.Call) else node
    parts: list[str] = []
    while isinstance(target, ast.Attribute):
        parts.append(target.attr)
        target = target.value
    if not isinstance(target, ast.Name):
        raise UnreadableSource(f"decorator {ast.unparse(node)} of {function.__qualname__}")
    found: Any = function.__globals__.get(target.id)
    if found is None:
        builtin = function.__globals__["__builtins__"]
        space = builtin if isinstance(builtin, dict) else vars(builtin)
        found = space.get(target.id)
    for name in reversed(parts):
        found = getattr(found, name, None)
    if found is None:
        raise UnreadableSource(f"decorator {ast.unparse(node)} of {function.__qualname__}")
    return f"{found.__module__}.{getattr(found, '__qualname__', type(found).__name__)}"
