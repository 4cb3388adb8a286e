"""How the next token of each row of a batch is chosen: rows are grouped by their processors.

Built for a set of rows and used until the set changes. Building it costs a few array operations per
group, not per row, where samplers are plain (see ``table``).

Shapes: S rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import U64
from quire.core.errors import QuireError
from quire.engine.sampling.candidates import Candidates
from quire.engine.sampling.columns import F64, I64
from quire.engine.sampling.group_memory import GroupMemory
from quire.engine.sampling.installed import ProcessorFault
from quire.engine.sampling.penalties import FrequencyPenalty, PresencePenalty, RepetitionPenalty
from quire.engine.sampling.protocol import Rows
from quire.engine.sampling.random import uniforms
from quire.engine.sampling.registry import ProcessorStep, installed
from quire.engine.sampling.table import (
    NEUTRAL,
    PLAIN_DRAWN,
    PLAIN_ORDER,
    TRUNCATIONS,
    SamplerTable,
    SamplingRow,
)
from quire.engine.sampling.truncation import MinP, Temperature, TopK, TopP


@dataclass(frozen=True, slots=True)
class CommonParameters:
    """The samplers of rows that need only what every backend implements itself: greedy, or top-k,
    temperature, min-p, top-p in this order, then a draw. All ``[S]``; see ``mass`` for the choice.

    No effect: a ``top_k`` of 2^31, a ``temperature`` or ``top_p`` of 1, a ``min_p`` of 0.
    """

    greedy: NDArray[np.bool_]
    top_k: I64
    temperature: F64
    min_p: F64
    top_p: F64
    seeds: U64


class SamplingGroup:
    """Rows of a table that share their processors and the kind of choice."""

    def __init__(self, table: SamplerTable, rows_S: I64) -> None:
        self._table = table
        self._rows_S = rows_S
        self._index_S = table.index(rows_S)
        self._greedy = bool(table.greedy[rows_S[0]])
        self._seeds_S = table.index(table.seeds[rows_S].view(np.int64))
        self.error: QuireError | None = None
        self._steps: list[ProcessorStep] = []
        try:
            rows = Rows(len(rows_S), table.vocab_size, table.device)
            self._steps = bind_steps(table, rows_S, rows)
        except ProcessorFault as fault:
            self.error = fault.error

    def choose(self, logits_SV: Tensor, positions_S: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens ``[S]``, and for which rows one could be chosen."""
        candidates = Candidates(logits_SV)
        memory = GroupMemory(self._table.stores, self._rows_S, self._index_S)
        if self.error is None:
            try:
                for step in self._steps:
                    step(candidates, memory)
            except ProcessorFault as fault:
                self.error = fault.error
        if self._greedy:
            tokens_S, chosen_S = candidates.choose_best()
        else:
            tokens_S, chosen_S = candidates.draw(uniforms(self._seeds_S, positions_S))
        return tokens_S, chosen_S if self.error is None else torch.zeros_like(chosen_S)


def bind_steps(table: SamplerTable, rows_S: I64, rows: Rows) -> list[ProcessorStep]:
    """The steps of rows of one kind. Plain rows get every step that any of them needs."""
    first = table.prepared(int(rows_S[0]))
    if table.kind[rows_S[0]] > PLAIN_DRAWN:
        of_rows = [table.prepared(row) for row in rows_S.tolist()]
        return [
            table.registry.find(name).bind([one[place][1] for one in of_rows], rows)
            for place, (name, _) in enumerate(first)
        ]
    lists = _lists(table, rows_S)
    steps: list[ProcessorStep] = []
    for name in PLAIN_ORDER:
        if name in lists:
            steps.append(table.registry.find(name).bind(lists[name], rows))
        elif name in NEUTRAL:
            values_S = table.scalars[name][rows_S]
            if (values_S != NEUTRAL[name][1]).any():
                steps.append(_BIND_COLUMN[name](values_S, rows))
    return steps


