"""Checks the rules of CONTRIBUTING.md that no compiler or formatter holds. Prints path:line: rule."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = (".h", ".cc", ".cu", ".cuh", ".py", ".cmake", ".txt", ".sh", ".proto")

# Files (regular expression), what must not stand there, and the rule in words.
FORBIDDEN = (
    (r"\.(h|cuh)$", r"^\s*using namespace", "no using-directive in a header"),
    (r"\.(h|cuh)$", r"#include <iostream>", "no <iostream> in a header"),
    (
        r"\.(h|cc|cu|cuh|py|sh)$",
        r"\b(TODO|FIXME|XXX)\b(?! ?\(#\d+\))",
        "no TODO without an issue",
    ),
    (
        r"(CMakeLists\.txt|\.cmake)$",
        r"^[^#]*(file\(GLOB|add_definitions|[^_]include_directories\(|link_directories)",
        "targets only: no globbing and no global flags",
    ),
    (
        r"^kernels/(?!common/ptx\.cuh).*\.(h|cu|cuh)$",
        r"^\s*#\s*if.*__CUDA_ARCH__",
        "__CUDA_ARCH__ only in kernels/common/ptx.cuh",
    ),
    (
        r"^kernels/(?!torch/).*",
        r"#include [<\"](torch|ATen|c10|absl|grpc)",
        "no framework here",
    ),
    (
        r"^server/.*\.(h|cc)$",
        r"#include [<\"](cuda|torch|ATen|c10|cupti)",
        "the daemon never loads CUDA, torch or a kernel",
    ),
    (
        # profiler/cupti_abi.cc keeps what the standard library throws from crossing the C ABI.
        r"^(server|profiler)/(?!cupti_abi\.cc).*\.(h|cc)$",
        r"^\s*(throw |try \{|catch \()",
        "no exceptions here",
    ),
    (
        r"(^|/)(utils?|helpers?|misc)(\.|/)",
        r"\A",
        "a file is named after what it holds, not utils or helpers",
    ),
)


# A field of a message; values of enums have no type before their name.
PROTO_FIELD = re.compile(
    r"\s*(?:(?:optional|repeated)\s+)?(?:map<[^>]+>|[\w.]+)\s+\w+\s*=\s*\d+\s*(?:\[[^\]]*\])?;"
)


def fields_without_comment(text: str) -> Iterator[int]:
    """Lines of a proto file with a field that has a comment neither right above nor behind it."""
    above = ""
    for number, line in enumerate(text.splitlines(), 1):
        field = PROTO_FIELD.match(line)
        if field and "//" not in line[field.end() :] and not above.lstrip().startswith("//"):
            yield number
        above = line


def guard_name(path: str) -> str:
    """The include guard that a header at `path` must have."""
    return re.sub(r"[^A-Za-z0-9]", "_", path).upper() + "_"


def complaints_about(path: str, text: str) -> list[str]:
    """All broken rules in one file."""
    found = []
    for files, pattern, rule in FORBIDDEN:
        if re.search(files, path):
            for match in re.finditer(pattern, text, re.MULTILINE):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{path}:{line}: {rule}")
    if path.endswith(".proto"):
        rule = "a field has a comment: meaning, unit, what absent or 0 means"
        found += [f"{path}:{line}: {rule}" for line in fields_without_comment(text)]
    if path.endswith((".h", ".cuh")):
        if f"#ifndef {guard_name(path)}" not in text:
            found.append(f"{path}:1: include guard must be {guard_name(path)}")
        if not text.lstrip().startswith("//"):
            found.append(f"{path}:1: a header opens with a paragraph that says what it is")
    return found


def main() -> int:
    """Checks every file that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    me = str(pathlib.Path(__file__).relative_to(ROOT))
    found: list[str] = []
    checked = 0
    for path in listed:
        if path == me or not path.endswith(SOURCES) or not (ROOT / path).is_file():
            continue
        checked += 1
        found += complaints_about(path, (ROOT / path).read_text())
    for line in found:
        print(line)
    print(f"house_rules: {checked} files, {len(found)} complaints")
    return 1 if found or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
