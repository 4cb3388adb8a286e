"""Estimates how long programs are, in tokens of service, and what the end of one is worth.

Owns the window of programs that ended and of those that live, and the product-limit estimate
(Kaplan and Meier 1958). Programs that ended would mislead alone: where engines are overloaded the
short ones end first, so long ones would seem not to exist. A living one with much service shows
that programs are longer than that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.policy import ServiceFigures

MAX_SAMPLES = 256
"""The number of ended programs that count, the latest."""
MAX_LIVE = 512
"""The number of live programs that count, the latest to begin."""
FEWEST = 16.0
"""Programs that generated fewer tokens count as equal in what their end is worth."""


class Lifetime:
    """The service of one program, or of a session between two long pauses. ``figures`` are its
    family's and go on counting; ``before``: the service that they had when this life began.
    ``total``: its whole service, None while it lives."""

    __slots__ = ("_before", "_figures", "_generated_before", "number", "total")

    def __init__(self, figures: ServiceFigures, before: int, number: int) -> None:
        self._figures = figures
        self._before = before
        self._generated_before = figures.generated_tokens if before else 0
        self.number = number
        self.total: float | None = None

    @property
    def served(self) -> float:
        return float(self._figures.service_tokens - self._before)

    @property
    def worth(self) -> float:
        """The worth of its end: what counts is the time for each token that a program generates, so
        a second of waiting is worse for one that generates few. One that generates none counts by
        its service."""
        num_generated = self._figures.generated_tokens - self._generated_before
        return 1.0 / max(num_generated or self.served, FEWEST)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution of totals: ``masses[i]`` is the probability of ``totals[i]``, which rise. The
    rest to 1 belongs to programs that are longer than any that ended. ``worths[i]``: the mean worth
    of the end of such a program; all are equal if there are none."""

    totals: Sequence[float]
    masses: Sequence[float]
    worths: Sequence[float] = ()


class Lifetimes:
    """The lifetimes of one kind of program. ``num_ended``: how many have ended in all."""

    def __init__(self) -> None:
        self._ended: deque[tuple[float, int, float]] = deque()
        self._begun: deque[Lifetime] = deque()
        self._num_begun = 0
        self.num_ended = 0

    def begin(self, figures: ServiceFigures, before: int) -> Lifetime:
        self._num_begun += 1
        life = Lifetime(figures, before, self._num_begun)
        self._begun.append(life)
        while len(self._begun) > MAX_LIVE or self._begun[0].total is not None:
            self._begun.popleft()
        return life

    def end(self, life: Lifetime) -> None:
        """End ``life``, if it lives. One without any service is not counted."""
        if life.total is not None:
            return
        life.total = life.served
        if not life.total:
            return
        self.num_ended += 1
        self._ended.append((life.total, self._num_begun, life.worth))
        if len(self._ended) > MAX_SAMPLES:
            self._ended.popleft()

    def distribution(self) -> Distribution:
        """The estimated distribution. Of the living programs those count that began after the first
        of the counted ends: so both groups are from the same time."""
        since = self._ended[0][1] if len(self._ended) == MAX_SAMPLES else 0
        live = [one.served for one in self._begun if one.total is None and one.number > since]
        lengths = product_limit([total for total, _, _ in self._ended], live)
        worths: dict[float, list[float]] = {}
        for total, _, worth in self._ended:
            worths.setdefault(total, []).append(worth)
        means = [sum(worths[total]) / len(worths[total]) for total in lengths.totals]
        return Distribution(lengths.totals, lengths.masses, means)


def product_limit(ended: Sequence[float], live: Sequence[float]) -> Distribution:
    """The probabilities of the totals ``ended``, when programs with the service ``live`` go on."""
    ends, lives = sorted(ended), sorted(live)
    totals: list[float] = []
    masses: list[float] = []
    survive, index, passed = 1.0, 0, 0
    while index < len(ends):
        total, behind = ends[index], bisect_right(ends, ends[index])
        while passed < len(lives) and lives[passed] < total:
            passed += 1
        at_risk = len(ends) - index + len(lives) - passed
        mass = survive * (behind - index) / at_risk
        totals.append(total)
        masses.append(mass)
        survive, index = survive - mass, behind
    return Distribution(totals, masses)
