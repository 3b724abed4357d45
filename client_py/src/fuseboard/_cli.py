"""The program `fuseboard`: what a training engineer asks on a node. Operators use `fusectl`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from fuseboard import _doctor
from fuseboard._version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program; returns its exit code: doctor gives 1 if every model would run native."""
    parser = argparse.ArgumentParser(prog="fuseboard", description="Fused training kernels.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="what is there, and why models run native")
    doctor.add_argument("--address", help="the daemon's job socket, unix:/path")
    commands.add_parser(
        "fingerprints", help="fingerprints of an installed transformers", add_help=False
    )
    options, rest = parser.parse_known_args(arguments)
    if options.command == "fingerprints":
        tool = importlib.import_module("fuseboard._fingerprint_tool")
        return int(tool.main(rest))
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return _print_examination(options.address)


def _print_examination(address: str | None) -> int:
    blocking = []
    for finding in _doctor.examine(address):
        print(f"{finding.name:<13} {finding.text}", flush=True)
        if finding.blocks:
            blocking.append(finding.name)
    if blocking:
        print(f"every model runs native because of: {', '.join(blocking)}")
        return 1
    print("models run what the daemon decides; print(fuseboard.report()) says what that is")
    return 0
