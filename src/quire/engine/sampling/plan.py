"""How the next token of each row of a batch is chosen: rows grouped by their processor lists.

Built once for a set of rows and used for as many steps as the set lives.

Shapes: S rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32, no_i32
from quire.core.decoding import SamplerSpec
from quire.engine.sampling.candidates import Candidates
from quire.engine.sampling.parameters import PROCESSORS, check_sampler
from quire.engine.sampling.processors import GroupContext, TokenCounts
from quire.engine.sampling.random import seed_words, uniforms

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One row: its sampler (checked before) and the tokens its penalties look at.

    ``seen`` is the whole history, ``generated`` the sampled part of it.
    """

    sampler: SamplerSpec
    seen: I32
    generated: I32


class SamplingGroup:
    """Rows with the same processor names, in the same order, and the same kind of choice."""

    def __init__(
        self,
        members: list[int],
        rows: Sequence[SamplingRow],
        vocab_size: int,
        device: torch.device,
    ) -> None:
        samplers = [row.sampler for row in rows]
        names = [processor.name for processor in samplers[0].processors]
        self.members = np.array(members, np.int64)
        self.index = torch.from_numpy(self.members).to(device)
        self._greedy = samplers[0].greedy
        self._seeds = seed_words([sampler.seed or 0 for sampler in samplers])
        self._counts = None
        if any(PROCESSORS[name].counts_tokens for name in names):
            self._counts = TokenCounts(
                _counts([row.seen for row in rows], vocab_size, device),
                _counts([row.generated for row in rows], vocab_size, device),
            )
        context = GroupContext(len(rows), vocab_size, device, self._counts)
        self._processors = [
            PROCESSORS[name].bind([s.processors[place].params for s in samplers], context)
            for place, name in enumerate(names)
        ]

    def sample(self, logits_SV: Tensor, positions_S: I64) -> tuple[I64, NDArray[np.bool_]]:
        """Tokens of the members, and which of them could be chosen."""
        candidates = Candidates(logits_SV)
        for processor in self._processors:
            processor(candidates)
        if self._greedy:
            return candidates.choose_best()
        return candidates.draw(uniforms(self._seeds, positions_S))

    def record(self, tokens_S: I64) -> None:
        """Count tokens just sampled."""
        if self._counts is None:
            return
        tokens_S1 = torch.from_numpy(tokens_S).to(self.index.device)[:, None]
        ones = torch.ones(tokens_S1.shape, device=tokens_S1.device)
        self._counts.seen_SV.scatter_add_(1, tokens_S1, ones)
        self._counts.generated_SV.scatter_add_(1, tokens_S1, ones)


class SamplingPlan:
    """The groups of a set of rows."""

    def __init__(self, rows: Sequence[SamplingRow], vocab_size: int, device: torch.device) -> None:
        members: dict[tuple[object, ...], list[int]] = {}
        for index, row in enumerate(rows):
            sampler = row.sampler
            key = (sampler.greedy, *(processor.name for processor in sampler.processors))
            members.setdefault(key, []).append(index)
        self._num_rows = len(rows)
        self._groups = [
            SamplingGroup(group, [rows[index] for index in group], vocab_size, device)
            for group in members.values()
        ]

    def sample(self, logits_SV: Tensor, positions_S: I64) -> tuple[I64, NDArray[np.bool_]]:
        """One token for each row; ``False`` where every token was excluded or logits are not
        numbers. ``positions_S`` are those of the sampled tokens. ``logits_SV`` is not changed."""
        if len(self._groups) == 1:
            group = self._groups[0]
            tokens, chosen = group.sample(logits_SV, positions_S)
            group.record(tokens)
            return tokens, chosen
        tokens = np.zeros(self._num_rows, np.int64)
        chosen = np.zeros(self._num_rows, np.bool_)
        for group in self._groups:
            picked = group.sample(
                logits_SV.index_select(0, group.index), positions_S[group.members]
            )
            tokens[group.members], chosen[group.members] = picked
            group.record(picked[0])
        return tokens, chosen


def _counts(histories: Sequence[I32], vocab_size: int, device: torch.device) -> Tensor:
    counts = [np.bincount(tokens, minlength=vocab_size)[:vocab_size] for tokens in histories]
    return torch.from_numpy(np.stack(counts).astype(np.float32)).to(device)


__all__ = ["SamplingPlan", "SamplingRow", "check_sampler", "no_i32"]
