"""Every standard processor against transformers' own, or against plain NumPy where it has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sampling_rows import Chain, i32, processed
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from quire.core.decoding import Params

VOCAB = 600
F64 = NDArray[np.float64]
HISTORIES = [[1, 5, 5, 9], [7, 7, 7, 7], [599, 0, 0, 0]]


def logits_of(num_rows: int, seed: int = 0, scale: float = 3.0) -> torch.Tensor:
    normal = np.random.default_rng(seed).normal(size=(num_rows, VOCAB)) * scale
    return torch.from_numpy(normal.astype(np.float32))


def same(actual: F64, wanted: F64) -> None:
    np.testing.assert_array_equal(np.isfinite(actual), np.isfinite(wanted))
    np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)


def by_row(name: str, key: str, values: Sequence[float]) -> tuple[str, list[Params]]:
    return name, [{key: value} for value in values]


def alike(name: str, key: str, value: float) -> tuple[str, list[Params]]:
    return by_row(name, key, [value] * 3)


WORDS = [[5], [9, 3], [5, 9, 4], [0, 0, 6], [2, 0, 6]]

AGAINST_TRANSFORMERS: dict[str, tuple[tuple[str, list[Params]], Callable[[], Any]]] = {
    "temperature": (alike("temperature", "temperature", 0.7), lambda: TemperatureLogitsWarper(0.7)),
    "top_k": (alike("top_k", "k", 17), lambda: TopKLogitsWarper(17)),
    "top_p": (alike("top_p", "p", 0.8), lambda: TopPLogitsWarper(0.8)),
    "top_p of one": (alike("top_p", "p", 1e-6), lambda: TopPLogitsWarper(1e-6)),
    "top_p of all": (alike("top_p", "p", 1.0), lambda: TopPLogitsWarper(1.0)),
    "min_p": (alike("min_p", "p", 0.1), lambda: MinPLogitsWarper(0.1)),
    "typical": (alike("typical", "p", 0.6), lambda: TypicalLogitsWarper(0.6)),
    "typical of few": (alike("typical", "p", 0.01), lambda: TypicalLogitsWarper(0.01)),
    "repetition": (
        alike("repetition_penalty", "penalty", 1.3),
        lambda: RepetitionPenaltyLogitsProcessor(1.3),
    ),
    "bad words": (
        ("bad_words", [{"tokens": WORDS}] * 3),
        lambda: NoBadWordsLogitsProcessor(WORDS, eos_token_id=[]),
    ),
    "bias": (
        ("logit_bias", [{"tokens": [3, 4, 599], "biases": [1.5, -2.0, 40.0]}] * 3),
        lambda: SequenceBiasLogitsProcessor([[[3], 1.5], [[4], -2.0], [[599], 40.0]]),
    ),
}


@pytest.mark.parametrize(
    ("mine", "theirs"), AGAINST_TRANSFORMERS.values(), ids=AGAINST_TRANSFORMERS
)
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_processors_equal_transformers(
    mine: tuple[str, list[Params]], theirs: Callable[[], Any], scale: float
) -> None:
    logits = logits_of(3, scale=scale)
    wanted = theirs()(torch.tensor(HISTORIES), logits.clone())
    if scale > 1 and mine != AGAINST_TRANSFORMERS["top_p of all"][0]:
        assert not torch.equal(wanted, logits)
    same(processed(logits, [mine], HISTORIES), wanted.double().numpy())


def test_a_word_of_several_tokens_is_forbidden_at_its_last() -> None:
    scores = processed(torch.zeros(3, VOCAB), [("bad_words", [{"tokens": WORDS}] * 3)], HISTORIES)
    excluded = [np.flatnonzero(np.isinf(row)).tolist() for row in scores]
    assert excluded == [[3, 4, 5], [5], [5, 6]]


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


@pytest.mark.parametrize("p", [0.5, 0.9, 0.9999])
@pytest.mark.parametrize("name", ["top_p", "typical"])
def test_wide_distributions_over_large_vocabularies(name: str, p: float) -> None:
    """More candidates than the first guess covers."""
    normal = np.random.default_rng(1).normal(size=(3, 20_000))
    logits = torch.from_numpy(normal.astype(np.float32)) * torch.tensor([[0.05], [1.0], [4.0]])
    theirs = {"top_p": TopPLogitsWarper, "typical": TypicalLogitsWarper}[name](p)
    wanted = torch.isfinite(theirs(torch.zeros(3, 1, dtype=torch.int64), logits.double())).numpy()
    actual = np.isfinite(processed(logits, [by_row(name, "p", [p] * 3)]))
    assert (actual.sum(1) > 300).any()
    # exponentials differ by 2e-7, so a few tokens at the edge may differ
    assert np.abs(actual.sum(1) - wanted.sum(1)).max() <= 12
    assert (actual != wanted).sum(1).max() <= 12


def reference(scores: F64, name: str, params: Params, history: Sequence[int]) -> F64:
    """One processor on one row, in plain numpy."""
    scores = scores.copy()
    counts = np.bincount(i32(history), minlength=VOCAB)
    if name == "logit_bias":
        for token, bias in zip(params["tokens"], params["biases"], strict=True):
            scores[token] += bias
    elif name == "allowed_tokens":
        scores[np.setdiff1d(np.arange(VOCAB), params["tokens"])] = -np.inf
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


CHAINS: dict[str, Chain] = {
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
    "allowed": [("allowed_tokens", [{"tokens": [1, 2]}, {"tokens": [599]}, {"tokens": [3]}])],
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
        by_row("repetition_penalty", "penalty", [1.0, 1.5, 0.1]),
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
def test_processors_equal_numpy(chain: Chain) -> None:
    logits = logits_of(3, 5)
    histories = [HISTORIES[0], [], HISTORIES[2]]
    wanted = logits.double().numpy()
    for row in range(3):
        for name, params in chain:
            wanted[row] = reference(wanted[row], name, params[row], histories[row])
    before = logits.clone()
    same(processed(logits, chain, histories), wanted)
    assert torch.equal(logits, before)
