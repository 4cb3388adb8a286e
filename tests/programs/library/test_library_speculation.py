"""Several tokens from one forward pass: always the tokens of greedy decoding, in fewer passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from library_run import run as run_program
from tiny_models import EOS, PROMPT, greedy, model_of, run
from transformers import LlamaForCausalLM

from quire.node import Node
from quire.programs.api import Api
from quire.programs.library.decoding.jacobi_decoding import jacobi
from quire.programs.library.decoding.prompt_lookup import Lookup, generate_by_lookup
from quire.programs.library.decoding.speculative_decoding import SpeculatedText, speculate
from quire.programs.sdk import Context, verify

pytestmark = pytest.mark.asyncio(loop_scope="module")

Reference = Callable[[str], LlamaForCausalLM]
PROMPTS = [PROMPT, PROMPT[:1], PROMPT[4:9] * 4]
NUM_TOKENS = 30


async def test_lookup_takes_the_longest_and_latest_match() -> None:
    assert Lookup().guess([1, 2, 3, 9, 2, 3, 8, 7, 1, 2, 3], 2) == [9, 2]
    assert Lookup().guess([2, 3, 4, 2, 3, 5, 2, 3], 3) == [5, 2, 3]
    assert Lookup().guess([1, 2, 3], 4) == []
    assert Lookup().guess([1, 1], 4) == [1]
    assert Lookup().guess([1], 4) == Lookup().guess([], 4) == []
    assert Lookup(1).guess([1, 2, 3, 9, 2, 3, 8, 7, 1, 2, 3], 2) == [8, 7]


async def test_a_lookup_that_grows_knows_what_a_new_one_knows() -> None:
    tokens = [(7 * number * number) % 11 for number in range(60)]
    growing = Lookup()
    for length in (0, 1, 2, 5, 6, 19, 20, 60):
        expected = Lookup().guess(tokens[:length], 5)
        assert growing.guess(tokens[:length], 5) == expected
        assert growing.guess(tokens[:length], 5) == expected


@pytest.mark.parametrize("name", ["tiny", "wide"])
@pytest.mark.parametrize("prompt", PROMPTS)
async def test_prompt_lookup_is_greedy(
    tiny: Node, reference: Reference, name: str, prompt: list[int]
) -> None:
    for num_guessed in (0, 8):

        async def program(api: Api, num: int = num_guessed) -> tuple[list[int], int]:
            async with Context(model_of(api, name)) as ctx:
                return await generate_by_lookup(ctx.fill(prompt), NUM_TOKENS, num_guessed=num)

        tokens, num_passes = await run(tiny, program)
        assert tokens == greedy(reference("llama"), prompt, NUM_TOKENS)
        assert num_passes == len(tokens) if num_guessed == 0 else num_passes <= len(tokens)


async def test_what_stands_in_the_question_takes_few_steps() -> None:
    """Four tokens say where it stands; then guesses of 8, 16, 32 are right to their ends."""
    words = "The quick brown fox jumps over a lazy dog, 1234567890."
    result, _, _ = await run_program(
        "prompt_lookup", words, "256", "8", answer=lambda prompt: f"{words}<|end|>"
    )
    assert result["text"] == words
    assert result["num_steps"] == 4 + 3, "4 plain, then 8 + 1, 16 + 1 and the rest"
    assert result["num_tokens"] == len(words) + 1


async def test_text_that_repeats_nothing_is_decoded_plainly() -> None:
    new = "".join(chr(code) for code in range(48, 112))
    result, _, num_prompts = await run_program(
        "prompt_lookup", "...", "64", "8", answer=lambda prompt: new
    )
    assert result == {"text": new, "num_tokens": 64, "num_steps": 64}
    assert num_prompts <= 1 + 4, "4, 8, 16, 32 and what is left"


async def test_guesses_that_go_wrong_are_given_up() -> None:
    """Each pair of letters was seen before, with another one behind."""
    seen = "a1b a2b a3b a4b a5b a6b a7b a8b "
    tokens = "".join(f"a{digit}c" for digit in "9876543210" * 6)
    result, _, _ = await run_program(
        "prompt_lookup", seen, "180", "8", answer=lambda prompt: tokens
    )
    assert result["text"] == tokens
    assert result["num_steps"] <= 180


@pytest.mark.parametrize("name", ["tiny", "wide"])
@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("block", [0, 5, 16])
async def test_jacobi_is_greedy(
    tiny: Node, reference: Reference, name: str, prompt: list[int], block: int
) -> None:
    async def program(api: Api) -> tuple[list[int], int]:
        async with Context(model_of(api, name)) as ctx:
            return await jacobi(ctx.fill(prompt), NUM_TOKENS, block=block)

    tokens, num_passes = await run(tiny, program)
    assert tokens == greedy(reference("llama"), prompt, NUM_TOKENS)
    assert num_passes <= len(tokens)


async def speculated(
    node: Node, draft_name: str, num_guessed: int, prompt: list[int]
) -> SpeculatedText:
    kept: list[SpeculatedText] = []

    async def program(api: Api) -> None:
        async with (
            Context(model_of(api, "tiny")) as ctx,
            Context(model_of(api, draft_name)) as draft,
        ):
            ctx.fill(prompt)
            draft.fill(prompt)
            kept.append(await speculate(ctx, draft, NUM_TOKENS, num_guessed=num_guessed))

    await run(node, program)
    return kept[0]


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("num_guessed", [0, 1, 5])
@pytest.mark.parametrize("draft_name", ["tiny", "wide", "draft", "other"])
async def test_speculation_is_greedy(
    tiny: Node, reference: Reference, draft_name: str, num_guessed: int, prompt: list[int]
) -> None:
    done = await speculated(tiny, draft_name, num_guessed, prompt)
    assert done.tokens == greedy(reference("llama"), prompt, NUM_TOKENS)
    assert done.num_passes == len(done.tokens) - done.num_accepted


async def test_nothing_is_said_behind_the_end(tiny: Node, reference: Reference) -> None:
    """``ending`` drafts for itself, so its end token is guessed, and rightly."""
    num_ended = 0
    for start in (1, 4, 7):
        prompt = PROMPT[start : start + 6]
        expected = greedy(reference("ending"), prompt, NUM_TOKENS)
        num_ended += expected[-1] == EOS

        async def program(api: Api, prompt: list[int] = prompt) -> list[list[int]]:
            model = model_of(api, "ending")
            async with Context(model) as ctx, Context(model) as draft, Context(model) as other:
                done = await speculate(ctx.fill(prompt), draft.fill(prompt), NUM_TOKENS)
                tokens, _ = await jacobi(other.fill(prompt), NUM_TOKENS, block=4)
                return [done.tokens, tokens]

        assert await run(tiny, program) == [expected, expected]
    assert num_ended >= 2


async def test_a_better_draft_saves_passes(tiny: Node) -> None:
    same, near, far = [
        await speculated(tiny, name, 4, PROMPT) for name in ("tiny", "draft", "other")
    ]
    assert same.num_accepted == same.num_drafted or EOS in same.tokens
    assert same.num_passes == -(-len(same.tokens) // 5)
    assert same.num_passes < near.num_passes < far.num_passes
    none = await speculated(tiny, "tiny", 0, PROMPT)
    assert none.num_passes == len(none.tokens)


async def test_a_guess_counts_as_far_as_it_is_right(tiny: Node, reference: Reference) -> None:
    right = greedy(reference("llama"), PROMPT, 6)
    wrong = (right[3] + 1) % 300

    async def program(api: Api) -> None:
        async with Context(model_of(api, "tiny")) as ctx:
            ctx.fill(PROMPT)
            verified = await verify(ctx, [*right[:3], wrong, right[4]], 20)
            assert (verified.tokens, verified.num_accepted) == (right[:4], 3)
            assert len(verified.rest) == 2
            verified = await verify(ctx, right[4:6], 1)
            assert (verified.tokens, verified.rest) == ([right[4]], [])
            assert list(ctx.tokens) == [*PROMPT, *right[:5]]
            ctx.fill([7] * (510 - len(ctx)))  # the model can hold 512
            assert len((await verify(ctx, [7, 7, 7], 20)).tokens) <= 2

    await run(tiny, program)
