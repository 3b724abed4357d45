"""Has the ranks of a process group agree that all of them are about to do the same thing.

A collective that only some ranks enter hangs. Where a rank cannot know whether the others come too, it
asks first: over the group's key-value store, with a deadline, so that the answer is the same on every
rank, and is "no" when one of them does not ask.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
from typing import Any

# Longer than ranks usually lie apart (a checkpoint written by one of them), shorter than the ten
# minutes after which NCCL gives up on the ranks that wait elsewhere.
WAIT_S = 120.0


def all_ask(group: Any, question: str) -> bool:
    """Whether every rank of `group` asks `question`. Waits for them, up to WAIT_S.

    Args:
        group: A process group of this process.
        question: The same on all ranks, and never asked before in this group.
    """
    from torch import distributed

    size = group.size()
    if size == 1:
        return True
    store = distributed.distributed_c10d._get_default_store()
    ranks = distributed.get_process_group_ranks(group)
    key = f"fuseboard/{hashlib.sha256(repr(ranks).encode()).hexdigest()[:16]}/{question}"
    asked, answer = key + "/asked", key + "/answer"
    if store.add(asked, 1) == size:
        store.compare_set(answer, "", "all")
    try:
        store.wait([answer], datetime.timedelta(seconds=WAIT_S))
    except RuntimeError:
        # NOTE: the last one to ask may have answered meanwhile: the first answer counts.
        store.compare_set(answer, "", "not all")
    if bytes(store.get(answer)) != b"all":
        return False
    if store.add(key + "/heard", 1) == size:
        for used in (asked, answer, key + "/heard"):
            with contextlib.suppress(RuntimeError):  # Not every kind of store can delete.
                store.delete_key(used)
    return True
