"""Runs clang-tidy, with clang's thread-safety analysis, over the C++ sources of a build tree.

CUDA files are left out: clang 14 cannot parse CUDA 13. The LibTorch binding is left out: torch's
headers take clang-tidy a minute per file and are not ours to check. A file whose text, flags and
project headers are as at its last clean run is skipped.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECKED = ("server/", "profiler/", "tests/", "kernels/")
LEFT_OUT = ("kernels/torch/",)


def project_headers(path: pathlib.Path, seen: set[pathlib.Path]) -> None:
    """Adds to `seen` the file and every project header that it includes, transitively."""
    if path in seen or not path.is_file():
        return
    seen.add(path)
    for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
        project_headers(ROOT / name, seen)


def compiler_flags(entry: dict[str, str]) -> list[str]:
    """The entry's flags without compiler, launcher, output and input."""
    words = shlex.split(entry["command"])
    flags = words[next(i for i, w in enumerate(words) if w.endswith(("c++", "g++"))) + 1 :]
    kept: list[str] = []
    skip = False
    for word in flags:
        if skip or word in ("-c", entry["file"]):
            skip = False
        elif word == "-o":
            skip = True
        else:
            kept.append(word)
    return kept


def check(entry: dict[str, str], stamps: pathlib.Path) -> tuple[str, str]:
    """Returns the source's path below the root and the complaints about it, "" if there are none."""
    source = pathlib.Path(entry["file"])
    name = str(source.relative_to(ROOT))
    flags = compiler_flags(entry)
    headers: set[pathlib.Path] = {ROOT / ".clang-tidy", pathlib.Path(__file__)}
    project_headers(source, headers)
    digest = hashlib.sha256(" ".join(flags).encode())
    for header in sorted(headers):
        digest.update(header.read_bytes())
    stamp = stamps / digest.hexdigest()
    if stamp.exists():
        return name, ""
    command = ["clang-tidy", "--quiet", "--extra-arg=-Wthread-safety", str(source)]
    command += ["--", *flags, "-Wno-unknown-warning-option"]
    run = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=entry["directory"]
    )
    if run.returncode == 0:
        stamp.touch()
        return name, ""
    return name, run.stdout + "\n".join(
        line for line in run.stderr.splitlines() if "warnings generated" not in line
    )


def main() -> int:
    """Checks every source once; prints complaints; returns 1 if there were any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build/dev", help="build tree of compile_commands.json")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    build = ROOT / options.build
    stamps = build / "clang_checks"
    stamps.mkdir(exist_ok=True)
    entries: dict[str, dict[str, str]] = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        if path.suffix != ".cc" or not path.is_relative_to(ROOT) or path.is_relative_to(build):
            continue
        name = str(path.relative_to(ROOT))
        if name.startswith(CHECKED) and not name.startswith(LEFT_OUT):
            entries.setdefault(name, entry)
    if not entries:
        print(
            "clang_checks: no sources found: is the build tree configured?",
            file=sys.stderr,
        )
        return 1
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = [pool.submit(check, entry, stamps) for entry in entries.values()]
        for done, future in enumerate(concurrent.futures.as_completed(results), 1):
            name, complaints = future.result()
            if complaints:
                failed += 1
                print(f"[{done}/{len(entries)}] {name}\n{complaints}", flush=True)
            elif done % 20 == 0:
                print(f"[{done}/{len(entries)}]", flush=True)
    print(f"clang_checks: {len(entries)} sources, {failed} with complaints")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
