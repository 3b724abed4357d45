"""The package as a whole: what an import costs, where its installation is found, its program."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import fuseboard
import pytest
from fuseboard import _cli, _home
from fuseboard._errors import FuseboardError


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_import_brings_neither_torch_nor_grpc_nor_protobuf() -> None:
    done = run(
        "-c",
        "import sys, fuseboard\n"
        "print(sorted({'torch', 'grpc', 'google.protobuf', 'transformers'} & set(sys.modules)))",
    )
    assert done.stdout == "[]\n", done.stderr


def test_without_torch_patch_says_so() -> None:
    done = run(
        "-c",
        "import sys; sys.modules['torch'] = None\n"
        "import fuseboard\n"
        "try: fuseboard.patch(object())\n"
        "except fuseboard.FuseboardError as error: print(error.code)",
    )
    assert done.stdout == "NO_TORCH\n", done.stderr


def test_without_grpc_everything_runs_native_and_says_why(fake_home: pathlib.Path) -> None:
    pytest.importorskip("torch")
    done = run(
        "-c",
        "import sys; sys.modules['grpc'] = None\n"
        "import fuseboard, torch\n"
        "patched = fuseboard.patch(torch.nn.Linear(2, 2), address='unix:/nowhere.sock')\n"
        "print(patched.problem)",
    )
    assert done.stdout.startswith("grpcio cannot be imported"), done.stderr
    assert done.stderr.count("everything runs native") == 1


def test_the_public_names_are_few_and_documented() -> None:
    assert len(fuseboard.__all__) <= 12
    for name in fuseboard.__all__:
        assert getattr(fuseboard, name).__doc__, name


def test_an_installation_named_by_the_environment_is_the_only_one_looked_at(
    fake_home: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _home.find_home().root == fake_home
    monkeypatch.setenv("FUSEBOARD_HOME", str(fake_home / "typo"))
    with pytest.raises(FuseboardError, match="typo") as caught:
        _home.find_home()
    assert caught.value.code == "NO_INSTALLATION"


def install(root: pathlib.Path) -> pathlib.Path:
    (root / "share" / "fuseboard").mkdir(parents=True)
    (root / "share" / "fuseboard" / "fuseboard.binpb").touch()
    return root


def test_a_package_that_brings_its_installation_uses_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FUSEBOARD_HOME", raising=False)
    package = tmp_path / "client_py" / "src" / "fuseboard"
    install(tmp_path / "build" / "dev" / "stage")
    inside = install(package / "_dist")
    assert _home.find_home(package).root == inside


@pytest.mark.parametrize("build", ["dev", "gpu", "release"])
def test_a_source_checkout_uses_its_build(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, build: str
) -> None:
    monkeypatch.delenv("FUSEBOARD_HOME", raising=False)
    stage = install(tmp_path / "build" / build / "stage")
    assert _home.find_home(tmp_path / "client_py" / "src" / "fuseboard").root == stage


def test_an_installed_package_does_not_take_a_build_that_happens_to_be_near(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FUSEBOARD_HOME", raising=False)
    install(tmp_path / "build" / "dev" / "stage")
    monkeypatch.setattr(sys, "prefix", str(install(tmp_path / "prefix")))
    package = tmp_path / "lib" / "site-packages" / "fuseboard"
    assert _home.find_home(package).root == tmp_path / "prefix"


def test_a_descriptor_set_that_is_none_is_named(tmp_path: pathlib.Path) -> None:
    home = install(tmp_path / "home")
    (home / "share" / "fuseboard" / "fuseboard.binpb").write_bytes(b"\xff" * 20)
    done = run(
        "-c",
        "from fuseboard import _messages\n"
        "try: _messages.message('Plan')\n"
        "except Exception as error: print(type(error).__name__, error)",
        FUSEBOARD_HOME=str(home),
    )
    assert done.stdout.startswith("FuseboardError") and "is not a descriptor set" in done.stdout


def test_the_doctor_says_what_is_there_and_what_the_daemon_has(
    fake_home: pathlib.Path, short_tmp: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from fakes.fake_daemon import FakeDaemon

    daemon = FakeDaemon(str(short_tmp / "job.sock"), short_tmp / "state").start()
    try:
        code = _cli.main(["doctor", "--address", daemon.address])
    finally:
        daemon.stop()
    out = capsys.readouterr().out
    assert code == 0, out
    assert f"installation  {fake_home} (FUSEBOARD_HOME)" in out
    assert "kernel        rms_norm" in out


def test_the_doctor_names_what_makes_every_model_native(
    fake_home: pathlib.Path,
    short_tmp: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FUSEBOARD_DISABLE", "1")
    assert _cli.main(["doctor", "--address", f"unix:{short_tmp}/absent.sock"]) == 1
    out = capsys.readouterr().out
    assert "UNAVAILABLE" in out
    assert out.endswith("every model runs native because of: switch, daemon\n")


def test_the_program_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        _cli.main(["doctor", "--adress", "x"])
    assert caught.value.code == 2
    assert "--adress" in capsys.readouterr().err


def test_fingerprints_are_delegated_to_their_tool(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        _cli.main(["fingerprints", "--help"])
    assert caught.value.code == 0
    assert "compare" in capsys.readouterr().out
