"""Fingerprints of an installed transformers: what matches the catalogue, what is new, changed, gone.

    python -m fuseboard._fingerprint_tool list [--models llama,qwen3] > 5.17.0.json
    python -m fuseboard._fingerprint_tool compare 5.17.0.json 5.24.0.json
    python -m fuseboard._fingerprint_tool match 5.17.0.json server/catalog/*.textpb

`list` builds each causal language model on the meta device (no memory, no download) and prints, as
JSON, the fingerprint of every class per model type. docs/fingerprints.md shows a session.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Classes = dict[str, str]  # "role class" -> fingerprint, or "error: ..."
Listing = dict[str, Classes]  # by model type


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the tool; returns its exit code (compare: 1 if anything differs)."""
    parser = argparse.ArgumentParser(prog="python -m fuseboard._fingerprint_tool")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="fingerprints of the installed transformers")
    listing.add_argument("--models", default="", help="model types, by comma; default: all")
    comparing = commands.add_parser("compare", help="what differs between two listings")
    comparing.add_argument("old", type=pathlib.Path)
    comparing.add_argument("new", type=pathlib.Path)
    matching = commands.add_parser("match", help="which model types match which entries")
    matching.add_argument("listing", type=pathlib.Path)
    matching.add_argument("catalogue", type=pathlib.Path, nargs="+")
    options = parser.parse_args(arguments)
    if options.command == "list":
        json.dump(list_models([m for m in options.models.split(",") if m]), sys.stdout, indent=1)
        return 0
    if options.command == "compare":
        lines = compare(_read(options.old), _read(options.new))
        print("\n".join(lines))
        return 1 if lines else 0
    for entry, models in match(_read(options.listing), options.catalogue).items():
        print(f"{entry}: {', '.join(models)}")
    return 0


def list_models(wanted: Sequence[str] = ()) -> Listing:
    """Fingerprints by model type. A model that cannot be built has the reason under "model"."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return {name: _classes_of(name) for name in wanted or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)}


def compare(old: Listing, new: Listing) -> list[str]:
    """One line per class that is new, changed or gone."""
    lines = []
    for model in sorted(old.keys() | new.keys()):
        before, after = old.get(model, {}), new.get(model, {})
        for name in sorted(before.keys() | after.keys()):
            if name not in before:
                lines.append(f"new      {model}: {name}")
            elif name not in after:
                lines.append(f"gone     {model}: {name}")
            elif before[name] != after[name]:
                lines.append(f"changed  {model}: {name}")
    return lines


def match(listing: Listing, catalogue: Iterable[pathlib.Path]) -> dict[str, list[str]]:
    """By entry, the model types of which a class has one of its fingerprints.

    Conditions are not looked at: those are the daemon's question (`fusectl explain`).
    """
    found: dict[str, list[str]] = {}
    for path in catalogue:
        for entry, values in _entries(path.read_text(encoding="utf-8")):
            models = [m for m, classes in listing.items() if values & set(classes.values())]
            found[entry] = sorted(models)
    return found


def _entries(text: str) -> Iterable[tuple[str, set[str]]]:
    for block in re.split(r"^entries\s*{", text, flags=re.MULTILINE)[1:]:
        identifier = re.search(r'^\s*id:\s*"([^"]+)"', block, flags=re.MULTILINE)
        if identifier:
            yield identifier[1], set(re.findall(r'"(fb1:[0-9a-f]{64})"', block))


def _classes_of(model_type: str) -> Classes:
    import torch
    import transformers

    from fuseboard._sites import discover

    try:
        with warnings.catch_warnings(), torch.device("meta"):
            warnings.simplefilter("ignore")
            config: Any = transformers.AutoConfig.for_model(model_type)
            config.num_hidden_layers = 2
            factory: Any = transformers.AutoModelForCausalLM
            model = factory.from_config(config)
        groups = discover(model)
    except Exception as error:  # noqa: BLE001  Third-party constructors may raise anything.
        return {"model": f"error: {type(error).__name__}: {str(error)[:200]}"}
    classes: Classes = {}
    for group in groups:
        site = group.site
        name = f"{site.role} {site.qualified_name}"
        classes[name] = site.fingerprint or f"error: {site.fingerprint_error}"
    return classes


def _read(path: pathlib.Path) -> Listing:
    content: Mapping[str, Classes] = json.loads(path.read_text(encoding="utf-8"))
    return dict(content)


if __name__ == "__main__":
    sys.exit(main())