class SamplingPlan:
    """The groups of a set of rows. ``remembers``: whether any of them uses tokens before the
    last."""

    def __init__(self, rows: Sequence[SamplingRow], vocab_size: int, device: torch.device) -> None:
        """A plan over a table of its own."""
        table = SamplerTable(len(rows), vocab_size, device, installed())
        for place, row in enumerate(rows):
            table.set(place, row)
        self._begin(table, np.arange(len(rows)))

    @classmethod
    def over(cls, table: SamplerTable, rows_S: I64) -> SamplingPlan:
        """A plan for rows of a table that is kept up to date by ``sample``."""
        plan = cls.__new__(cls)
        plan._begin(table, rows_S)
        return plan

    def _begin(self, table: SamplerTable, rows_S: I64) -> None:
        self._table = table
        self._rows_S = rows_S
        self.remembers = bool((table.needs_counts[rows_S] | table.needs_history[rows_S]).any())
        kinds_S = table.kind[rows_S]
        kinds = np.unique(kinds_S).tolist()
        self._members = [np.flatnonzero(kinds_S == kind) for kind in kinds]

    # made when first used, because rows whose tokens a backend chooses never need it

    @cached_property
    def _indices(self) -> list[Tensor]:
        return [self._table.index(members) for members in self._members]

    @cached_property
    def _groups(self) -> list[SamplingGroup]:
        return [SamplingGroup(self._table, self._rows_S[members]) for members in self._members]

    @cached_property
    def common(self) -> CommonParameters | None:
        """The parameters as columns if every row is within the common subset, else None."""
        table, rows_S = self._table, self._rows_S
        if table.wants_more(rows_S).any():
            return None
        top_k, temperature, min_p, top_p = (table.scalars[name][rows_S] for name in TRUNCATIONS)
        return CommonParameters(
            greedy=table.greedy[rows_S],
            top_k=top_k.astype(np.int64),
            temperature=temperature,
            min_p=min_p,
            top_p=top_p,
            seeds=table.seeds[rows_S],
        )

    def sample(self, logits_SV: Tensor, positions_S: I64) -> tuple[I64, NDArray[np.bool_]]:
        """One token for each row; ``False`` where every token was excluded, logits are NaN or a
        processor failed. ``positions_S`` are those of the sampled tokens. ``logits_SV`` is not
        changed."""
        tokens_S, chosen_S = self.choose(logits_SV, self._table.index(positions_S))
        tokens: I64 = tokens_S.cpu().numpy()
        chosen: NDArray[np.bool_] = chosen_S.cpu().numpy()
        return tokens, chosen

    def choose(self, logits_SV: Tensor, positions_S: Tensor) -> tuple[Tensor, Tensor]:
        """``sample`` entirely on the device: nothing makes the host wait, unless an installed
        package's processor does. ``positions_S`` int64."""
        if len(self._groups) == 1:
            tokens_S, chosen_S = self._groups[0].choose(logits_SV, positions_S)
        else:
            tokens_S = torch.zeros(len(self._rows_S), dtype=torch.int64, device=logits_SV.device)
            chosen_S = torch.zeros(len(self._rows_S), dtype=torch.bool, device=logits_SV.device)
            for group, index in zip(self._groups, self._indices, strict=True):
                picked = group.choose(
                    logits_SV.index_select(0, index), positions_S.index_select(0, index)
                )
                tokens_S[index], chosen_S[index] = picked
        if self.remembers:
            self._table.record(self._rows_S, tokens_S)
        return tokens_S, chosen_S

    def error_of(self, place: int) -> QuireError | None:
        """The error of row ``place``, if a processor failed."""
        for group, members in zip(self._groups, self._members, strict=True):
            if place in members:
                return group.error
        return None


def _lists(table: SamplerTable, rows_S: I64) -> dict[str, list[Any]]:
    """What ``logit_bias`` and ``bad_words`` are bound with by row, for those of the two that any
    row has."""
    found: dict[str, list[Any]] = {}
    for place in np.flatnonzero(table.has_lists[rows_S]).tolist():
        for name, prepared in table.prepared(int(rows_S[place])):
            if name in NEUTRAL:
                continue
            if name not in found:
                nothing = table.registry.find(name).prepare({"tokens": [], "biases": []})
                found[name] = [nothing] * len(rows_S)
            found[name][place] = prepared
    return found


_BIND_COLUMN: Mapping[str, Callable[[F64, Rows], ProcessorStep]] = {
    "repetition_penalty": RepetitionPenalty,
    "frequency_penalty": FrequencyPenalty,
    "presence_penalty": PresencePenalty,
    "top_k": lambda values_S, rows: TopK(values_S.astype(np.int64), rows),
    "temperature": Temperature,
    "min_p": MinP,
    "top_p": TopP,
}
