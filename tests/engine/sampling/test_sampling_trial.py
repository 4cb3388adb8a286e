"""What a processor under trial is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from torch import Tensor

from quire.core.decoding import Params
from quire.engine.sampling.declarations import Parameter
from quire.engine.sampling.protocol import PROTOCOL_VERSION, History, Rows
from quire.engine.sampling.trial import Trial


class Watching:
    """Leaves the scores as they are and keeps the histories."""

    name = "watching"
    protocol_version = PROTOCOL_VERSION
    needs_history = True
    parameters: Mapping[str, Parameter] = {}

    def __init__(self) -> None:
        self.histories: list[History] = []

    def bind(self, params: Sequence[Params], rows: Rows) -> Watching:
        return self

    def __call__(self, scores_SV: Tensor, history: History) -> Tensor:
        self.histories.append(history)
        return scores_SV


@pytest.mark.parametrize(
    ("prompt", "generated"), [({}, [3, 0, 1]), ({"num_prompt": 2}, [1, 0, 0])], ids=["all", "rest"]
)
def test_histories_are_padded_with_minus_one_and_what_follows_the_prompt_is_generated(
    prompt: dict[str, int], generated: list[int]
) -> None:
    watching = Watching()
    scores = np.zeros((3, 8), np.float32)
    Trial(watching, vocab_size=8).apply([{}] * 3, [(scores, [[5, 6, 7], [], [4]])], **prompt)
    (history,) = watching.histories
    assert history.tokens_SL.tolist() == [[5, 6, 7], [-1, -1, -1], [4, -1, -1]]
    assert history.lengths_S.tolist() == [3, 0, 1]
    assert history.num_generated_S.tolist() == generated
