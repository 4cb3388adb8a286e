"""The package's own test: the conformance kit, and what this processor is for."""

from __future__ import annotations

import numpy as np
from quire_no_repeat_ngram import NoRepeatNgram

from quire.engine.sampling.trial import Trial
from quire.testing.conformance import ProcessorSuite


class TestConformance(ProcessorSuite):
    params = ({"size": 2}, {"size": 1}, {"size": 3}, {})
    refused = ({"size": 0}, {"size": 2.5}, {"size": "two"})

    def make_trial(self) -> Trial:
        return Trial(NoRepeatNgram())


def test_the_third_token_of_a_repeated_trigram_is_excluded() -> None:
    scores = np.zeros((1, 8), np.float32)
    (applied,) = Trial(NoRepeatNgram(), 8).apply([{"size": 3}], [(scores, [[5, 6, 7, 1, 5, 6]])])
    assert np.flatnonzero(np.isinf(applied.scores_SV[0])).tolist() == [7]
