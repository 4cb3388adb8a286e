"""Shared by the sampling tests: rows, plans and processors without an engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from quire.core.decoding import Params, Processor, SamplerSpec
from quire.engine.sampling.candidates import Candidates
from quire.engine.sampling.columns import I64
from quire.engine.sampling.group_memory import GroupMemory
from quire.engine.sampling.plan import SamplingPlan
from quire.engine.sampling.protocol import Rows
from quire.engine.sampling.registry import installed
from quire.engine.sampling.table import SamplerTable, SamplingRow

CPU = torch.device("cpu")
Chain = Sequence[tuple[str, Sequence[Params]]]


def i32(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def spec(processors: Sequence[tuple[str, Params]] = (), **fields: object) -> SamplerSpec:
    made = tuple(Processor(name, params) for name, params in processors)
    return SamplerSpec(made, **fields)  # type: ignore[arg-type]


def row(
    sampler: SamplerSpec, seen: Sequence[int] = (), num_generated: int | None = None
) -> SamplingRow:
    """A row whose last ``num_generated`` tokens were sampled (default: all)."""
    count = len(seen) if num_generated is None else num_generated
    return SamplingRow(sampler, i32(seen), i32(seen[len(seen) - count :]))


def chosen(rows: Sequence[SamplingRow], logits: torch.Tensor, positions: object) -> list[int]:
    """The tokens of one step; every row must get one."""
    plan = SamplingPlan(rows, logits.shape[1], CPU)
    tokens, ok = plan.sample(logits, np.array(positions, np.int64))
    assert ok.all()
    return tokens.tolist()


def processed(
    logits: torch.Tensor, chain: Chain, histories: Sequence[Sequence[int]] | None = None
) -> NDArray[np.float64]:
    """Scores [S, V] after processors that are bound and applied one by one."""
    num_rows, vocab_size = logits.shape
    table = SamplerTable(num_rows, vocab_size, CPU, installed())
    for place in range(num_rows):
        sampler = spec([(name, params[place]) for name, params in chain])
        table.set(place, row(sampler, (histories or [()] * num_rows)[place]))
    rows_S: I64 = np.arange(num_rows)
    memory = GroupMemory(table.stores, rows_S, torch.arange(num_rows))
    candidates = Candidates(logits)
    for place, (name, _) in enumerate(chain):
        prepared = [table.prepared(index)[place][1] for index in range(num_rows)]
        table.registry.find(name).bind(prepared, Rows(num_rows, vocab_size, CPU))(
            candidates, memory
        )
    return candidates.over_vocabulary().double().numpy()
