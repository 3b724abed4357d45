"""The tables of docs/ops.md, made of the code: `python -m tests.client_py.ops_page` writes them."""

from __future__ import annotations

import inspect
import pathlib
import re
from typing import Any

import torch
from fuseboard import nn, ops

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "ops.md"


def call(name: str, described: Any) -> str:
    """The call with its defaults, types left out."""
    signature = inspect.signature(described)
    if getattr(described, "__init__", None) is torch.nn.Module.__init__:
        signature = inspect.Signature()
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    shown = signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)
    return f"`{name}{shown}`"


def first_sentence(described: Any) -> str:
    """The first line of its documentation, safe in a table."""
    return (inspect.getdoc(described) or "").splitlines()[0].replace("|", "\\|")


def keys(name: str) -> str:
    """The state of a module of any size, all its options on."""
    sizes = {"QKNormRope": (8,), "SwiGLU": (8, 8), "GEGLU": (8, 8), "JSDLoss": (), "Softmax": (-1,)}
    sizes["GroupNorm"] = (4, 8)
    sizes |= dict.fromkeys(("LinearCrossEntropyLoss", "LinearJSDLoss"), (8, 8))
    module = getattr(nn, name)
    arguments: tuple[Any, ...] = sizes.get(name, (8,) if name.endswith("Norm") else ())
    taken = inspect.signature(module).parameters
    options: dict[str, Any] = {"bias": True} if "bias" in taken else {}
    options |= {"weight": torch.ones(8)} if "weight" in taken else {}
    return ", ".join(f"`{key}`" for key in module(*arguments, **options).state_dict()) or "–"


def functions() -> str:
    """A row for each function."""
    rows = ["| function | computes |", "|---|---|"]
    for name in ops.__all__:
        function = getattr(ops, name)
        rows.append(f"| {call(name, function)} | {first_sentence(function)} |")
    return "\n".join(rows)


def modules() -> str:
    """A row for each module."""
    rows = ["| module | state | computes |", "|---|---|---|"]
    for name in nn.__all__:
        module = getattr(nn, name)
        rows.append(f"| {call(name, module)} | {keys(name)} | {first_sentence(module)} |")
    return "\n".join(rows)


def with_tables(page: str) -> str:
    """`page` with the tables as they should be."""
    for title, table in (("Functions", functions()), ("Modules", modules())):
        pattern = rf"(?s)(## {title}\n.*?\n\n)\| .*?\n(\n|\Z)"
        page, found = re.subn(pattern, lambda m, t=table: f"{m[1]}{t}\n{m[2]}", page)
        assert found == 1, f"{PAGE} has {found} tables below {title}, want 1"
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
