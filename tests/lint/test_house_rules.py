"""The house rules: each finds what it forbids, where it stands, and leaves the rest alone."""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from house_rules import complaints_about

UNDONE = "todo".upper()  # This file is checked too.


@pytest.mark.parametrize(
    ("path", "line", "rule"),
    [
        ("server/x.h", "using namespace std;", "using-directive"),
        ("server/x.h", "#include <iostream>", "<iostream>"),
        ("server/x.cc", f"// {UNDONE}: later", "without an issue"),
        ("server/CMakeLists.txt", "file(GLOB sources *.cc)", "targets only"),
        ("kernels/x/x.cu", "#if __CUDA_ARCH__ >= 900", "__CUDA_ARCH__"),
        ("kernels/x/x.cu", "#include <torch/torch.h>", "no framework"),
        ("server/x.cc", "#include <cuda_runtime.h>", "never loads CUDA"),
        ("profiler/x.cc", "  throw 1;", "no exceptions"),
        ("server/utils.cc", "int x;", "named after what it holds"),
        ("proto/x.proto", "  int64 size_bytes = 1;", "a field has a comment"),
    ],
)
def test_what_a_rule_forbids_is_found(path: str, line: str, rule: str) -> None:
    found = complaints_about(path, f"// x\n{line}\n" if "proto" not in path else f"\n{line}\n")
    assert [complaint for complaint in found if rule in complaint]


def test_a_complaint_names_path_and_line() -> None:
    text = "message M {\n  // Its name.\n  string name = 1;\n  int32 count = 2;\n}\n"
    assert complaints_about("proto/m.proto", text) == [
        "proto/m.proto:4: a field has a comment: meaning, unit, what absent or 0 means"
    ]


@pytest.mark.parametrize(
    "field",
    [
        "int64 a = 1;",
        "repeated fuseboard.v1.Site sites = 2;",
        "optional double a = 3;",
        "map<string, AttributeValue> attributes = 4;",
        "string a = 5 [deprecated = true];",
    ],
)
def test_every_form_of_a_field_wants_a_comment_above_or_behind(field: str) -> None:
    path = "proto/m.proto"
    assert len(complaints_about(path, f"message M {{\n  {field}\n}}\n")) == 1
    assert complaints_about(path, f"message M {{\n  // Why.\n  {field}\n}}\n") == []
    assert complaints_about(path, f"message M {{\n  {field}  // Why.\n}}\n") == []
    # The comment of the field before is its own.
    assert len(complaints_about(path, f"  int32 b = 9;  // Why.\n  {field}\n")) == 1


@pytest.mark.parametrize(
    "line", ["KIND_OFF = 1;", 'option x = "1";', "reserved 1, 2;", "M m();", "// int32 a = 1;"]
)
def test_what_is_no_field_wants_none(line: str) -> None:
    assert complaints_about("proto/m.proto", f"enum E {{\n  {line}\n}}\n") == []


def test_a_header_has_its_guard_and_says_what_it_is() -> None:
    good = "// What.\n#ifndef SERVER_X_H_\n#define SERVER_X_H_\n#endif\n"
    assert complaints_about("server/x.h", good) == []
    bad = complaints_about("server/x.h", "#ifndef X_H\n")
    assert [complaint.split(": ")[1][:7] for complaint in bad] == ["include", "a heade"]
