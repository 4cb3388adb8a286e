"""The samplers of many rows as columns, with their memory: a batch is planned by indexing.

A row is set when its sampler arrives; batches are then planned without a loop over rows, as long as
their samplers are *plain*: standard processors in the standard order, each at most once.

Shapes: R table rows, S requested rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.core.batch import I32, U64, no_i32
from quire.core.decoding import Params, Processor, SamplerSpec
from quire.engine.sampling.columns import F64, I64
from quire.engine.sampling.declarations import with_defaults
from quire.engine.sampling.dry_matches import DryMatches
from quire.engine.sampling.group_memory import Stores
from quire.engine.sampling.memory import CountStore, HistoryStore
from quire.engine.sampling.random import seed_words
from quire.engine.sampling.registry import Kind, Registry

PLAIN_ORDER = (
    "logit_bias",
    "bad_words",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "top_k",
    "temperature",
    "min_p",
    "top_p",
)
"""The standard order. Rows whose processors are a subsequence of it are processed together."""

NEUTRAL: Mapping[str, tuple[str, float]] = {
    "repetition_penalty": ("penalty", 1.0),
    "frequency_penalty": ("penalty", 0.0),
    "presence_penalty": ("penalty", 0.0),
    "top_k": ("k", float(1 << 31)),
    "temperature": ("temperature", 1.0),
    "min_p": ("p", 0.0),
    "top_p": ("p", 1.0),
}
"""The parameter of each plain processor with a single number, and its value without effect."""

_LEAST: Mapping[str, tuple[str, float]] = {
    "repetition_penalty": ("penalty", 1e-20),
    "temperature": ("temperature", 1e-20),
}
"""The least value of parameters by which scores are divided. Less would choose the same tokens, and
make scores infinite."""

TRUNCATIONS = ("top_k", "temperature", "min_p", "top_p")
"""The subset that every backend implements itself, in this order, for rows that need no other."""

_PLACE = {name: place for place, name in enumerate(PLAIN_ORDER)}

_MAX_KINDS = 1024

PLAIN_GREEDY, PLAIN_DRAWN = 0, 1
"""Kinds of rows that are planned by columns; other rows have kinds from 2 on."""


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One row: its sampler (checked before) and its tokens.

    ``seen`` is the whole history, ``generated`` the sampled part at its end.
    """

    sampler: SamplerSpec
    seen: I32
    generated: I32


