"""Which engines have just said that they take nothing now, and how long they have said so for.

Owns the bound on how many of them a request asks if all have. Must not know requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

MOST_ASKED = 3
"""Of engines that have all said so. A request that asked all of them would multiply the requests of
a cluster that is full by the number of its nodes."""
_MOST_S = 30.0
_MOST_NOTED = 1024
"""Engines and models: clients choose the names of models, and a node that drains refuses any."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


E = TypeVar("E", bound=Named)


class FullEngines:
    """Engines by name and model. ``now_s``: the time, in seconds from any moment."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._until_s: dict[int, float] = {}
        """By the hash of both names: a client's may be long."""

    def __len__(self) -> int:
        return len(self._until_s)

    def refuses(self, engine: str, model: str | None, retry_after: bytes) -> None:
        """Note that ``engine`` takes nothing for ``model``; ``retry_after`` is that header of its
        answer. One that does not say for how many seconds may take the next request."""
        if not retry_after.isdigit():
            return
        if len(self._until_s) >= _MOST_NOTED:
            now_s = self._now_s()
            self._until_s = {one: until for one, until in self._until_s.items() if until > now_s}
        if len(self._until_s) < _MOST_NOTED:
            until_s = self._now_s() + min(int(retry_after), _MOST_S)
            self._until_s[hash((engine, model))] = until_s

    def takes(self, engine: str, model: str | None) -> None:
        """Note that ``engine`` has taken a request."""
        self._until_s.pop(hash((engine, model)), None)

    def worth_asking(
        self, engines: Sequence[E], model: str | None, num_refused: int
    ) -> Sequence[E]:
        """Return those of ``engines`` that a request may ask that ``num_refused`` engines have
        refused: all, unless all of them have said that they take nothing yet. Then those that were
        asked longest ago, so that one that has room again is found."""
        until_s = [self._until_s.get(hash((one.name, model)), 0.0) for one in engines]
        num_left = max(0, MOST_ASKED - num_refused)
        if not engines or min(until_s) <= self._now_s():
            return engines
        oldest = sorted(range(len(engines)), key=until_s.__getitem__)[:num_left]
        return [engines[index] for index in sorted(oldest)]
