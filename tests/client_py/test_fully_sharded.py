"""fully_shard (FSDP2) around a patched model: two ranks in processes of their own, on the CPU."""

from __future__ import annotations

import functools
import json
import pathlib
import tempfile

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from fsdp_worker import every_case

from tests import warm

HERE = pathlib.Path(__file__).resolve().parent


@functools.cache
def results() -> list[dict[str, str]]:
    """What became of each case, by rank. A rank that died tells it in every case."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = warm.run_ranks(HERE / "fsdp_worker.py", folder, 2)
        files = [pathlib.Path(folder) / f"{rank}.json" for rank in range(2)]
        names = [f"{layout} {case}" for layout, case in every_case()]
        return [
            json.loads(file.read_text()) if file.exists() else dict.fromkeys(names, output)
            for file, (_, output) in zip(files, outputs, strict=True)
        ]


@pytest.mark.parametrize(("layout", "case"), every_case())
def test_fully_shard(layout: str, case: str) -> None:
    for rank, result in enumerate(results()):
        found = result[f"{layout} {case}"]
        assert found == "", f"rank {rank}:\n{found}"