class SamplerTable:
    """Columns of length R and the stores of those rows that need them."""

    def __init__(
        self, num_rows: int, vocab_size: int, device: torch.device, registry: Registry
    ) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self.registry = registry
        self.kind = np.zeros(num_rows, np.int64)
        self.greedy = np.ones(num_rows, np.bool_)
        self.seeds: U64 = np.zeros(num_rows, np.uint64)
        self.scalars: dict[str, F64] = {
            name: np.full(num_rows, neutral) for name, (_, neutral) in NEUTRAL.items()
        }
        self.has_lists = np.zeros(num_rows, np.bool_)
        self.num_recorded = np.zeros(num_rows, np.int64)
        self.needs_counts, self.needs_history, self.needs_matches = (
            np.zeros(num_rows, np.bool_) for _ in range(3)
        )
        self.stores = Stores(
            CountStore(vocab_size, device), HistoryStore(device), DryMatches(device)
        )
        self._prepared: list[tuple[tuple[str, Any], ...]] = [()] * num_rows
        self._kinds: dict[tuple[object, ...], int] = {}
        self._next_kind = PLAIN_DRAWN

    def set(self, row: int, what: SamplingRow) -> None:
        """Set the sampler and history of a row, replacing the previous ones."""
        sampler = what.sampler
        named = tuple(
            (one.name, _complete(self.registry.find(one.name), one)) for one in sampler.processors
        )
        self._prepared[row] = tuple(
            (name, self.registry.find(name).prepare(params)) for name, params in named
        )
        self.kind[row] = self._kind_of(sampler.greedy, tuple(name for name, _ in named))
        self.greedy[row] = sampler.greedy
        self.seeds[row] = seed_words([sampler.seed or 0])[0]
        for name, (_, neutral) in NEUTRAL.items():
            self.scalars[name][row] = neutral
        for name, params in named:
            if name in NEUTRAL:
                value = params[NEUTRAL[name][0]]
                assert isinstance(value, int | float)
                self.scalars[name][row] = value
        self.has_lists[row] = any(name in ("logit_bias", "bad_words") for name, _ in named)
        self.num_recorded[row] = len(what.generated)
        self._remember(row, named, what)

    def prepared(self, row: int) -> tuple[tuple[str, Any], ...]:
        """Names of a row's processors, in order, and what each is bound with (``Kind.prepare``)."""
        return self._prepared[row]

    def wants_more(self, rows_S: I64) -> NDArray[np.bool_]:
        """The rows that need more than a greedy choice, or ``TRUNCATIONS`` and a draw, as bool
        [S]."""
        more_S: NDArray[np.bool_] = (self.kind[rows_S] > PLAIN_DRAWN) | self.has_lists[rows_S]
        for name, (_, neutral) in NEUTRAL.items():
            if name not in TRUNCATIONS:
                more_S |= self.scalars[name][rows_S] != neutral
        return more_S

    def record(self, rows_S: I64, tokens_S: Tensor) -> None:
        """Append one token to each row. ``num_recorded``: how many tokens of each row are
        stored."""
        self.num_recorded[rows_S] += 1
        for needed_R, append in (
            (self.needs_counts, self._count),
            (self.needs_history, self._append),
        ):
            needed_S = needed_R[rows_S]
            if needed_S.all():
                append(rows_S, tokens_S)
            elif needed_S.any():
                places = torch.from_numpy(np.flatnonzero(needed_S)).to(self.device)
                append(rows_S[needed_S], tokens_S.index_select(0, places))

    def index(self, rows_S: I64) -> Tensor:
        """Row numbers as an index tensor on the device."""
        return torch.from_numpy(rows_S).to(self.device)

    def _count(self, rows_S: I64, tokens_S: Tensor) -> None:
        self.stores.counts.append(rows_S, self.index(rows_S), tokens_S)

    def _append(self, rows_S: I64, tokens_S: Tensor) -> None:
        index_S = self.index(rows_S)
        matched_S = self.needs_matches[rows_S]
        if matched_S.any():
            places = torch.from_numpy(np.flatnonzero(matched_S)).to(self.device)
            matched_index = index_S.index_select(0, places)
            before = self.stores.histories.view(rows_S[matched_S], matched_index)
            self.stores.matches.append(matched_index, before, tokens_S.index_select(0, places))
        self.stores.histories.append(rows_S, index_S, tokens_S)

    def _remember(self, row: int, named: tuple[tuple[str, Params], ...], what: SamplingRow) -> None:
        kinds = [(self.registry.find(name), params) for name, params in named]
        self.needs_counts[row] = any(kind.needs_counts for kind, _ in kinds)
        self.needs_history[row] = any(kind.needs_history(params) for kind, params in kinds)
        matching = [params for kind, params in kinds if kind.needs_matches]
        self.needs_matches[row] = bool(matching)
        # a row that needs no counts may be grouped with rows that do: it then has no tokens
        nothing = no_i32(), 0
        everything = what.seen, len(what.generated)
        self.stores.counts.set(row, *(everything if self.needs_counts[row] else nothing))
        self.stores.histories.set(row, *(everything if self.needs_history[row] else nothing))
        if matching:
            breakers = matching[0]["breakers"]
            assert isinstance(breakers, list)
            self.stores.matches.set(row, what.seen, breakers)  # type: ignore[arg-type]

    def _kind_of(self, greedy: bool, names: tuple[str, ...]) -> int:
        places = [_PLACE.get(name, -1) for name in names]
        if -1 not in places and all(a < b for a, b in pairwise(places)):
            return PLAIN_GREEDY if greedy else PLAIN_DRAWN
        if len(self._kinds) >= _MAX_KINDS:
            # clients choose names and order, so kinds without rows are dropped
            live = set(self.kind.tolist())
            self._kinds = {key: kind for key, kind in self._kinds.items() if kind in live}
        key = (greedy, *names)
        if key not in self._kinds:
            self._next_kind += 1
            self._kinds[key] = self._next_kind
        return self._kinds[key]


def _complete(kind: Kind, processor: Processor) -> Params:
    """The parameters of a processor with defaults, none less than it may be."""
    params = with_defaults(kind.parameters, processor.params)
    if processor.name not in _LEAST:
        return params
    name, least = _LEAST[processor.name]
    value = params[name]
    assert isinstance(value, int | float)
    return params if value >= least else {**params, name: least}
