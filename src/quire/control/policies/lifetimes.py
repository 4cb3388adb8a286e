"""Keeps the lives of programs of one kind: those that ended, and those that go on.

Owns which of them count, and what the end of one is worth. A token of a prompt counts as much as it
costs in comparison with a generated one (``prompt_weight``).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from quire.control.policies.distribution import Distribution, product_limit
from quire.control.policies.tails import cost_beyond
from quire.core.policy import ServiceFigures

MAX_ENDED = 256
"""The number of ended programs that count, the latest."""
MAX_LIVE = 512
"""The number of live programs that count, the latest to begin."""
FEWEST_TOKENS = 16.0
"""Programs that generated fewer tokens count as equal in what their end is worth."""


class Lifetime:
    """The service of one program, or of a session between two long pauses. ``figures`` are its
    family's and go on counting; ``tokens_before``: the service that they had when this life began.
    ``is_over``: it has ended, and ``figures`` may describe a later life."""

    __slots__ = (
        "_figures",
        "_generated_before",
        "_seconds_before",
        "_tokens_before",
        "is_over",
        "number",
    )

    def __init__(self, figures: ServiceFigures, tokens_before: int, number: int) -> None:
        self._figures = figures
        self._tokens_before = tokens_before
        self._generated_before = figures.generated_tokens if tokens_before else 0
        self._seconds_before = figures.service_s if tokens_before else 0.0
        self.number = number
        self.is_over = False

    @property
    def served(self) -> float:
        return float(self._figures.service_tokens - self._tokens_before)

    @property
    def generated(self) -> float:
        return float(self._figures.generated_tokens - self._generated_before)

    @property
    def service_s(self) -> float:
        return self._figures.service_s - self._seconds_before

    def progress(self, prompt_weight: float) -> float:
        """Return its service, where a token of a prompt counts ``prompt_weight``."""
        served = float(self._figures.service_tokens - self._tokens_before)
        if prompt_weight == 1.0:
            return served
        generated = float(self._figures.generated_tokens - self._generated_before)
        return generated + prompt_weight * max(0.0, served - generated)

    @property
    def worth(self) -> float:
        """The worth of its end: what counts is the time for each token that a program generates, so
        a second of waiting is worse for one that generates few. One that generates none counts by
        its service."""
        return 1.0 / max(self.generated or self.served, FEWEST_TOKENS)


@dataclass(frozen=True, slots=True)
class EndedLife:
    """One ended life. ``served``, ``generated``: tokens. ``num_begun``: how many lives of its kind
    had begun when it ended."""

    served: float
    generated: float
    num_begun: int
    worth: float

    def progress(self, prompt_weight: float) -> float:
        return self.generated + prompt_weight * max(0.0, self.served - self.generated)


class Lifetimes:
    """The lifetimes of one kind of program. ``num_ended``: how many have ended in all."""

    def __init__(self) -> None:
        self._ended: deque[EndedLife] = deque()
        self._begun: deque[Lifetime] = deque()
        self._num_begun = 0
        self.num_ended = 0

    def begin(self, figures: ServiceFigures, tokens_before: int) -> Lifetime:
        self._num_begun += 1
        life = Lifetime(figures, tokens_before, self._num_begun)
        self._begun.append(life)
        while len(self._begun) > MAX_LIVE or self._begun[0].is_over:
            self._begun.popleft()
        return life

    def end(self, life: Lifetime) -> bool:
        """End ``life`` and count it. Return False, and count nothing, if it is over or had no
        service."""
        if life.is_over:
            return False
        life.is_over = True
        served = life.served
        if not served:
            return False
        self.num_ended += 1
        self._ended.append(EndedLife(served, life.generated, self._num_begun, life.worth))
        if len(self._ended) > MAX_ENDED:
            self._ended.popleft()
        return True

    def distribution(self, prompt_weight: float) -> Distribution:
        """The estimated distribution. Of the living programs those count that began after the first
        of the counted ends: so both groups are from the same time."""
        since = self._ended[0].num_begun if len(self._ended) == MAX_ENDED else 0
        live = [
            one.progress(prompt_weight)
            for one in self._begun
            if not one.is_over and one.number > since
        ]
        ended = sorted((one.progress(prompt_weight), one.worth) for one in self._ended)
        totals = [total for total, _ in ended]
        lengths = product_limit(totals, live)
        worths: dict[float, list[float]] = {}
        for total, worth in ended:
            worths.setdefault(total, []).append(worth)
        means = [sum(worths[total]) / len(worths[total]) for total in lengths.totals]
        return Distribution(lengths.totals, lengths.masses, means, cost_beyond(totals, live))
