"""Samplers against plain numpy, against transformers' processors, and by their statistics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from quire.core.batch import no_i32
from quire.core.decoding import Params, Processor, SamplerSpec
from quire.core.errors import InvalidArgument
from quire.engine.sampling.candidates import Candidates, invert_distribution, top_k
from quire.engine.sampling.logprobs import row_logprobs
from quire.engine.sampling.parameters import PROCESSORS, check_sampler
from quire.engine.sampling.plan import SamplingPlan, SamplingRow
from quire.engine.sampling.processors import GroupContext, TokenCounts
from quire.engine.sampling.random import seed_words, uniforms

VOCAB = 600
CPU = torch.device("cpu")
F64 = NDArray[np.float64]


def logits_of(num_rows: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    return torch.from_numpy(
        (np.random.default_rng(seed).normal(size=(num_rows, VOCAB)) * scale).astype(np.float32)
    )


def i32(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def processed(
    logits: torch.Tensor,
    processors: Sequence[tuple[str, Sequence[Params]]],
    histories: Sequence[Sequence[int]] | None = None,
) -> F64:
    """Scores [S, V] after the processors, -inf for what is excluded."""
    seen = histories or [[]] * len(logits)
    counts = torch.from_numpy(
        np.stack([np.bincount(i32(h), minlength=VOCAB) for h in seen]).astype(np.float32)
    )
    context = GroupContext(len(logits), VOCAB, CPU, TokenCounts(counts, counts))
    candidates = Candidates(logits)
    for name, params in processors:
        PROCESSORS[name].bind(params, context)(candidates)
    if candidates.ids_SC is None:
        return candidates.scores_SC.double().numpy()
    scores = torch.full(logits.shape, -torch.inf)
    return scores.scatter_(1, candidates.ids_SC, candidates.scores_SC).double().numpy()


def same(actual: F64, wanted: F64) -> None:
    np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(wanted))
    np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)


HISTORIES = [[1, 5, 5, 9], [], [599, 0, 0, 0]]


def by_row(name: str, key: str, values: Sequence[float]) -> tuple[str, list[Params]]:
    return name, [{key: value} for value in values]


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (by_row("temperature", "temperature", [0.7] * 3), [TemperatureLogitsWarper(0.7)]),
        (by_row("top_k", "k", [17] * 3), [TopKLogitsWarper(17)]),
        (by_row("top_p", "p", [0.8] * 3), [TopPLogitsWarper(0.8)]),
        (by_row("top_p", "p", [1e-6] * 3), [TopPLogitsWarper(1e-6)]),
        (by_row("top_p", "p", [1.0] * 3), [TopPLogitsWarper(1.0)]),
        (by_row("min_p", "p", [0.1] * 3), [MinPLogitsWarper(0.1)]),
        (
            by_row("repetition_penalty", "penalty", [1.3] * 3),
            [RepetitionPenaltyLogitsProcessor(1.3)],
        ),
    ],
    ids=["temperature", "top_k", "top_p", "top_p one", "top_p all", "min_p", "repetition"],
)
def test_processors_equal_transformers(
    mine: tuple[str, list[Params]], theirs: list[object]
) -> None:
    logits = logits_of(3)
    width = max(map(len, HISTORIES))
    # transformers wants rectangular histories: repeat the last token, which counts once anyway
    padded = torch.tensor(
        [(h or [7]) + [(h or [7])[-1]] * (width - len(h or [7])) for h in HISTORIES]
    )
    wanted = LogitsProcessorList(theirs)(padded, logits.clone())
    histories = [h or [7] for h in HISTORIES]
    same(processed(logits, [mine], histories), wanted.double().numpy())


def test_a_chain_equals_transformers() -> None:
    logits = logits_of(4, 3)
    chain = [
        by_row("temperature", "temperature", [1.5] * 4),
        by_row("top_k", "k", [50] * 4),
        by_row("top_p", "p", [0.9] * 4),
        by_row("min_p", "p", [0.02] * 4),
    ]
    theirs = LogitsProcessorList(
        [
            TemperatureLogitsWarper(1.5),
            TopKLogitsWarper(50),
            TopPLogitsWarper(0.9),
            MinPLogitsWarper(0.02),
        ]
    )
    wanted = theirs(torch.zeros(4, 1, dtype=torch.int64), logits.clone())
    same(processed(logits, chain), wanted.double().numpy())


def reference(scores: F64, name: str, params: Params, history: Sequence[int]) -> F64:
    """One processor on one row, in plain numpy."""
    scores = scores.copy()
    counts = np.bincount(i32(history), minlength=VOCAB)
    if name == "logit_bias":
        for token, bias in zip(params["tokens"], params["biases"], strict=True):
            scores[token] += bias
    elif name == "bad_words":
        scores[list(params["tokens"])] = -np.inf
    elif name == "repetition_penalty":
        factor = np.where(scores > 0, 1 / params["penalty"], params["penalty"])
        scores = np.where(counts > 0, scores * factor, scores)
    elif name == "presence_penalty":
        scores -= params["penalty"] * (counts > 0)
    elif name == "frequency_penalty":
        scores -= params["penalty"] * counts
    elif name == "temperature":
        scores /= params["temperature"]
    elif name == "top_k":
        order = sorted(range(VOCAB), key=lambda token: (-scores[token], token))
        scores[order[int(params["k"]) :]] = -np.inf
    elif name == "top_p":
        order = sorted(range(VOCAB), key=lambda token: (-scores[token], token))
        probs = np.exp(scores - scores.max())
        probs /= probs.sum()
        mass = 0.0
        for rank, token in enumerate(order):
            if rank and mass >= params["p"]:
                scores[token] = -np.inf
            mass += probs[token]
    elif name == "min_p":
        scores[scores < scores.max() + np.log(params["p"])] = -np.inf
    return scores


CHAINS: dict[str, list[tuple[str, list[Params]]]] = {
    "biases": [
        (
            "logit_bias",
            [
                {"tokens": [3, 4, 3], "biases": [1.5, -2.0, 1.0]},
                {"tokens": [], "biases": []},
                {"tokens": [599], "biases": [40.0]},
            ],
        ),
        ("bad_words", [{"tokens": [0, 1]}, {"tokens": [7]}, {"tokens": []}]),
    ],
    "penalties": [
        by_row("repetition_penalty", "penalty", [1.1, 2.0, 0.5]),
        by_row("presence_penalty", "penalty", [0.5, -0.5, 2.0]),
        by_row("frequency_penalty", "penalty", [0.25, 1.0, -1.0]),
    ],
    "different k": [by_row("top_k", "k", [1, 40, 100000])],
    "different p": [by_row("top_p", "p", [0.05, 0.5, 0.999])],
    "top-k first": [
        by_row("top_k", "k", [5, 30, 90]),
        by_row("frequency_penalty", "penalty", [1.0, 0.5, 0.1]),
        ("logit_bias", [{"tokens": [5], "biases": [9.0]}] * 3),
        by_row("temperature", "temperature", [0.5, 1.0, 3.0]),
        by_row("top_p", "p", [0.9, 0.5, 0.7]),
        by_row("top_k", "k", [3, 20, 4]),
        by_row("min_p", "p", [0.2, 0.1, 0.5]),
    ],
    "wide nucleus": [
        by_row("temperature", "temperature", [50.0, 1.0, 1.0]),
        by_row("top_p", "p", [0.95, 0.95, 0.1]),
    ],
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_processors_equal_numpy(chain: list[tuple[str, list[Params]]]) -> None:
    logits = logits_of(3, 5)
    wanted = logits.double().numpy()
    for row in range(3):
        for name, params in chain:
            wanted[row] = reference(wanted[row], name, params[row], HISTORIES[row])
    before = logits.clone()
    same(processed(logits, chain, HISTORIES), wanted)
    assert torch.equal(logits, before)


def test_ties_go_to_the_lower_id() -> None:
    tied = torch.zeros(2, VOCAB)
    tied[0, [500, 20, 300]] = 4.0
    values, ids = top_k(tied, 5)
    assert ids.tolist() == [[20, 300, 500, 0, 1], [0, 1, 2, 3, 4]]
    assert values[0].tolist() == [4.0, 4.0, 4.0, 0.0, 0.0]
    assert Candidates(tied).choose_best()[0].tolist() == [20, 0]


def spec(processors: Sequence[tuple[str, Params]] = (), **fields: object) -> SamplerSpec:
    made = tuple(Processor(name, params) for name, params in processors)
    return SamplerSpec(made, **fields)  # type: ignore[arg-type]


def drawn(sampler: SamplerSpec, logits: torch.Tensor, positions: Sequence[int]) -> list[int]:
    plan = SamplingPlan([SamplingRow(sampler, no_i32(), no_i32())] * len(logits), VOCAB, CPU)
    tokens, chosen = plan.sample(logits, np.array(positions))
    assert chosen.all()
    return tokens.tolist()


@pytest.mark.parametrize(
    "processors",
    [
        (),
        (("temperature", {"temperature": 1.7}),),
        (("top_k", {"k": 12}),),
        (("temperature", {"temperature": 2.0}), ("top_p", {"p": 0.8}), ("min_p", {"p": 0.01})),
    ],
    ids=["plain", "temperature", "top_k", "top_p"],
)
def test_draws_follow_the_distribution(processors: Sequence[tuple[str, Params]]) -> None:
    """Chi-square over 8000 positions of one seed, at the 0.1 % level."""
    count = 8000
    logits = logits_of(1, 8, scale=2.0)
    scores = processed(logits, [(name, [params]) for name, params in processors])[0]
    probs = np.exp(scores - scores.max())
    probs /= probs.sum()
    tokens = drawn(
        spec(processors, greedy=False, seed=42), logits.expand(count, VOCAB), range(count)
    )
    observed = np.bincount(tokens, minlength=VOCAB)
    assert observed[probs == 0].sum() == 0
    large = probs * count >= 5
    cells = np.append(observed[large], observed[~large].sum())
    wanted = np.append(probs[large], probs[~large].sum()) * count
    cells, wanted = cells[wanted > 0], wanted[wanted > 0]
    statistic = ((cells - wanted) ** 2 / wanted).sum()
    freedom = len(cells) - 1
    # Wilson and Hilferty's approximation of the quantile at 99.9 %
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * np.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit


def test_uniform_numbers_are_uniform_and_independent() -> None:
    seeds, positions = np.meshgrid(np.arange(200), np.arange(200), indexing="ij")
    numbers = uniforms(seed_words(seeds.ravel().tolist()), positions.ravel())
    assert numbers.min() >= 0
    assert numbers.max() < 1
    histogram = np.histogram(numbers, bins=100, range=(0, 1))[0]
    statistic = ((histogram - 400) ** 2 / 400).sum()
    assert statistic < 148.2
    grid = numbers.reshape(200, 200)
    for a, b in [(grid[:, :-1], grid[:, 1:]), (grid[:-1], grid[1:])]:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02


def test_seeds_of_any_size_and_sign_are_seeds() -> None:
    words = seed_words([0, -1, 2**64 + 5, 2**63])
    assert len(set(uniforms(words, np.zeros(4, np.int64)))) == 4
    assert words[2] == seed_words([5])[0]


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    logits = logits_of(1, 2)
    first = spec(greedy=False, seed=9)
    alone = drawn(first, logits, [17])[0]
    batch = logits_of(6, 4)
    batch[3] = logits[0]
    samplers = [spec(greedy=False, seed=i) for i in range(6)]
    samplers[3] = first
    samplers[1] = spec()
    samplers[5] = spec([("top_k", {"k": 3})], greedy=False, seed=1)
    plan = SamplingPlan([SamplingRow(s, no_i32(), no_i32()) for s in samplers], VOCAB, CPU)
    tokens, _ = plan.sample(batch, np.array([1, 2, 3, 17, 5, 6]))
    assert tokens[3] == alone
    assert tokens[1] == int(batch[1].argmax())


def test_inversion_never_picks_what_is_impossible() -> None:
    probs = torch.zeros(3, 1000)
    probs[0, [5, 999]] = 0.5
    probs[1, 640] = 1.0
    probs[2, [0, 127, 128]] = torch.tensor([0.25, 0.25, 0.5])
    for uniform, wanted in [
        (0.0, [5, 640, 0]),
        (0.25, [5, 640, 127]),
        (0.5, [999, 640, 128]),
        (1 - 2**-53, [999, 640, 128]),
    ]:
        columns = invert_distribution(probs, torch.full((3,), uniform, dtype=torch.float64))
        assert columns.tolist() == wanted


def test_penalties_count_what_the_plan_has_sampled() -> None:
    """Greedy with a frequency penalty walks down a flat distribution."""
    logits = torch.zeros(1, VOCAB)
    logits[0, :4] = torch.tensor([1.0, 0.9, 0.8, 0.7])
    sampler = spec([("frequency_penalty", {"penalty": 0.25})])
    plan = SamplingPlan([SamplingRow(sampler, no_i32(), no_i32())], VOCAB, CPU)
    tokens = [int(plan.sample(logits, np.zeros(1, np.int64))[0][0]) for _ in range(6)]
    assert tokens == [0, 1, 2, 0, 3, 1]


def test_presence_looks_at_the_output_and_repetition_at_everything() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, :2] = torch.tensor([2.0, 1.9])
    for name, token in [("presence_penalty", 0), ("repetition_penalty", 1)]:
        sampler = spec([(name, {"penalty": 1.5})])
        plan = SamplingPlan([SamplingRow(sampler, i32([0]), no_i32())], VOCAB, CPU)
        assert plan.sample(logits, np.zeros(1, np.int64))[0].tolist() == [token]


@pytest.mark.parametrize("greedy", [True, False])
def test_rows_without_a_possible_token_are_reported(greedy: bool) -> None:
    logits = logits_of(4)
    logits[1] = -torch.inf
    logits[2, 7] = torch.nan
    sampler = spec(greedy=greedy, seed=1)
    plan = SamplingPlan([SamplingRow(sampler, no_i32(), no_i32())] * 4, VOCAB, CPU)
    _, chosen = plan.sample(logits, np.arange(4))
    assert chosen.tolist() == [True, False, False, True]


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits = logits_of(5)
    tokens = np.array([0, 5, 599, 3, 3])
    wanted = logits.double().log_softmax(-1)
    result = row_logprobs(logits, tokens, 4)
    np.testing.assert_allclose(result.chosen, wanted[range(5), tokens], atol=1e-5)
    values, ids = wanted.topk(4)
    assert result.top_ids.tolist() == ids.tolist()
    np.testing.assert_allclose(result.top, values, atol=1e-5)
    assert row_logprobs(logits, tokens, 0).top.shape == (5, 0)


@pytest.mark.parametrize(
    ("processor", "part"),
    [
        (Processor("mystery"), "no processor is named 'mystery'"),
        (Processor("temperature", {"temperature": 0}), "above 0"),
        (Processor("temperature", {"temperature": float("nan")}), "above 0"),
        (Processor("temperature", {"temperature": True}), "above 0"),
        (Processor("temperature", {}), "takes the parameters"),
        (Processor("top_k", {"k": 0}), "an integer from 1"),
        (Processor("top_k", {"k": 2.5}), "an integer from 1"),
        (Processor("top_p", {"p": 1.5}), "to 1"),
        (Processor("min_p", {"p": -0.1}), "above 0"),
        (Processor("logit_bias", {"tokens": [1], "biases": []}), "one length"),
        (Processor("logit_bias", {"tokens": [VOCAB], "biases": [1]}), "not in the vocabulary"),
        (Processor("logit_bias", {"tokens": [1], "biases": [float("inf")]}), "biases has inf"),
        (Processor("bad_words", {"tokens": 5}), "lists"),
        (Processor("repetition_penalty", {"penalty": 0.0}), "above 0"),
    ],
)
def test_bad_parameters_are_refused(processor: Processor, part: str) -> None:
    with pytest.raises(InvalidArgument, match=part):
        check_sampler(SamplerSpec((processor,)), VOCAB)


def test_a_draw_needs_a_seed() -> None:
    with pytest.raises(InvalidArgument, match="without a seed"):
        check_sampler(SamplerSpec(greedy=False), VOCAB)
