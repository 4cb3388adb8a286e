"""Beam search against transformers' own; best of n against what it is made of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tiny_models import EOS, PROMPT, greedy, logits, model_of, run
from transformers import LlamaForCausalLM

from quire.core.errors import ProgramFailed
from quire.node import Node
from quire.programs.api import Api
from quire.programs.library.decoding.beam_search import search_beams
from quire.programs.library.decoding.best_of_n import answers
from quire.programs.sdk import Context

pytestmark = pytest.mark.asyncio(loop_scope="module")

Reference = Callable[[str], LlamaForCausalLM]
Found = list[tuple[list[int], float]]


async def found_by_us(
    node: Node, name: str, prompt: list[int], width: int, num: int, penalty: float
) -> Found:
    async def program(api: Api) -> Found:
        ctx = Context(model_of(api, name)).fill(prompt)
        best = await search_beams(ctx, width, num, length_penalty=penalty)
        return [(list(one.tokens), one.score) for one in best]

    result: Found = await run(node, program)
    return result


def found_by_transformers(
    model: LlamaForCausalLM, prompt: list[int], width: int, num: int, penalty: float
) -> Found:
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=num,
        num_beams=width,
        num_return_sequences=width,
        length_penalty=penalty,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        pad_token_id=2,
        eos_token_id=EOS,
    )
    found = []
    scores = output.sequences_scores.tolist() if width > 1 else [0.0]
    for sequence, score in zip(output.sequences.tolist(), scores, strict=True):
        said = sequence[len(prompt) :]
        end = said.index(EOS) + 1 if EOS in said else len(said)
        found.append((said[:end], score))
    return found


@pytest.mark.parametrize("name", ["tiny", "wide"])
@pytest.mark.parametrize(
    ("prompt", "width", "num", "penalty"),
    [
        (PROMPT, 2, 12, 1.0),
        (PROMPT, 5, 20, 1.0),
        (PROMPT[:3], 4, 24, 0.0),
        (PROMPT[5:], 3, 24, 2.0),
        (PROMPT[::-1], 8, 16, 1.0),
    ],
)
async def test_beams_are_those_of_transformers(
    tiny: Node,
    reference: Reference,
    name: str,
    prompt: list[int],
    width: int,
    num: int,
    penalty: float,
) -> None:
    ours = await found_by_us(tiny, name, prompt, width, num, penalty)
    theirs = found_by_transformers(reference("llama"), prompt, width, num, penalty)
    assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in theirs]
    assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], abs=1e-4)


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("penalty", [0.0, 0.7, 1.5])
async def test_beams_that_end_are_those_of_transformers(
    tiny: Node, reference: Reference, width: int, penalty: float
) -> None:
    found = []
    for start in range(6):
        prompt = PROMPT[start : start + 6]
        ours = await found_by_us(tiny, "ending", prompt, width, 12, penalty)
        theirs = found_by_transformers(reference("ending"), prompt, width, 12, penalty)
        assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in theirs]
        found += [tokens for tokens, _ in ours]
    assert any(tokens[-1] == EOS for tokens in found) or penalty > 1
    assert any(tokens[-1] != EOS for tokens in found)


async def test_one_beam_is_greedy(tiny: Node, reference: Reference) -> None:
    ((tokens, score),) = await found_by_us(tiny, "tiny", PROMPT, 1, 20, 1.0)
    assert tokens == greedy(reference("llama"), PROMPT, 20)
    scores = logits(reference("llama"), [*PROMPT, *tokens]).log_softmax(-1)
    steps = [scores[len(PROMPT) - 1 + i, token] for i, token in enumerate(tokens)]
    assert score == pytest.approx(float(sum(steps)) / len(tokens), abs=1e-4)


async def test_bad_widths_are_refused(tiny: Node) -> None:
    with pytest.raises(ProgramFailed, match="0 beams"):
        await found_by_us(tiny, "tiny", PROMPT, 0, 4, 1.0)


async def drawn(node: Node, num: int, heat: float, seed: int = 0) -> Found:
    async def program(api: Api) -> Found:
        async with Context(model_of(api, "tiny")) as ctx:
            ctx.fill(PROMPT)
            found = await answers(ctx, num, 12, heat=heat, seed=seed)
            return [(list(one.generated.token_ids), one.score) for one in found]

    result: Found = await run(node, program)
    return result


async def test_the_best_of_one_greedy_answer_is_greedy(tiny: Node, reference: Reference) -> None:
    ((tokens, _),) = await drawn(tiny, 1, 0.0)
    assert tokens == greedy(reference("llama"), PROMPT, 12)


async def test_the_best_of_n_is_the_likeliest_of_them(tiny: Node, reference: Reference) -> None:
    found = await drawn(tiny, 4, 1.0)
    alone = [await drawn(tiny, 1, 1.0, seed) for seed in range(4)]
    assert sorted(tokens for tokens, _ in found) == sorted(one[0][0] for one in alone)
    assert len({tuple(tokens) for tokens, _ in found}) > 1
    for tokens, score in found:
        log_probs = logits(reference("llama"), [*PROMPT, *tokens]).log_softmax(-1)
        each = [log_probs[len(PROMPT) - 1 + i, token] for i, token in enumerate(tokens)]
        assert score == pytest.approx(float(sum(each)) / len(tokens), abs=1e-3)
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    with pytest.raises(ProgramFailed, match="at least one"):
        await drawn(tiny, 0, 1.0)
