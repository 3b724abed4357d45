"""Marks that all Python tests share, and their order."""

from __future__ import annotations

import pytest

# What must come first, then the files that take longest, from the longest on: pytest-xdist gives a file to
# one process, and a long one at the end would keep the others waiting.
FIRST = (
    "test_profile_gpu.py",  # torch's profiler, once used in a process, never lets go of CUPTI.
    "test_training.py",
    "test_fully_sharded.py",
    "test_fully_sharded_patch.py",
    "test_memory.py",
    "test_libraries.py",
    "test_fork.py",
    "test_training_flows.py",
    "test_compiled.py",
    "test_row_losses.py",
    "test_every_operation.py",
    "test_benchmarks.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Declares the mark by which `./dev gpu` selects and `./dev test` leaves out."""
    config.addinivalue_line("markers", "gpu: needs a CUDA device")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts them in order."""
    rank = {name: index for index, name in enumerate(FIRST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(FIRST)))
