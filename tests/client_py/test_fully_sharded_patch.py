"""`fuseboard.patch` in two ranks under fully_shard, with the daemon and the kernels of a build."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from fuseboard import _daemon
from fuseboard._home import find_home

HERE = pathlib.Path(__file__).resolve().parent


def test_patched_and_sharded_model_trains_as_native_in_either_order(
    short_tmp: pathlib.Path,
) -> None:
    home = find_home()
    if not (home.root / "lib" / "fuseboard" / "torch").is_dir():
        pytest.skip(f"no binding was built in {home.root}")
    _daemon.start_private(home, short_tmp, 60.0, idle_exit_s=120.0)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, str(HERE / "patch_worker.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "FUSEBOARD_HOME": str(home.root),
            "FUSEBOARD_ADDRESS": f"unix:{short_tmp / 'job.sock'}",
        },
    )
    assert done.returncode == 0, done.stdout
