"""Two distributions made one: contrastive and context-aware decoding against PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tiny_models import EOS, PROMPT, greedy, logits, model_of, run
from transformers import LlamaForCausalLM

from quire.node import Node
from quire.programs.api import Api
from quire.programs.library.decoding.context_aware_decoding import generate_aware
from quire.programs.library.decoding.contrastive_decoding import contrast, generate_contrastive
from quire.programs.sdk import Context

pytestmark = pytest.mark.asyncio(loop_scope="module")

Reference = Callable[[str], LlamaForCausalLM]
NUM_TOKENS = 20


async def test_contrast_by_hand() -> None:
    expert = {1: math.log(0.5), 2: math.log(0.4), 3: math.log(0.04)}
    amateur = {1: math.log(0.8), 4: math.log(0.1)}
    scores = contrast(expert, amateur, alpha=0.1, beta=1.0)
    assert set(scores) == {1, 2}, "the third is not plausible"
    assert scores[1] == pytest.approx(2 * math.log(0.5) - math.log(0.8))
    assert scores[2] == pytest.approx(2 * math.log(0.4) - math.log(0.1))
    assert contrast(expert, amateur, alpha=0.0, beta=0.0) == expert


def listed(log_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a program reads of a distribution, the 256 best; others as likely as the last."""
    values, ids = log_probs.topk(256)
    return ids, log_probs.clamp(min=float(values[-1]))


def mixed(one: torch.Tensor, other: torch.Tensor, weight: float, alpha: float = 0.0) -> int:
    """The token of the highest (1 + weight) one - weight other among the plausible ones."""
    ids, _ = listed(one)
    _, bounded = listed(other)
    scores = torch.full_like(one, -torch.inf)
    scores[ids] = ((1 + weight) * one - weight * bounded)[ids]
    if alpha:
        scores[one < one.max() + math.log(alpha)] = -torch.inf
    return int(scores.argmax())


async def contrasted(node: Node, amateur_name: str, beta: float, window: int = 512) -> list[int]:
    async def program(api: Api) -> list[int]:
        async with (
            Context(model_of(api, "tiny")) as expert,
            Context(model_of(api, amateur_name)) as amateur,
        ):
            expert.fill(PROMPT)
            amateur.fill(PROMPT)
            return await generate_contrastive(
                expert, amateur, NUM_TOKENS, alpha=0.05, beta=beta, window=window
            )

    result: list[int] = await run(node, program)
    return result


def contrasted_by_torch(
    expert: LlamaForCausalLM, amateur: LlamaForCausalLM, beta: float, window: int = 512
) -> list[int]:
    tokens = list(PROMPT)
    while len(tokens) < len(PROMPT) + NUM_TOKENS and EOS not in tokens[len(PROMPT) :]:
        one = logits(expert, tokens)[-1].log_softmax(-1)
        other = logits(amateur, tokens, lambda q, k: q - k < window)[-1].log_softmax(-1)
        tokens.append(mixed(one, other, beta, 0.05))
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize(("name", "checkpoint"), [("draft", "draft"), ("other", "other")])
async def test_contrastive_decoding_is_the_formula(
    tiny: Node, reference: Reference, name: str, checkpoint: str
) -> None:
    for beta in (0.5, 2.0):
        tokens = await contrasted(tiny, name, beta)
        assert tokens == contrasted_by_torch(reference("llama"), reference(checkpoint), beta)
    assert tokens != greedy(reference("llama"), PROMPT, NUM_TOKENS)


async def test_the_amateur_may_be_the_expert_with_short_sight(
    tiny: Node, reference: Reference
) -> None:
    model = reference("llama")
    for window in (3, 8):
        assert await contrasted(tiny, "tiny", 0.7, window) == contrasted_by_torch(
            model, model, 0.7, window
        )


async def test_without_contrast_it_is_greedy(tiny: Node, reference: Reference) -> None:
    expected = greedy(reference("llama"), PROMPT, NUM_TOKENS)
    assert await contrasted(tiny, "other", 0.0) == expected
    assert await aware(tiny, 0.0) == expected


async def aware(node: Node, alpha: float) -> list[int]:
    async def program(api: Api) -> list[int]:
        model = model_of(api, "tiny")
        async with Context(model) as informed, Context(model) as ignorant:
            return await generate_aware(
                informed.fill(PROMPT), ignorant.fill(PROMPT[6:]), NUM_TOKENS, alpha=alpha
            )

    result: list[int] = await run(node, program)
    return result


@pytest.mark.parametrize("alpha", [0.5, 1.5])
async def test_context_aware_decoding_is_the_formula(
    tiny: Node, reference: Reference, alpha: float
) -> None:
    model, said = reference("llama"), list[int]()
    while len(said) < NUM_TOKENS and EOS not in said:
        one = logits(model, [*PROMPT, *said])[-1].log_softmax(-1)
        other = logits(model, [*PROMPT[6:], *said])[-1].log_softmax(-1)
        said.append(mixed(one, other, alpha))
    assert await aware(tiny, alpha) == said
    assert said != greedy(model, PROMPT, NUM_TOKENS)
