"""Reads the source of a running function as a syntax tree that does not depend on how it is written.

What is removed: comments, layout, docstrings, annotations, decorators, defaults (their *values* are
fingerprinted), and the function's own name. What an interpreter adds or renames between Python 3.10
and 3.13 is left out of the text form. The source must be that of the running code: a file edited
after its import is refused.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import symtable
import textwrap
import types
from collections.abc import Iterator


class UnreadableSource(Exception):
    """The source cannot be had, or is not what runs. The message says which function and why."""


@dataclasses.dataclass(frozen=True)
class FunctionSyntax:
    """A function, read.

    Attributes:
        tree: Arguments and body, normalised.
        decorators: As written, outermost first.
        free_chains: Dotted names whose root is not a local: ("torch", "rsqrt").
        self_chains: Dotted names behind the first parameter: ("weight",).
        super_chains: Names called on `super()`.
        parameters: Names of all parameters.
    """

    tree: ast.FunctionDef
    decorators: tuple[ast.expr, ...]
    free_chains: tuple[tuple[str, ...], ...]
    self_chains: tuple[tuple[str, ...], ...]
    super_chains: tuple[str, ...]
    parameters: tuple[str, ...]


def read_function(function: types.FunctionType) -> FunctionSyntax:
    """Parses, checks and normalises `function`, whose wrappers were taken off before.

    Raises:
        UnreadableSource: No source, a lambda, or not the code that runs.
    """
    definition = _parse(function)
    decorators = tuple(definition.decorator_list)
    _check_same_code(function, definition)
    tree = _Normaliser().visit(definition)
    assert isinstance(tree, ast.FunctionDef)
    ast.fix_missing_locations(tree)
    free = _free_names(tree)
    chains = list(_chains(tree))
    positional = [*tree.args.posonlyargs, *tree.args.args]
    first = positional[0].arg if positional else ""
    _refuse_dynamic_lookup(tree, function, first)
    return FunctionSyntax(
        tree=tree,
        decorators=decorators,
        free_chains=tuple(sorted({c for c in chains if c[0] in free})),
        self_chains=tuple(sorted({c[1:] for c in chains if c[0] == first and len(c) > 1})),
        super_chains=tuple(sorted(set(_super_attributes(tree)))),
        parameters=tuple(node.arg for node in ast.walk(tree.args) if isinstance(node, ast.arg)),
    )


def canonical_text(node: object, own_names: frozenset[str]) -> str:
    """Text of a tree that is the same for all supported Pythons.

    Args:
        node: A normalised tree.
        own_names: Names of the class itself, written as "<own>".
    """
    if isinstance(node, ast.AST):
        fields = []
        for name, value in ast.iter_fields(node):
            if name in _SKIPPED_FIELDS or value is None or value == []:
                continue
            if isinstance(node, ast.JoinedStr):  # 3.12 ends some f-strings with an empty constant.
                value = [v for v in value if not (isinstance(v, ast.Constant) and v.value == "")]
            if isinstance(node, ast.Name) and value in own_names:
                value = "<own>"
            fields.append(f"{name}={canonical_text(value, own_names)}")
        # Constant(value=None) must not look like an absent value.
        if isinstance(node, ast.Constant) and node.value is None:
            fields.append("value=None")
        return f"{type(node).__name__}({', '.join(fields)})"
    if isinstance(node, list):
        return "[" + ", ".join(canonical_text(item, own_names) for item in node) + "]"
    return repr(node)


# type_params is new in 3.12, kind tells u"" from "", ctx follows from the position.
_SKIPPED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_params"})


def _parse(function: types.FunctionType) -> ast.FunctionDef:
    where = f"{function.__module__}.{function.__qualname__}"
    try:
        source = textwrap.dedent(inspect.getsource(function))
        module = ast.parse(source)
    except (OSError, TypeError, SyntaxError, IndentationError) as error:
        raise UnreadableSource(f"source of {where} cannot be read: {error}") from error
    definition = module.body[0] if len(module.body) == 1 else None
    if not isinstance(definition, ast.FunctionDef):
        raise UnreadableSource(f"{where} is not a plain function definition")
    return definition


class _Normaliser(ast.NodeTransformer):
    """Removes what does not compute."""

    def __init__(self) -> None:
        self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        node.returns = None
        node.type_comment = None
        if self._depth == 0:
            node.name = "own"
            node.decorator_list = []
            node.args.defaults = [ast.Constant(value=...) for _ in node.args.defaults]
            node.args.kw_defaults = [
                None if default is None else ast.Constant(value=...)
                for default in node.args.kw_defaults
            ]
        node.body = node.body or [ast.Pass()]
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        node.type_comment = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        value = self.visit(node.value)
        return ast.Assign(targets=[node.target], value=value, lineno=node.lineno)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        # A string that stands alone is a docstring or a comment.
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        self.generic_visit(node)
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list) and not body and not isinstance(node, ast.Module):
            body.append(ast.Pass())
        return node


def _check_same_code(function: types.FunctionType, definition: ast.FunctionDef) -> None:
    """Compares names and constants of the source with those of the code that runs."""
    bare = ast.FunctionDef(**{**dict(ast.iter_fields(definition)), "decorator_list": []})
    module = ast.Module(body=[ast.copy_location(bare, definition)], type_ignores=[])
    flags = function.__code__.co_flags & _FUTURE_FLAGS
    try:
        compiled = compile(module, "<fingerprint>", "exec", flags=flags, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        where = f"{function.__module__}.{function.__qualname__}"
        raise UnreadableSource(f"source of {where} cannot be compiled: {error}") from error
    code = next(c for c in compiled.co_consts if isinstance(c, types.CodeType))
    if _facts(code) != _facts(function.__code__):
        raise UnreadableSource(
            f"source of {function.__module__}.{function.__qualname__} in "
            f"{function.__code__.co_filename} is not the code that runs"
        )


# `from __future__ import annotations` changes what nested functions compile to.
_FUTURE_FLAGS = 0x1000000


def _facts(code: types.CodeType) -> set[str]:
    """What two compilations of one source have in common, wherever its names are bound."""
    facts: set[str] = set()
    names = {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars}
    facts.update("name " + n for n in names if n != "__class__")
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            facts |= _facts(constant)
        elif not isinstance(constant, str | type(None)):
            facts.add(f"constant {constant!r}")
        elif isinstance(constant, str) and "\n" not in constant and "." not in constant:
            # NOTE: qualified names (in co_consts up to 3.10) and docstrings differ lawfully.
            facts.add(f"constant {constant!r}")
    return facts


def _free_names(tree: ast.FunctionDef) -> set[str]:
    """Names that no scope inside the function binds."""
    table = symtable.symtable(ast.unparse(tree), "<fingerprint>", "exec").get_children()[0]
    return set(_global_symbols(table))


def _global_symbols(table: symtable.SymbolTable) -> Iterator[str]:
    for symbol in table.get_symbols():
        if symbol.is_global():
            yield symbol.get_name()
    for child in table.get_children():
        yield from _global_symbols(child)


def _chains(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """The longest dotted names: `a.b.c(x)` gives ("a", "b", "c"), and never ("a", "b") too."""
    for node in ast.iter_child_nodes(tree):
        parts: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name):
            yield (inner.id, *reversed(parts))
        else:
            yield from _chains(inner)
            if inner is not node:
                continue


def _super_attributes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call)):
            continue
        if isinstance(node.value.func, ast.Name) and node.value.func.id == "super":
            yield node.attr


def _refuse_dynamic_lookup(tree: ast.AST, function: types.FunctionType, first: str) -> None:
    """Code that finds what it runs by computed name cannot be known from its source."""
    where = f"{function.__module__}.{function.__qualname__}"
    method = first == "self"
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            raise UnreadableSource(f"{where} imports at run time")
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
            continue
        if node.func.id in ("eval", "exec", "globals", "locals", "vars", "__import__"):
            raise UnreadableSource(f"{where} calls {node.func.id}")
        target = node.args[0] if node.args else None
        if (
            method
            and node.func.id == "getattr"
            and isinstance(target, ast.Name)
            and target.id == first
        ):
            raise UnreadableSource(f"{where} calls getattr on itself")
