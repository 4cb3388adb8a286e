"""Estimates how much work is left, from the whole service of earlier programs of the same kind.

Owns the ranks that follow from the lengths of each kind. The rank is that of the Gittins index,
which is optimal for one server when lengths are known by their distribution alone: over all amounts
of service that a program could get next, the best ratio of the probability that it then ends to the
service that this takes. An end is worth one over the tokens that the program generated: what counts
is the time for each of these tokens, so a second of waiting is worse where they are few. For
long-tailed kinds the rank gets worse with a program's service, as under least attained service; for
kinds of about equal length it gets better towards the end, as under first come, first served.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from math import inf, log2

from quire.control.policies.lifetimes import MAX_SAMPLES, Distribution, Lifetime, Lifetimes
from quire.control.policies.prompt_weight import PromptWeight
from quire.core.policy import ServiceFigures

MIN_SAMPLES = 4
"""With fewer ended programs nothing is known of them all."""
MIN_OF_KIND = 8
"""With fewer ended programs of its kind a program is compared with those of all kinds: the first to
end are the shortest, and would make the others seem short too."""
MAX_KINDS = 512
SHORTEST = 64.0
"""Differences below this number of tokens displace no running call."""
UNKNOWN = 16_384.0
"""Where nothing is known, programs with less service than this are equals, so the oldest goes
first: this is as good as any order if they are about equally long, and it brings the first ends
soonest."""

Kind = tuple[str, str]


def gittins_index(totals: Sequence[float], attained: float) -> float:
    """The best ratio of the probability to end to the service spent, for a program with a service
    of ``attained``; 0.0 if none of the sorted ``totals`` is larger."""
    return best_ratio(Distribution(totals, [1.0] * len(totals)), float(len(totals)), attained)


def best_ratio(lengths: Distribution, whole: float, attained: float) -> float:
    """As ``gittins_index``, but by worth, for a distribution whose masses, with that of programs
    longer than all of its totals, add up to ``whole``."""
    totals, masses, worths = lengths.totals, lengths.masses, lengths.worths
    first = bisect_right(totals, attained)
    left = whole - sum(masses[:first])
    best, spent, gained = 0.0, 0.0, 0.0
    before = attained
    for index in range(first, len(totals)):
        spent += (totals[index] - before) * left
        before = totals[index]
        left -= masses[index]
        gained += masses[index] * worths[index] if worths else masses[index]
        if spent > 0 and (index + 1 == len(totals) or totals[index + 1] != before):
            best = max(best, gained / spent)
    return best


class KindOfProgram:
    """The lengths of the programs of one kind, and the ranks that follow from them as soon as
    ``min_samples`` have ended. ``prompt_weight``: how much a token of a prompt counts in both, in
    comparison with a generated one."""

    __slots__ = (
        "_beyond",
        "_bounds",
        "_lives",
        "_longest",
        "_longest_life",
        "_min_samples",
        "_num_learned",
        "_ranks",
        "_weight",
        "prompt_weight",
    )

    def __init__(self, min_samples: int = MIN_SAMPLES) -> None:
        self._min_samples = min_samples
        self._lives = Lifetimes()
        self._longest = 0.0
        self._longest_life: Lifetime | None = None
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

    def begin(self, figures: ServiceFigures, before: int = 0) -> Lifetime:
        """Begin a life: a program of this kind calls for the first time, or for the first time in
        long; ``before`` of its service belongs to an earlier life."""
        return self._lives.begin(figures, before)

    def end(self, life: Lifetime) -> None:
        lives = self._lives
        if not lives.end(life):
            return
        self._weight.learn(life.served - life.generated, life.generated, life.service_s)
        num_new = lives.num_ended - self._num_learned
        if lives.num_ended < self._min_samples:
            return
        if num_new * 8 >= min(lives.num_ended, MAX_SAMPLES):
            self._learn()

    def shown_by_others(self, life: Lifetime, attained: float) -> float:
        """Note that ``life`` has a progress of ``attained``, and return the most that was noted of
        another; 0 for the longest of all, about which the others say nothing."""
        if life is self._longest_life or attained > self._longest:
            self._longest_life = life
            self._longest = max(self._longest, attained)
            return 0.0
        return self._longest

    def rank(self, attained: float) -> float | None:
        """The rank of a program with a progress of ``attained``, which counts with
        ``prompt_weight``; the smaller goes first. It is the logarithm (base 2) of tokens: the
        geometric mean of the service that an end costs now and of the tokens that the programs
        generate that end so. None: not enough is known."""
        if not self._ranks:
            return None
        index = bisect_right(self._bounds, attained) - 1
        if self._ranks[index] == inf:
            return max(log2(max(attained, SHORTEST)) + self._beyond, log2(SHORTEST))
        return self._ranks[index]

    def _learn(self) -> None:
        """Compute the ranks at half octaves of progress, rather than at each sample. With the worth
        of an end the index is one over tokens squared, so its root is taken. Past the largest total
        both the cost of an end and the tokens that a program generates rise with its progress."""
        self._num_learned = self._lives.num_ended
        self.prompt_weight = self._weight.value
        lengths = self._lives.distribution(self.prompt_weight)
        longest = max(lengths.totals[-1], SHORTEST)
        self._beyond = log2(lengths.cost_beyond / (longest * lengths.worths[-1])) / 2
        self._bounds, self._ranks = [0.0], []
        while self._bounds[-1] < lengths.totals[-1]:
            self._bounds.append(max(SHORTEST, self._bounds[-1] * 2**0.5))
        for attained in self._bounds:
            index = best_ratio(lengths, 1.0, attained)
            self._ranks.append(max(log2(1 / index) / 2, log2(SHORTEST)) if index else inf)


class Kinds:
    """The kinds of all tenants; those that were not used for longest are forgotten."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Kind, KindOfProgram] = OrderedDict()

    def get(self, kind: Kind) -> KindOfProgram:
        found = self._kinds.get(kind)
        if found is None:
            found = self._kinds[kind] = KindOfProgram(MIN_OF_KIND)
            if len(self._kinds) > MAX_KINDS:
                self._kinds.popitem(last=False)
        else:
            self._kinds.move_to_end(kind)
        return found
