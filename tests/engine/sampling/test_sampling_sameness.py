"""A row's tokens depend only on its logits, sampler, seed, position and history."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sampling_rows import CPU, row, spec

from quire.core.decoding import Params, SamplerSpec
from quire.engine.sampling import token_rules
from quire.engine.sampling.plan import SamplingPlan
from quire.engine.sampling.registry import installed
from quire.engine.sampling.table import SamplerTable, SamplingRow

VOCAB = 3001

SAMPLERS: list[SamplerSpec] = [
    spec(),
    spec(greedy=False, seed=1),
    spec([("top_k", {"k": 40}), ("temperature", {"temperature": 0.8})], greedy=False, seed=2),
    spec(
        [
            ("repetition_penalty", {"penalty": 1.2}),
            ("frequency_penalty", {"penalty": 0.3}),
            ("presence_penalty", {"penalty": 0.2}),
            ("temperature", {"temperature": 1.3}),
            ("min_p", {"p": 0.01}),
            ("top_p", {"p": 0.9}),
        ],
        greedy=False,
        seed=3,
    ),
    spec([("frequency_penalty", {"penalty": 0.4})]),
    spec([("dry", {"multiplier": 1.5}), ("typical", {"p": 0.9})], greedy=False, seed=4),
    spec(
        [("bad_words", {"tokens": [5, [1, 2], [7, 8, 9]]}), ("top_p", {"p": 0.5})],
        greedy=False,
        seed=5,
    ),
    spec(
        [("logit_bias", {"tokens": [4, 1], "biases": [3.0, -2.0]}), ("top_k", {"k": 3})],
        greedy=False,
        seed=6,
    ),
    spec([("temperature", {"temperature": 9.0}), ("top_k", {"k": 900})], greedy=False, seed=7),
]


def logits_at(which: int, history: list[int]) -> torch.Tensor:
    """A toy model: logits that depend on the row and its last tokens."""
    generator = np.random.default_rng([which, *history[-2:]])
    return torch.from_numpy((generator.normal(size=VOCAB) * 2).astype(np.float32))


PROMPTS = [[which, 1, 7, 8] for which in range(len(SAMPLERS))]


def generate(which: int, num_tokens: int) -> list[int]:
    """Generated alone, with all state rebuilt from the history in every step."""
    history = list(PROMPTS[which])
    for _ in range(num_tokens):
        one = row(SAMPLERS[which], history, len(history) - len(PROMPTS[which]))
        plan = SamplingPlan([one], VOCAB, CPU)
        tokens, ok = plan.sample(logits_at(which, history)[None], np.array([len(history)]))
        assert ok.all()
        history.append(int(tokens[0]))
    return history[len(PROMPTS[which]) :]


@pytest.fixture(scope="module")
def alone() -> list[list[int]]:
    return [generate(which, 24) for which in range(len(SAMPLERS))]


def run_together(order: list[int], seed: int, *, steps: int = 24) -> list[list[int]]:
    """All rows over one table; rows pause, return in another order and are set again."""
    generator = np.random.default_rng(seed)
    table = SamplerTable(len(order), VOCAB, CPU, installed())
    places = {which: place for place, which in enumerate(order)}
    histories = [list(prompt) for prompt in PROMPTS]

    def row_of(which: int) -> SamplingRow:
        return row(SAMPLERS[which], histories[which], len(histories[which]) - 4)

    for which in order:
        table.set(places[which], row_of(which))
    while active := [w for w in order if len(histories[w]) < 4 + steps]:
        chosen = [which for which in active if generator.random() < 0.8] or active[:1]
        generator.shuffle(chosen)
        if generator.random() < 0.2:  # preempted
            table.set(places[chosen[0]], row_of(chosen[0]))
        rows = np.array([places[which] for which in chosen])
        plan = SamplingPlan.over(table, rows)
        for _ in range(int(generator.integers(1, 4))):
            logits = torch.stack([logits_at(which, histories[which]) for which in chosen])
            positions = np.array([len(histories[which]) for which in chosen])
            tokens, ok = plan.sample(logits, positions)
            assert ok.all()
            for which, token in zip(chosen, tokens.tolist(), strict=True):
                histories[which].append(token)
    return [history[4 : 4 + steps] for history in histories]


@pytest.mark.parametrize("seed", range(6))
def test_tokens_do_not_depend_on_the_batch(seed: int, alone: list[list[int]]) -> None:
    order = np.random.default_rng(seed).permutation(len(SAMPLERS)).tolist()
    assert run_together(order, seed) == alone


def test_threads_do_not_matter(alone: list[list[int]]) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert [generate(which, 24) for which in range(len(SAMPLERS))] == alone
    finally:
        torch.set_num_threads(before)


def test_a_row_without_any_token_does_not_disturb_others(alone: list[list[int]]) -> None:
    for broken in (torch.full((VOCAB,), -torch.inf), torch.full((VOCAB,), torch.nan)):
        rows = [row(one, prompt, 0) for one, prompt in zip(SAMPLERS, PROMPTS, strict=True)]
        plan = SamplingPlan([row(spec(greedy=False, seed=0)), *rows, row(spec())], VOCAB, CPU)
        logits = [logits_at(which, prompt) for which, prompt in enumerate(PROMPTS)]
        positions = np.full(len(rows) + 2, 4)
        tokens, ok = plan.sample(torch.stack([broken, *logits, broken]), positions)
        assert ok.tolist() == [False, *[True] * len(rows), False]
        assert tokens.tolist()[1:-1] == [one[0] for one in alone]


def test_a_reused_row_forgets_the_one_before() -> None:
    table = SamplerTable(2, 50, CPU, installed())
    penalised = spec([("frequency_penalty", {"penalty": 5.0})])
    logits = torch.zeros(2, 50)
    logits[:, 3] = 1.0
    for place in range(2):
        table.set(place, row(penalised, [3] * 70))
    table.set(0, row(penalised, [], 0))
    table.set(1, row(spec([("bad_words", {"tokens": [[3, 3]]})]), [1], 0))
    plan = SamplingPlan.over(table, np.arange(2))
    steps = [plan.sample(logits, np.zeros(2, np.int64))[0].tolist() for _ in range(3)]
    assert steps == [[3, 3], [0, 0], [1, 3]]


def test_presence_looks_at_the_output_and_repetition_at_everything() -> None:
    logits = torch.zeros(1, 20)
    logits[0, :2] = torch.tensor([2.0, 1.9])
    for name, token in [("presence_penalty", 0), ("repetition_penalty", 1)]:
        plan = SamplingPlan([row(spec([(name, {"penalty": 1.5})]), [0], 0)], 20, CPU)
        assert plan.sample(logits, np.zeros(1, np.int64))[0].tolist() == [token]


def test_planning_costs_no_look_at_plain_rows() -> None:
    """Rows are planned by columns: planning works on a table that refuses access to single rows."""
    table = SamplerTable(40, VOCAB, CPU, installed())
    for place in range(40):
        table.set(place, row(SAMPLERS[2 if place % 2 else 0]))

    def looked(place: int) -> None:
        raise AssertionError(f"row {place} was looked at")

    asked: list[int] = []
    original = table.prepared
    table.prepared = lambda place: (asked.append(place), original(place))[1]  # type: ignore[method-assign]
    SamplingPlan.over(table, np.arange(40))
    assert len(asked) <= 2


def test_planning_reads_no_list_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row may have a hundred thousand entries, and each batch of all programs is planned."""
    num_read = 0
    entries = token_rules.entries

    def noted(params: Params, name: str) -> list[int | float | list[int]]:
        nonlocal num_read
        found = entries(params, name)
        num_read += len(found)
        return found

    monkeypatch.setattr(token_rules, "entries", noted)
    table = SamplerTable(3, VOCAB, CPU, installed())
    chains = [
        [("bad_words", {"tokens": [5, [1, 2]]})],
        [("logit_bias", {"tokens": [4, 1], "biases": [3.0, -2.0]})],
        [("allowed_tokens", {"tokens": [1, 2, 3]})],
    ]
    for place, chain in enumerate(chains):
        table.set(place, row(spec(chain)))
    assert num_read > 0
    num_read = 0
    logits = torch.zeros(3, VOCAB)
    tokens, chosen = SamplingPlan.over(table, np.arange(3)).sample(logits, np.zeros(3, np.int64))
    assert chosen.all()
    assert tokens.tolist() == [0, 4, 1]
    assert num_read == 0
