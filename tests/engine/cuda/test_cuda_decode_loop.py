"""The loop over recordings: what is recorded at the start, and the state afterwards."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quire.engine.cuda.decode_loop import DecodeLoop, take_best
from quire.engine.cuda.decode_state import DecodeState
from quire.engine.cuda.graphs import Work, bucket_sizes


class Model:
    """Logits that identify the token that was run."""

    vocab_size = 7

    def embed(self, tokens_T: Tensor) -> Tensor:
        return tokens_T[:, None].float()

    def rotations(self, positions_T: Tensor) -> list[Any]:
        return []

    def forward(self, x_TH: Tensor, step: Any) -> Tensor:
        return x_TH

    def logits(self, hidden_NH: Tensor) -> Tensor:
        following = (hidden_NH[:, 0].long() + 1) % self.vocab_size
        return torch.nn.functional.one_hot(following, self.vocab_size).float()


class Attention:
    def plan(self, size: int) -> None:
        return None


class WarmingRecorder:
    """Runs work as often as a recorder with warm-up and checks does."""

    def __init__(self) -> None:
        self.num_recorded = 0

    def record(self, work: Work) -> Work:
        self.num_recorded += 1
        for _ in range(3):
            work()
        return work


def test_recording_every_size_leaves_the_state_at_rest() -> None:
    state = DecodeState(200, 4, 1, 99, torch.device("cpu"))
    recorder, sizes = WarmingRecorder(), bucket_sizes(200)
    attention: Any = Attention()
    DecodeLoop(Model(), [], Model.vocab_size, state, attention, recorder, sizes)
    assert recorder.num_recorded == 2 * len(sizes)  # more steps than the state holds
    assert state.slots_B.tolist() == [99] * 200
    assert not state._live_B.any()


def test_the_best_token_has_the_lowest_id_and_is_a_number() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [-torch.inf] * 3, [torch.nan, 1.0, 0.0]])
    tokens, best = take_best(logits)
    assert tokens[0] == 1
    assert best.isfinite().tolist() == [True, False, False]
