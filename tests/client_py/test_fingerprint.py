"""Fingerprints: equal for equal code however written, different for any difference that computes."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch")

from fakes import fingerprinted as code
from fuseboard._fingerprint import fingerprint_module
from torch import nn

HERE = pathlib.Path(__file__).resolve().parent
# Taken with Python 3.11. The same on 3.10 to 3.13, or fingerprints would depend on the interpreter.
GOLDEN = "fb1:beb666f036583467fdb878b4dd93a99d7be850eb775e43d83b817c8756ed4a70"


def value(module: nn.Module) -> str:
    found = fingerprint_module(module)
    assert found.error == "" and found.value.startswith("fb1:") and len(found.value) == 68
    return found.value


def test_value_is_the_golden_one() -> None:
    assert value(code.Golden()) == GOLDEN


def test_value_is_the_same_in_another_process() -> None:
    script = (
        "from fakes import fingerprinted as c\n"
        "from fuseboard._fingerprint import fingerprint_module\n"
        "print(fingerprint_module(c.Golden()).value)"
    )
    paths = [str(HERE), str(HERE.parents[1] / "client_py" / "src")]
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": ":".join(paths), "PYTHONHASHSEED": "1", "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == GOLDEN


def test_layout_comments_annotations_and_class_name_do_not_count() -> None:
    assert value(code.Golden()) == value(code.SameWrittenOtherwise())
    assert value(code.OwnName()) == value(code.OtherName())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (code.OtherConstant, code.OtherConstantToo),
        (code.Grouped, code.GroupedOtherwise),
        (code.ClassConstant, code.OtherClassConstant),
        (code.closed_over(1), code.closed_over(2)),
        (code.closed_over(code.helper), code.closed_over(code.other_helper)),
        (code.NoGrad, code.WithGrad),
    ],
    ids=["constant", "method", "class constant", "closure value", "closure code", "no_grad"],
)
def test_what_computes_counts(one: type[nn.Module], other: type[nn.Module]) -> None:
    assert value(one()) != value(other())


def test_replaced_helper_is_noticed_although_values_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = value(code.Golden())
    monkeypatch.setattr(code, "helper", code.other_helper)
    assert value(code.Golden()) != before
    monkeypatch.undo()
    assert value(code.Golden()) == before


def test_changed_global_constant_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = value(code.Golden())
    monkeypatch.setattr(code, "SCALE", 4.0)
    assert value(code.Golden()) != before


def test_replaced_torch_function_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = value(code.Golden())
    monkeypatch.setattr(torch.nn.functional, "silu", code.helper)
    assert value(code.Golden()) != before


def test_property_that_returns_code_counts_as_that_code() -> None:
    plain, chosen = code.ByProperty(), code.ByProperty()
    before = value(plain)
    chosen.__dict__["mine"] = code.other_helper
    assert value(chosen) != before
    assert value(plain) == before


def test_own_forward_of_an_instance_counts_first() -> None:
    module = code.Grouped()
    before = value(module)
    module.forward = types.MethodType(code.OtherConstant.forward, module)
    assert value(module) == value(code.OtherConstant()) != before
    del module.forward
    assert value(module) == before


def test_recursion_ends() -> None:
    assert value(code.Recursive())


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (code.Decorated(), "decorated with fakes.fingerprinted.passing, which is not known"),
        (code.Dynamic(), "calls getattr on itself"),
        (code.closed_over(object.__new__(code.Grouped))(), "cannot be known"),
    ],
    ids=["decorator", "dynamic", "closure object"],
)
def test_what_cannot_be_known_is_an_error_with_the_reason(module: nn.Module, reason: str) -> None:
    found = fingerprint_module(module)
    assert found.value == "" and reason in found.error


def test_wrapper_put_on_later_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert value(code.WithGrad())
    monkeypatch.setattr(code.WithGrad, "forward", code.passing(code.WithGrad.forward))
    found = fingerprint_module(code.WithGrad())
    assert found.value == "" and "is wrapped by ['fakes.fingerprinted']" in found.error


def test_code_without_source_is_an_error() -> None:
    space: dict[str, type[nn.Module]] = {"nn": nn}  # type: ignore[dict-item]
    exec("class Typed(nn.Module):\n    def forward(self, x):\n        return x", space)  # noqa: S102
    found = fingerprint_module(space["Typed"]())
    assert found.value == "" and "cannot be read" in found.error


def test_source_that_was_edited_after_the_import_is_an_error(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "edited.py"
    text = "from torch import nn\nclass Edited(nn.Module):\n    def forward(self, x):\n        return x * 2\n"
    file.write_text(text)
    sys.path.insert(0, str(tmp_path))
    try:
        import edited  # type: ignore[import-not-found]

        file.write_text(text.replace("* 2", "* 3 + 1"))
        found = fingerprint_module(edited.Edited())
    finally:
        sys.path.remove(str(tmp_path))
    assert found.value == "" and "is not the code that runs" in found.error
