"""Temperature, and the processors that keep the likely part of a distribution.

All but the temperature only exclude tokens, and keep the best one of a row. Probabilities are
integer masses (see ``mass``), so which tokens are kept does not depend on the order of any sum.

Shapes: S rows, V vocabulary, C candidates per row.
"""

from __future__ import annotations

import torch

from quire.engine.sampling import mass
from quire.engine.sampling.candidates import GUESS, Candidates
from quire.engine.sampling.columns import F64, I64, column
from quire.engine.sampling.crossing import crossing
from quire.engine.sampling.group_memory import GroupMemory
from quire.engine.sampling.protocol import Rows
from quire.engine.sampling.selection import top_k

_FIXED_POINT = 2.0**32


class Temperature:
    """``score / temperature``, in float32."""

    def __init__(self, temperature_S: F64, rows: Rows) -> None:
        self._temperature_S1 = column(temperature_S, rows.device)

    def __call__(self, candidates: Candidates, memory: GroupMemory) -> None:
        candidates.rescore(candidates.scores_SC / self._temperature_S1)


class TopK:
    """Keeps the k best tokens of each row, ties by lower id."""

    def __init__(self, k_S: I64, rows: Rows) -> None:
        self._largest = min(int(k_S.max()), rows.vocab_size)
        self._is_uniform = bool((k_S >= self._largest).all())
        self._k_S1 = torch.from_numpy(k_S).to(rows.device)[:, None]

    def __call__(self, candidates: Candidates, memory: GroupMemory) -> None:
        if self._is_uniform and self._largest >= candidates.scores_SC.shape[1]:
            return
        candidates.keep_best(self._largest)
        if not self._is_uniform:
            rank_C = torch.arange(candidates.scores_SC.shape[1], device=self._k_S1.device)
            candidates.exclude(rank_C >= self._k_S1)


class MinP:
    """Keeps tokens with ``mass >= p * 2^32``: at least p times as likely as the best one."""

    def __init__(self, p_S: F64, rows: Rows) -> None:
        self._floor_S1 = column(p_S, rows.device, torch.float64) * mass.MAX_MASS

    def __call__(self, candidates: Candidates, memory: GroupMemory) -> None:
        if candidates.are_many:
            # all tokens to keep may be among the best few, whose masses need no others
            best_SK, columns_SK = top_k(candidates.scores_SC, GUESS)
            if bool((mass.masses(best_SK)[:, -1:] < self._floor_S1).all()):
                candidates.take(columns_SK)
        candidates.exclude(candidates.masses() < self._floor_S1)


class TopP:
    """The nucleus (Holtzman et al., 2020): keeps a token if the masses of all better ones sum to
    less than p times the total; always the best token, and every token if p is 1."""

    def __init__(self, p_S: F64, rows: Rows) -> None:
        p_S = p_S.copy()
        p_S[p_S >= 1.0] = torch.inf
        self._p_S1 = column(p_S, rows.device, torch.float64)
        self._cuts = bool((p_S < 1.0).any())

    def __call__(self, candidates: Candidates, memory: GroupMemory) -> None:
        if not self._cuts:
            return
        candidates.in_id_order()
        limit_S1 = self._p_S1 * mass.totals(candidates.scores_SC)
        if candidates.are_many:
            best_SK, columns_SK = top_k(candidates.scores_SC, GUESS)
            if bool((mass.total(mass.masses(best_SK)) >= limit_S1).all()):
                candidates.take(columns_SK)
        masses_SC = candidates.masses()
        # ties are ranked by column, which is by score after a guess and by id otherwise
        scores_SC = candidates.scores_SC
        last_S1, exists_S1 = crossing(-scores_SC, masses_SC, limit_S1)
        threshold_S1 = scores_SC.gather(1, last_S1)
        columns_C = torch.arange(scores_SC.shape[1], device=scores_SC.device)
        excluded_SC = (scores_SC < threshold_S1) | (
            (scores_SC == threshold_S1) & (columns_C > last_S1)
        )
        candidates.exclude(excluded_SC & exists_S1)


class Typical:
    """Locally typical sampling (Meister et al., 2023): keeps the tokens whose surprise is closest
    to the entropy: the fewest with a total mass of at least p, and all that tie with the last of
    them.

    With ``P = mass / total``, surprise ``-ln P`` and entropy, the sum of ``P * surprise`` in units
    of 2^-32 (so that it is exact), all in float64.
    """

    def __init__(self, p_S: F64, rows: Rows) -> None:
        self._p_S1 = column(p_S, rows.device, torch.float64)

    def __call__(self, candidates: Candidates, memory: GroupMemory) -> None:
        masses_SC = candidates.masses().double()
        total_S1 = masses_SC.sum(dim=-1, keepdim=True)
        share_SC = masses_SC / total_S1
        surprise_SC = -share_SC.log()
        terms_SC = torch.where(masses_SC > 0, share_SC * surprise_SC, 0.0)
        entropy_S1 = (terms_SC * _FIXED_POINT).trunc_().sum(dim=-1, keepdim=True) / _FIXED_POINT
        distance_SC = (surprise_SC - entropy_S1).abs_()
        last_S1, exists_S1 = crossing(distance_SC, masses_SC, self._p_S1 * total_S1)
        threshold_S1 = distance_SC.gather(1, last_S1)
        # the best token may be excluded too, and masses are relative to it
        excluded_SC = (distance_SC > threshold_S1) & exists_S1
        candidates.rescore(candidates.scores_SC.masked_fill(excluded_SC, -torch.inf))
