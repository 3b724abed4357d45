"""Agreement between ranks: the same answer for all, and no waiting for ever."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from fuseboard import _agreement
from torch import distributed


class Group:
    """Two ranks, which are threads here."""

    def size(self) -> int:
        return 2


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[distributed.Store]:
    store = distributed.HashStore()
    monkeypatch.setattr(distributed.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(distributed, "get_process_group_ranks", lambda group: [0, 1])
    yield store


def ask(questions: list[str]) -> list[bool]:
    with concurrent.futures.ThreadPoolExecutor() as ranks:
        return list(ranks.map(lambda question: _agreement.all_ask(Group(), question), questions))


def test_ranks_that_ask_the_same_agree_and_leave_nothing_behind(store: distributed.Store) -> None:
    before = store.num_keys()
    for number in range(20):
        assert ask([f"q{number}"] * 2) == [True, True]
    assert store.num_keys() == before


def test_rank_that_is_alone_gets_a_no_and_so_does_who_comes_late(
    store: distributed.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_agreement, "WAIT_S", 0.2)
    assert ask(["q"]) == [False]
    monkeypatch.setattr(_agreement, "WAIT_S", 60.0)
    began = time.monotonic()
    assert ask(["q"]) == [False]
    assert time.monotonic() - began < 30
    assert ask(["another"] * 2) == [True, True]


def test_different_questions_do_not_agree(
    store: distributed.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_agreement, "WAIT_S", 0.2)
    assert ask(["logits", "loss"]) == [False, False]


def test_single_rank_asks_nobody() -> None:
    class Alone:
        def size(self) -> int:
            return 1

    assert _agreement.all_ask(Alone(), "q")
