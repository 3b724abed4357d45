"""How direct calls find their kernels, and what runs where there are none. A process each."""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

from fuseboard._errors import FuseboardError
from fuseboard._home import find_home

from tests import warm

PRELUDE = """
import json, os, sys, threading
import torch
from fuseboard import ops
def fused():
    return json.loads(torch.ops.fuseboard.counters()).get("rms_norm", {}).get("fused", 0)
x = torch.randn(4, 32)
want = torch.nn.functional.rms_norm(x, (32,))
def right():
    return torch.allclose(ops.rms_norm(x, 32), want, atol=1e-5)
"""


@pytest.fixture
def home(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of the installation that a test may spoil; libraries are linked."""
    try:
        root = find_home().root
    except FuseboardError:
        pytest.skip("nothing was built")
    copy = tmp_path / "home"
    (copy / "lib" / "fuseboard" / "kernels").mkdir(parents=True)
    (copy / "share").symlink_to(root / "share")
    (copy / "lib" / "fuseboard" / "torch").symlink_to(root / "lib" / "fuseboard" / "torch")
    for library in (root / "lib" / "fuseboard" / "kernels").iterdir():
        (copy / "lib" / "fuseboard" / "kernels" / library.name).symlink_to(library)
    return copy


def run(home: pathlib.Path, body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    changed = {"FUSEBOARD_DISABLE": "", "FUSEBOARD_HOME": str(home), **environment}
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    program = PRELUDE + textwrap.dedent(body)
    return warm.run(warm.TORCH, program, environment={**os.environ, **paths, **changed})


def test_the_first_call_opens_the_kernel(home: pathlib.Path) -> None:
    done = run(home, "print(right(), fused())")
    assert done.stdout == "True 1\n", done.stderr


def test_a_batch_without_a_row_that_counts_is_reported_once(home: pathlib.Path) -> None:
    body = """
        hidden = torch.randn(4, 8, requires_grad=True)
        for _ in range(2):
            target = torch.full((4,), -100)
            loss = ops.fused_linear_cross_entropy(hidden, torch.randn(16, 8), target)
            loss.backward()
        print(loss.item(), hidden.grad.abs().max().item())
        """
    done = run(home, body)
    assert done.stdout == "0.0 0.0\n", done.stderr
    assert done.stderr.count("all its 4 targets are ignore_index") == 1, done.stderr


def test_switched_off_the_composite_runs(home: pathlib.Path) -> None:
    done = run(home, "print(right(), fused())", FUSEBOARD_DISABLE="1")
    assert (done.stdout, done.stderr) == ("True 0\n", "")


@pytest.mark.parametrize("spoil", ["absent", "of another digest", "without manifest"])
def test_without_its_library_the_composite_runs_and_it_is_said_once(
    home: pathlib.Path, spoil: str
) -> None:
    library = home / "lib" / "fuseboard" / "kernels" / "rms_norm.so"
    if spoil == "without manifest":
        library.with_suffix(".textpb").unlink()
    else:
        library.unlink()
    if spoil == "of another digest":
        library.symlink_to(library.with_name("swiglu.so").resolve())
    done = run(home, "print(right(), right(), fused(), ops.relu_squared(x).shape)")
    assert done.stdout == "True True 0 torch.Size([4, 32])\n", done.stderr
    assert done.stderr.count("rms_norm runs without a kernel library") == 1
    assert str(library.with_suffix("")) in done.stderr


def test_without_a_binding_for_this_torch_the_error_says_which_there_are(
    home: pathlib.Path,
) -> None:
    bindings = home / "lib" / "fuseboard" / "torch"
    bindings.unlink()
    (bindings / "1.0-cpu").mkdir(parents=True)
    (bindings / "1.0-cpu" / "libfuseboard_torch.so").touch()
    done = run(
        home,
        """
        from fuseboard import ArtifactError
        try: ops.rms_norm(x, 32)
        except ArtifactError as error: print(error.code, error)
        """,
    )
    assert done.stdout.startswith("NO_BINDING"), done.stderr
    assert f"no binding for torch {torch.__version__.split('+')[0]}" in done.stdout
    assert done.stdout.endswith("only for: 1.0-cpu\n")


def test_without_an_installation_the_error_names_the_folders(tmp_path: pathlib.Path) -> None:
    done = run(
        tmp_path / "nowhere",
        """
        from fuseboard import FuseboardError
        try: ops.rms_norm(x, 32)
        except FuseboardError as error: print(error.code, error)
        """,
    )
    assert done.stdout.startswith("NO_INSTALLATION") and "nowhere" in done.stdout, done.stderr


def test_a_binding_that_the_caller_loaded_is_used(home: pathlib.Path) -> None:
    done = run(
        home,
        """
        import pathlib
        home = pathlib.Path(os.environ["FUSEBOARD_HOME"])
        torch.ops.load_library(str(next(home.glob("lib/fuseboard/torch/*/*.so"))))
        print(right(), fused())
        """,
    )
    assert done.stdout == "True 1\n", done.stderr


def test_a_binding_that_a_patched_model_loaded_is_used(home: pathlib.Path) -> None:
    done = run(
        home,
        """
        from fuseboard import _binding, _libraries
        from fuseboard._plan import ArtifactKind
        artifact = _libraries._artifact(ArtifactKind.BINDING, _libraries._binding_path())
        _binding.process_binding().load(artifact)
        print(right(), fused())
        """,
    )
    assert done.stdout == "True 1\n", done.stderr


def test_threads_may_make_the_first_call_together(home: pathlib.Path) -> None:
    done = run(
        home,
        """
        results = []
        threads = [threading.Thread(target=lambda: results.append(right())) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(results.count(True), fused())
        """,
    )
    assert done.stdout == "8 8\n", done.stderr


def test_forked_children_call_before_and_after_their_parent(home: pathlib.Path) -> None:
    done = run(
        home,
        """
        from fuseboard import _libraries
        torch.set_num_threads(1)
        def in_child():
            child = os.fork()
            if child == 0:
                os._exit(0 if right() else 1)
            return os.waitpid(child, 0)[1]
        with _libraries._lock:  # As another thread would hold it.
            statuses = [in_child()]
        right()
        print(*statuses, in_child())
        """,
    )
    assert done.stdout == "0 0\n", done.stderr


def test_compiled_code_may_make_the_first_call(home: pathlib.Path) -> None:
    done = run(
        home,
        """
        f = torch.compile(lambda x: ops.rms_norm(x, 32) * 2, fullgraph=True, backend="aot_eager")
        print(torch.allclose(f(x), want * 2, atol=1e-5), fused())
        """,
    )
    assert done.stdout == "True 1\n", done.stderr


def test_code_that_was_compiled_for_another_binding_is_not_taken(
    home: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    body = """
        from torch._dynamo.utils import counters
        f = torch.compile(lambda x: ops.rms_norm(x, 32), fullgraph=True)
        print(torch.allclose(f(x), want, atol=1e-5), counters["aot_autograd"]["autograd_cache_hit"])
        """
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    assert run(home, body, **cache).stdout == "True 0\n"
    assert run(home, body, **cache).stdout == "True 1\n"
    upgrade_binding(home / "lib" / "fuseboard" / "torch")
    done = run(home, body, **cache)
    assert done.stdout == "True 0\n", done.stderr


def upgrade_binding(folder: pathlib.Path) -> None:
    """Puts in the place of a link to bindings copies of another digest."""
    bindings = folder.resolve()
    folder.unlink()
    shutil.copytree(bindings, folder)
    for library in folder.glob("*/*.so"):
        content = library.read_bytes() + b"\0"
        library.unlink()
        library.write_bytes(content)
        manifest = library.with_suffix(".textpb")
        digest = hashlib.sha256(content).hexdigest()
        manifest.write_text(re.sub('sha256: ".*"', f'sha256: "{digest}"', manifest.read_text()))


def test_the_package_alone_needs_no_torch_and_the_functions_say_that_they_do() -> None:
    body = """
    import sys; sys.modules["torch"] = None
    import fuseboard
    print("ops" in dir(fuseboard), "fuseboard.ops" in sys.modules)
    for name in ("ops", "nn"):
        try: getattr(fuseboard, name)
        except ImportError as error: print(error.name)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(body)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True False\ntorch\ntorch\n", done.stderr


def test_an_import_brings_no_compiler_and_the_mark_is_what_torch_sets() -> None:
    body = """
    import sys
    from fuseboard import _libraries, nn, ops
    print("torch._dynamo" in sys.modules)
    import torch
    @torch.compiler.assume_constant_result
    def marked(): pass
    print({k: v for k, v in vars(marked).items() if vars(_libraries.kernel_handle).get(k) != v})
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(body)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "False\n{}\n", done.stderr


def test_an_import_opens_nothing(home: pathlib.Path) -> None:
    shutil.rmtree(home)
    done = run(home, "print(sorted(ops.__all__)[0])")
    assert done.stdout == "cross_entropy\n", done.stderr
