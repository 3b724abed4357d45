"""How long to wait before trying again."""

from __future__ import annotations

import random

_FIRST_S = 0.2
_LONGEST_S = 10.0


class Backoff:
    """Doubling delays from 0.2 s to 10 s, each drawn from its upper half.

    The draw keeps the processes of a node from returning to a restarted daemon in the same instant.
    """

    def __init__(self) -> None:
        self._next_s = _FIRST_S

    def delay_s(self) -> float:
        """The delay to wait now; the next one will be longer."""
        delay = self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(2 * self._next_s, _LONGEST_S)
        return delay

    def reset(self) -> None:
        """Starts from the shortest again: the last try went well."""
        self._next_s = _FIRST_S
