"""DRY against its definition, implemented naively: compare every earlier place with the end."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sampling_rows import CPU, i32, processed, row, spec

from quire.core.decoding import Params
from quire.engine.sampling.dry_matches import match_lengths
from quire.engine.sampling.plan import SamplingPlan
from quire.engine.sampling.registry import installed
from quire.engine.sampling.table import SamplerTable

VOCAB = 8


def penalties(history: list[int], params: Params) -> np.ndarray:
    """The penalty of each token, by the definition in the pull request that proposed DRY."""
    span = int(params.get("range", 0))
    tokens = history[-span:] if span else history
    breakers = set(params.get("breakers", ()))
    lost = np.zeros(VOCAB)
    if not tokens or tokens[-1] in breakers:
        return lost
    best: dict[int, int] = {}
    for end in (i for i in range(len(tokens) - 1) if tokens[i] == tokens[-1]):
        after = tokens[end + 1]
        if after in breakers:
            continue
        length = 1
        while end - length >= 0:
            token = tokens[-length - 1]
            if tokens[end - length] != token or token in breakers:
                break
            length += 1
        best[after] = max(best.get(after, 0), length)
    for token, length in best.items():
        if length >= params.get("allowed_length", 2):
            excess = length - params.get("allowed_length", 2)
            lost[token] = params["multiplier"] * params.get("base", 1.75) ** excess
    return lost


SETTINGS: list[Params] = [
    {"multiplier": 0.8},
    {"multiplier": 1.0, "base": 1.1, "allowed_length": 1},
    {"multiplier": 2.0, "breakers": [0, 3]},
    {"multiplier": 0.5, "range": 7, "allowed_length": 3},
    {"multiplier": 0.7, "range": 12, "breakers": [2], "allowed_length": 1, "base": 1.3},
    {"multiplier": 0.0},
]


@pytest.mark.parametrize("length", [0, 1, 2, 3, 10, 40])
@pytest.mark.parametrize("num_kinds", [1, 2, 4])
def test_it_is_the_definition(length: int, num_kinds: int) -> None:
    generator = np.random.default_rng(length * 10 + num_kinds)
    histories = [generator.integers(0, num_kinds, length + i % 3).tolist() for i in range(18)]
    params = [SETTINGS[i % len(SETTINGS)] for i in range(18)]
    scores = processed(torch.zeros(18, VOCAB), [("dry", params)], histories)
    wanted = [-penalties(history, one) for history, one in zip(histories, params, strict=True)]
    np.testing.assert_allclose(scores, np.stack(wanted), rtol=1e-6, atol=1e-12)


def test_step_by_step_is_the_same_as_from_the_whole_history() -> None:
    """A row's stored matches equal rebuilt ones, while rows of other lengths continue in
    parallel."""
    generator = np.random.default_rng(3)
    table = SamplerTable(4, VOCAB, CPU, installed())
    histories = [generator.integers(0, 3, size).tolist() for size in (0, 1, 9, 30)]
    for place, history in enumerate(histories):
        params = SETTINGS[place + 1]
        table.set(place, row(spec([("dry", params)], greedy=True), history))
    for step in range(40):
        rows = np.array([place for place in range(4) if (step + place) % 4])
        plan = SamplingPlan.over(table, rows)
        tokens = generator.integers(0, 3, len(rows))
        forced = torch.full((len(rows), VOCAB), -1e9)
        forced[torch.arange(len(rows)), torch.from_numpy(tokens)] = 1e9
        sampled, _ = plan.sample(forced, np.zeros(len(rows), np.int64))
        assert sampled.tolist() == tokens.tolist()
        for place, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            histories[place].append(token)
    for place, history in enumerate(histories):
        found = table.stores.matches.view(torch.tensor([place]), len(history))[0]
        breakers = SETTINGS[place + 1].get("breakers", [])
        assert found.tolist()[:-1] == match_lengths(i32(history), breakers).tolist()[:-1]


def test_a_long_repetition_has_a_finite_penalty() -> None:
    scores = processed(torch.zeros(1, VOCAB), [("dry", [{"multiplier": 1.0}])], [[1] * 5000])
    assert np.isfinite(scores).all()
    assert scores[0, 1] == -np.float32(1e30)


def test_a_multiplier_of_zero_is_no_penalty_however_long_a_repetition_is() -> None:
    params: Params = {"multiplier": 0.0, "base": 100.0}
    scores = processed(torch.zeros(1, VOCAB), [("dry", [params])], [[1] * 400])
    assert (scores == 0).all()


def test_breakers_of_each_row_are_its_own_and_may_be_many() -> None:
    history = [1, 2, 3, 1, 2, 3, 1, 2]
    breakers: list[list[int | float | list[int]]] = [[], [3], [7, 0, 3] * 1000, [4, 5]]
    params: list[Params] = [{"multiplier": 1.0, "breakers": some} for some in breakers]
    scores = processed(torch.zeros(4, VOCAB), [("dry", params)], [history] * 4)
    assert [row[3] < 0 for row in scores] == [True, False, False, True]


def test_matches_of_a_periodic_history() -> None:
    """The match at place i is i + 1 long where the period fits, 0 elsewhere."""
    history = i32([0, 1, 2] * 2000)
    wanted = [i + 1 if i % 3 == 2 else 0 for i in range(len(history) - 1)]
    assert match_lengths(history, []).tolist()[:-1] == wanted
