"""Every family and variant agrees with transformers: prefill, chunks, decode, windows, masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_checkpoints import MODELS, VOCAB_SIZE, load_reference
from engine_driver import Driver, Row
from numpy.typing import NDArray
from transformers import PreTrainedModel

from quire.core.decoding import StopSpec

TOLERANCE = 1e-4
NUM_TOKENS = 23
NUM_PROMPT = 19

MakeDriver = Callable[..., Driver]
Reference = Callable[[str], PreTrainedModel]


@pytest.fixture
def make_driver(make_driver: MakeDriver, backend: str) -> MakeDriver:
    """Drivers of engines on every backend."""
    return partial(make_driver, backend=backend)


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCAB_SIZE, count).tolist()


def logprobs_of(model: PreTrainedModel, tokens: Sequence[int]) -> NDArray[np.float64]:
    with torch.inference_mode():
        logits = model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return logits.double().log_softmax(-1).numpy()


def in_chunks(driver: Driver, tokens: Sequence[int], ends: Sequence[int]) -> NDArray[np.float64]:
    """Log probabilities after every token, computed chunk by chunk into shuffled pages."""
    random = np.random.default_rng(1)
    blocks = random.permutation(40)[: driver.num_pages(len(tokens))].tolist()
    parts, start = [], 0
    for end in ends:
        span = range(start, end)
        table = driver.write_table(0, blocks, range(end))
        row = Row(tokens[start:end], 0, span, driver.flat(blocks, span))
        parts.append(driver.logprobs([row], [table]))
        start = end
    return np.concatenate(parts)


@pytest.mark.parametrize("name", MODELS)
def test_prefill_and_chunks(name: str, make_driver: MakeDriver, reference: Reference) -> None:
    driver = make_driver(name)
    tokens = random_tokens(NUM_TOKENS)
    wanted = logprobs_of(reference(name), tokens)
    assert np.abs(driver.logprobs([Row(tokens)]) - wanted).max() <= TOLERANCE
    chunked = in_chunks(driver, tokens, [5, 6, 17, 18, 19, NUM_TOKENS])
    assert np.abs(chunked - wanted).max() <= TOLERANCE


def decoded(driver: Driver, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """``count`` greedy tokens after each prompt, several steps per message, all in one batch."""
    num_pages = driver.num_pages(len(prompts[0]) + count)
    started = [
        driver.open(
            number,
            prompt,
            list(range(number * num_pages, (number + 1) * num_pages)),
            stop=StopSpec(max_tokens=count),
        )
        for number, prompt in enumerate(prompts)
    ]
    outputs = driver.decode(started, num_steps=3)
    return [outputs[number].tokens for number in range(len(prompts))]


def regret(logprobs: NDArray[np.float64], prompt: Sequence[int], tokens: Sequence[int]) -> float:
    """The largest difference of a token's log probability from the best token's."""
    after = logprobs[len(prompt) - 1 :][: len(tokens)]
    return float((after.max(axis=-1) - after[np.arange(len(tokens)), tokens]).max())


@pytest.mark.parametrize("name", MODELS)
def test_greedy_decode(name: str, make_driver: MakeDriver, reference: Reference) -> None:
    """Every token is the reference's best, within the tolerance on logits."""
    prompts = [random_tokens(NUM_PROMPT, 3), random_tokens(NUM_PROMPT, 4)]
    answers = decoded(make_driver(name), prompts, NUM_TOKENS - NUM_PROMPT)
    for prompt, tokens in zip(prompts, answers, strict=True):
        wanted = logprobs_of(reference(name), [*prompt, *tokens])
        assert len(tokens) == NUM_TOKENS - NUM_PROMPT
        assert regret(wanted, prompt, tokens) <= 2 * TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16(
    name: str,
    make_driver: MakeDriver,
    reference: Reference,
    checkpoint: Callable[[str], Path],
) -> None:
    """The error is of the size of transformers' own rounding to bfloat16, and where the best token
    leads by more than that, it is the one that is decoded.

    A token that rounding routes to another expert differs much in either implementation: for
    mixtures of experts the bound applies to the better half of the prompts, otherwise to every
    prompt.
    """
    held = 0.5 if MODELS[name].has_experts else 1.0
    prompts = [random_tokens(NUM_PROMPT, seed) for seed in range(6)]
    rounded_model = load_reference(name, checkpoint(name), torch.bfloat16)
    exact = [logprobs_of(reference(name), prompt) for prompt in prompts]
    rounding = largest([logprobs_of(rounded_model, prompt) for prompt in prompts], exact)
    driver = make_driver(name, dtype="bfloat16")
    error = largest([driver.logprobs([Row(prompt)]) for prompt in prompts], exact)
    limit = 2.5 * np.quantile(rounding, held)
    assert np.quantile(error, held) <= limit
    answers = decoded(driver, prompts, NUM_TOKENS - NUM_PROMPT)
    regrets = [
        regret(logprobs_of(reference(name), [*prompt, *tokens]), prompt, tokens)
        for prompt, tokens in zip(prompts, answers, strict=True)
    ]
    assert np.quantile(regrets, held) <= limit


def largest(
    actual: Sequence[NDArray[np.float64]], wanted: Sequence[NDArray[np.float64]]
) -> list[float]:
    """The largest difference of each prompt."""
    return [float(np.abs(a - w).max()) for a, w in zip(actual, wanted, strict=True)]


def bias_of(shown_TT: NDArray[np.bool_]) -> torch.Tensor:
    bias = torch.zeros(1, 1, *shown_TT.shape)
    return bias.masked_fill_(~torch.from_numpy(shown_TT), torch.finfo(torch.float32).min)


@pytest.mark.parametrize("name", ["gemma2", "gpt-oss"])
def test_an_explicit_mask_replaces_causality_and_not_the_window(
    name: str, make_driver: MakeDriver, reference: Reference
) -> None:
    """One random mask, which also shows higher positions; layers with a window see less of it."""
    driver, num_old, num_new = make_driver(name), 13, 7
    tokens = random_tokens(num_old + num_new)
    blocks = list(range(driver.num_pages(num_old)))
    span = range(num_old)
    table = driver.write_table(0, blocks, span)
    driver.logprobs([Row(tokens[:num_old], 0, span, driver.flat(blocks, span))], [table])

    shown = np.random.default_rng(5).random((num_new, num_old + num_new)) < 0.6
    shown[np.arange(num_new), num_old + np.arange(num_new)] = True
    num_slots = len(blocks) * driver.page_size
    mask = np.ones((num_new, num_slots + num_new), bool)
    mask[:, :num_old], mask[:, num_slots:] = shown[:, :num_old], shown[:, num_old:]
    row = Row(tokens[num_old:], 0, range(num_old, num_old + num_new), mask=mask)

    full = np.tril(np.ones((num_old + num_new, num_old + num_new), bool))
    full[num_old:] = shown
    place = np.arange(num_old + num_new)
    within = full & (place[None, :] > place[:, None] - MODELS[name].changes["sliding_window"])
    masks = {"full_attention": bias_of(full), "sliding_attention": bias_of(within)}
    with torch.inference_mode():
        logits = reference(name)(torch.tensor([tokens]), attention_mask=masks).logits[0]
    wanted = logits.double().log_softmax(-1).numpy()[num_old:]
    assert np.abs(driver.logprobs([row]) - wanted).max() <= TOLERANCE
