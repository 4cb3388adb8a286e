"""Ranks programs by what is left of them, as learned from the whole service of earlier ones of
their kind.

Owns the ranks that follow from the lengths of each kind, and which kinds are remembered. The rank
is that of the Gittins index (``gittins``). An end is worth one over the tokens that the program
generated: what counts is the time for each of these tokens, so a second of waiting is worse where
they are few. For long-tailed kinds the rank gets worse with a program's service, as under least
attained service; for kinds of about equal length it gets better towards the end, as under first
come, first served.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from math import inf, log2

from quire.control.policies.gittins import best_ratio
from quire.control.policies.lifetimes import MAX_ENDED, Lifetime, Lifetimes
from quire.control.policies.prompt_weight import PromptWeight
from quire.core.policy import ServiceFigures

MIN_ENDED = 4
"""With fewer ended programs nothing is known of them all."""
MIN_ENDED_OF_KIND = 8
"""With fewer ended programs of its kind a program is compared with those of all kinds: the first to
end are the shortest, and would make the others seem short too."""
MAX_KINDS = 512
SHORTEST_TOKENS = 64.0
"""Differences below this number of tokens displace no running call."""

Kind = tuple[str, str]


class KindOfProgram:
    """The lengths of the programs of one kind, and the ranks that follow from them as soon as
    ``min_ended`` have ended. ``prompt_weight``: how much a token of a prompt counts in both, in
    comparison with a generated one. ``second``: see ``second_longest``."""

    __slots__ = (
        "_beyond",
        "_bounds",
        "_lives",
        "_longest",
        "_longest_life",
        "_min_ended",
        "_num_learned",
        "_ranks",
        "_second_life",
        "_weight",
        "prompt_weight",
        "second",
    )

    def __init__(self, min_ended: int = MIN_ENDED) -> None:
        self._min_ended = min_ended
        self._lives = Lifetimes()
        self._longest = 0.0
        self._longest_life: Lifetime | None = None
        self.second = 0.0
        self._second_life: Lifetime | None = None
        self._weight = PromptWeight()
        self._num_learned = 0
        self._bounds: list[float] = []
        self._ranks: list[float] = []
        self._beyond = 0.0
        self.prompt_weight = 1.0

    @property
    def num_ended(self) -> int:
        """How many programs of this kind have ended in all."""
        return self._lives.num_ended

    def begin(self, figures: ServiceFigures, tokens_before: int = 0) -> Lifetime:
        """Begin a life: a program of this kind calls for the first time, or for the first time in
        long; ``tokens_before`` of its service belong to an earlier life."""
        return self._lives.begin(figures, tokens_before)

    def end(self, life: Lifetime) -> None:
        lives = self._lives
        if not lives.end(life):
            return
        self._weight.learn(life.served - life.generated, life.generated, life.service_s)
        num_new = lives.num_ended - self._num_learned
        if lives.num_ended < self._min_ended:
            return
        if num_new * 8 >= min(lives.num_ended, MAX_ENDED):
            self._learn()

    def second_longest(self, life: Lifetime, attained: float) -> float:
        """Note that ``life`` has a progress of ``attained``, and return the second most that was
        noted of any life, 0 at first. One life alone may be an exception, and says nothing of the
        others."""
        if life is self._longest_life:
            self._longest = max(self._longest, attained)
        elif life is self._second_life or attained > self.second:
            self._second_life, self.second = life, max(self.second, attained)
        if self.second > self._longest:
            self._longest_life, self._second_life = self._second_life, self._longest_life
            self._longest, self.second = self.second, self._longest
        return self.second

    def rank(self, attained: float) -> float | None:
        """The rank of a program with a progress of ``attained``, which counts with
        ``prompt_weight``; the smaller goes first. It is the logarithm (base 2) of tokens: the
        geometric mean of the service that an end costs now and of the tokens that the programs
        generate that end so. None: not enough is known."""
        if not self._ranks:
            return None
        index = bisect_right(self._bounds, attained) - 1
        if self._ranks[index] == inf:
            return max(log2(max(attained, SHORTEST_TOKENS)) + self._beyond, log2(SHORTEST_TOKENS))
        return self._ranks[index]

    def _learn(self) -> None:
        """Compute the ranks at half octaves of progress, rather than at each sample. With the worth
        of an end the index is one over tokens squared, so its root is taken. Past the largest total
        both the cost of an end and the tokens that a program generates rise with its progress."""
        self._num_learned = self._lives.num_ended
        self.prompt_weight = self._weight.value
        lengths = self._lives.distribution(self.prompt_weight)
        longest = max(lengths.totals[-1], SHORTEST_TOKENS)
        self._beyond = log2(lengths.cost_beyond / (longest * lengths.worths[-1])) / 2
        self._bounds, self._ranks = [0.0], []
        while self._bounds[-1] < lengths.totals[-1]:
            self._bounds.append(max(SHORTEST_TOKENS, self._bounds[-1] * 2**0.5))
        for attained in self._bounds:
            index = best_ratio(lengths, 1.0, attained)
            self._ranks.append(max(log2(1 / index) / 2, log2(SHORTEST_TOKENS)) if index else inf)


class Kinds:
    """The kinds of all tenants; those that were not used for longest are forgotten."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Kind, KindOfProgram] = OrderedDict()

    def get(self, kind: Kind) -> KindOfProgram:
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = KindOfProgram(MIN_ENDED_OF_KIND)
            if len(self._kinds) > MAX_KINDS:
                self._kinds.popitem(last=False)
        else:
            self._kinds.move_to_end(kind)
        return found
