"""docs/ops.md says what the code has."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.client_py import ops_page


def test_the_tables_are_those_of_the_code() -> None:
    page = ops_page.PAGE.read_text()
    assert page == ops_page.with_tables(page), "run python -m tests.client_py.ops_page"
