"""The example package's processor excludes the same tokens as transformers' processor of that
name."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import NoRepeatNGramLogitsProcessor

from quire.engine.sampling.protocol import ENTRY_POINT_GROUP
from quire.engine.sampling.registry import Registry, load
from quire.engine.sampling.trial import Trial

SOURCE = Path(__file__).parents[3] / "examples" / "no_repeat_ngram" / "src"
NAME = "no_repeat_ngram"


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.syspath_prepend(str(SOURCE))
    point = EntryPoint(NAME, "quire_no_repeat_ngram:NoRepeatNgram", ENTRY_POINT_GROUP)
    return load([point])


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_it_equals_transformers(found: Registry, size: int) -> None:
    assert found.refused == {}
    processor = sys.modules["quire_no_repeat_ngram"].NoRepeatNgram()
    random = np.random.default_rng(size)
    for length in (1, 2, 3, 5, 60):
        histories = random.integers(0, 4, (6, length))
        scores = random.normal(size=(6, 12)).astype(np.float32)
        (mine,) = Trial(processor, 12).apply([{"size": size}] * 6, [(scores, histories.tolist())])
        theirs = NoRepeatNGramLogitsProcessor(size)(
            torch.from_numpy(histories), torch.from_numpy(scores)
        )
        np.testing.assert_array_equal(mine.scores_SV, theirs.numpy())
