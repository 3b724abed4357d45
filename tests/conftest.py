"""Marks that all Python tests share."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Declares the mark by which `./dev gpu` selects and `./dev test` leaves out."""
    config.addinivalue_line("markers", "gpu: needs a CUDA device")
