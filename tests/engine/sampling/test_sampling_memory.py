"""The stored tokens of rows over several steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sampling_rows import CPU

from quire.engine.sampling.memory import CountStore, HistoryStore

VOCAB = 50


def index(rows: list[int]) -> tuple[np.ndarray, torch.Tensor]:
    rows_S = np.array(rows, np.int64)
    return rows_S, torch.from_numpy(rows_S)


@pytest.mark.parametrize("row", [0, 8, 20])
def test_a_new_row_counts_from_its_first_token(row: int) -> None:
    counts, history = CountStore(VOCAB, CPU), HistoryStore(CPU)
    for token in (7, 9, 7):
        counts.append(*index([row]), torch.tensor([token]))
        history.append(*index([row]), torch.tensor([token]))
    seen = counts.view(*index([row]))
    assert dict(zip(seen.tokens_SL[0].tolist(), seen.seen_SL[0].tolist(), strict=True)) == {
        7: 2.0,
        9: 1.0,
    }
    assert torch.equal(seen.seen_SL, seen.generated_SL)
    found = history.view(*index([row]))
    assert found.tokens_SL.tolist() == [[7, 9, 7]]
    assert found.num_generated_S.tolist() == [3]


def test_sampled_tokens_are_counted_apart_from_the_prompt() -> None:
    counts = CountStore(VOCAB, CPU)
    counts.set(0, np.array([5, 6, 5, 6], np.int32), num_generated=2)
    seen = counts.view(*index([0]))
    assert seen.tokens_SL.tolist() == [[5, 6]]
    assert seen.seen_SL.tolist() == [[2.0, 2.0]]
    assert seen.generated_SL.tolist() == [[1.0, 1.0]]


def test_a_row_that_is_given_to_somebody_else_keeps_nothing() -> None:
    counts, history = CountStore(VOCAB, CPU), HistoryStore(CPU)
    for store in (counts, history):
        store.set(0, np.array([5, 6, 7], np.int32), 1)
        store.set(0, np.array([], np.int32), 0)
    assert counts.view(*index([0])).seen_SL.tolist() == [[0.0]]
    assert history.view(*index([0])).lengths_S.tolist() == [0]
