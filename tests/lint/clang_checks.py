"""Runs clang-tidy, with clang's thread-safety analysis, over the C++ sources of a build tree.

CUDA files are left out: they are nvcc's. The LibTorch binding is left out: torch's headers take
clang-tidy a minute per file and are not ours to check. A file whose text, flags, project headers,
rules and clang-tidy are as at its last clean run, in this or another checkout, is skipped.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECKED = ("server/", "profiler/", "tests/", "kernels/")
LEFT_OUT = ("kernels/torch/",)
RULES = (ROOT / ".clang-tidy", pathlib.Path(__file__).resolve())
# What GCC and clang disagree on: libstdc++ 12's stable_sort calls what libstdc++ 12 deprecates.
TOLERATED = ("-Wno-unknown-warning-option", "-Wno-deprecated-declarations")
GCC_FLAGS = ("-Winvalid-pch", "-fpch-preprocess", "-fvect-cost-model=dynamic")  # Unknown to clang.
STAMP_LIFE_S = 30 * 86400

# The analyzer walks paths until a number of states, 225,000 a function by default, and then takes most
# of the time: control_service.cc 21.6 s of CPU, with 10,000 a quarter. Whether it finds less then was not
# compared. Tests, where a matcher opens many paths, go without it: they run under sanitizers.
ANALYZER_FLAGS = ("-Xclang", "-analyzer-config", "-Xclang", "max-nodes=10000")
WITHOUT_ANALYZER = ("tests/",)


def project_headers(path: pathlib.Path, seen: set[pathlib.Path]) -> None:
    """Adds to `seen` the file and every project header and message that it uses, transitively."""
    if path in seen or not path.is_file():
        return
    seen.add(path)
    for name in re.findall(r'^(?:#include|import) "([^"]+)"', path.read_text(), re.MULTILINE):
        proto = re.sub(r"(\.grpc)?\.pb\.h$", ".proto", name)
        project_headers(ROOT / name, seen)
        project_headers(ROOT / "proto" / proto, seen)


def compiler_flags(entry: dict[str, str]) -> list[str]:
    """The entry's flags without compiler, launcher, output, input and what only GCC knows."""
    words = shlex.split(entry["command"])
    flags = words[next(i for i, w in enumerate(words) if w.endswith(("c++", "g++"))) + 1 :]
    kept: list[str] = []
    skip = False
    for word in flags:
        if skip or word in (*GCC_FLAGS, "-c", entry["file"]):
            skip = False
        elif word in ("-o", "-include"):  # The latter: GCC's precompiled headers.
            skip = True
        else:
            kept.append(word)
    return kept


def digest_of(source: pathlib.Path, flags: list[str], version: str) -> str:
    """What a clean run stands for; the same in every checkout of the same text."""
    digest = hashlib.sha256(version.encode())
    digest.update(" ".join(flags).replace(str(ROOT), "").encode())
    files = set(RULES)
    project_headers(source, files)
    for file in sorted(files):
        digest.update(f"\n{file.relative_to(ROOT)}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def check(entry: dict[str, str], stamps: pathlib.Path, tidy: str, version: str) -> tuple[str, str]:
    """Returns the source's path below the root and the complaints about it, "" if there are none."""
    source = pathlib.Path(entry["file"])
    name = str(source.relative_to(ROOT))
    checks = ["--checks=-clang-analyzer-*"] if name.startswith(WITHOUT_ANALYZER) else []
    flags = [*compiler_flags(entry), *ANALYZER_FLAGS]
    stamp = stamps / digest_of(source, flags, version)
    if stamp.exists():
        stamp.touch()
        return name, ""
    command = [tidy, "--quiet", "--extra-arg=-Wthread-safety", *checks, str(source)]
    command += ["--", *flags, *TOLERATED]
    run = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=entry["directory"]
    )
    if run.returncode == 0:
        stamp.touch()
        return name, ""
    return name, run.stdout + "\n".join(
        line for line in run.stderr.splitlines() if "warnings generated" not in line
    )


def open_stamps(folder: pathlib.Path) -> pathlib.Path:
    """The folder of stamps, made if need be and rid of those that nothing asked for in a month."""
    folder.mkdir(parents=True, exist_ok=True)
    for stamp in folder.iterdir():
        if stamp.stat().st_mtime < time.time() - STAMP_LIFE_S:
            stamp.unlink(missing_ok=True)
    return folder


def main() -> int:
    """Checks every source once; prints complaints; returns 1 if there were any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build/dev", help="build tree of compile_commands.json")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--clang-tidy", default="clang-tidy", help="the program; ./dev has its own")
    parser.add_argument(
        "--cache",
        default=os.environ.get("FUSEBOARD_CACHE", "~/.cache/fuseboard"),
        help="where to remember clean files",
    )
    options = parser.parse_args()
    build = ROOT / options.build
    stamps = open_stamps(pathlib.Path(options.cache).expanduser() / "clang_checks")
    tidy = options.clang_tidy
    version = subprocess.run([tidy, "--version"], check=True, capture_output=True, text=True).stdout
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
        results = [pool.submit(check, entry, stamps, tidy, version) for entry in entries.values()]
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
