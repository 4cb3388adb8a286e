"""Texts that must be of a kind: grammars, checks with ways back, words that are completed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tiny_models import PROMPT, greedy, logits, model_of, run
from transformers import LlamaForCausalLM

from quire.core.errors import InvalidArgument
from quire.node import Node
from quire.programs.api import Api
from quire.programs.library.decoding.output_validation import (
    Check,
    ValidatedText,
    generate_validated,
)
from quire.programs.library.decoding.token_healing import continuations, heal
from quire.programs.sdk import Context, lark

pytestmark = pytest.mark.asyncio(loop_scope="module")

Reference = Callable[[str], LlamaForCausalLM]
NESTED = 'start: list\nlist: "[" (item ("," item)*)? "]"\nitem: /[a-c]/ | list\n'
INNERMOST = re.compile(r"\[([a-c](,[a-c])*)?\]")


async def test_a_nested_grammar_holds_against_a_parser(tiny: Node) -> None:
    """No regular expression can say this; brackets are taken out from the inside."""

    async def program(api: Api) -> list[str]:
        texts = []
        for start in range(8):
            async with Context(model_of(api, "tiny")) as ctx:
                ctx.fill(PROMPT[start:])
                generated = await ctx.generate(max_tokens=60, grammar=lark(NESTED))
                if generated.finish_reason == "stop":
                    texts.append(generated.text)
        return texts

    texts = await run(tiny, program)
    assert texts
    for text in texts:
        flat, num = text, 1
        while num:
            flat, num = re.subn(
                r"\[((a|b|c)(,(a|b|c))*)?\](?=.)|(?<=.)\[((a|b|c)(,(a|b|c))*)?\]", "a", flat
            )
        assert re.fullmatch(r"\[((a|b|c)(,(a|b|c))*)?\]", flat), text


async def test_a_grammar_of_everything_changes_nothing(tiny: Node, reference: Reference) -> None:
    async def program(api: Api) -> list[int]:
        async with Context(model_of(api, "tiny")) as ctx:
            anything = lark("start: /(?s:.)*/")
            generated = await ctx.fill(PROMPT).generate(max_tokens=8, grammar=anything)
            return list(generated.token_ids)

    tokens = await run(tiny, program)
    expected = greedy(reference("llama"), PROMPT, 8)
    assert tokens == expected or _first_difference_is_no_text(tiny, tokens, expected)


def _first_difference_is_no_text(node: Node, tokens: list[int], expected: list[int]) -> bool:
    """A grammar is over characters: bytes that are none it must refuse."""
    tokenizer = node.model("tiny").tokenizer
    index = next(i for i, (a, b) in enumerate(zip(tokens, expected, strict=False)) if a != b)
    text = b"".join(tokenizer.token_bytes(token) for token in expected[: index + 1])
    return "\ufffd" in text.decode(errors="replace")


# -- output validation -----------------------------------------------------------------------------


async def validated(node: Node, check: Check, name: str = "tiny", num: int = 24) -> ValidatedText:
    kept: list[ValidatedText] = []

    async def program(api: Api) -> None:
        async with Context(model_of(api, name)) as ctx:
            kept.append(await generate_validated(ctx.fill(PROMPT), check, num))

    await run(node, program)
    return kept[0]


@pytest.mark.parametrize("name", ["tiny", "wide"])
async def test_what_is_always_valid_is_greedy(tiny: Node, reference: Reference, name: str) -> None:
    result = await validated(tiny, lambda text: True, name)
    assert result.tokens == greedy(reference("llama"), PROMPT, 24)
    assert (result.num_rejected, result.is_valid) == (0, True)


async def test_what_is_wrong_is_taken_back(tiny: Node, reference: Reference) -> None:
    seen: list[str] = []
    plain = (await validated(tiny, lambda text: bool(seen.append(text)) or True)).text
    third = len(plain) // 3
    unwanted = next(c for c in plain[third:] if c.isalnum() and c not in plain[:third])

    result = await validated(tiny, lambda text: unwanted not in text)
    assert result.is_valid
    assert result.num_rejected >= 1
    assert unwanted not in result.text
    good = max((text for text in seen if unwanted not in text), key=len)
    assert result.text.startswith(good[:-4]), "what was good before stays"


async def test_it_gives_up_in_the_end(tiny: Node) -> None:
    result = await validated(tiny, lambda text: False)
    assert (result.tokens, result.num_rejected, result.is_valid) == ([], 16, False)


# -- token healing ---------------------------------------------------------------------------------


async def test_continuations_are_those_that_fit() -> None:
    vocabulary = [b"", b"F", b"Fra", b"France", b"ra", b"Fri", b"Franc"]
    assert continuations(vocabulary, b"Fra") == [2, 3, 6]
    assert continuations(vocabulary, b"Frank") == [2]
    with pytest.raises(InvalidArgument, match="begins b'x'"):
        continuations(vocabulary, b"x")


async def healed(node: Node, prompt: list[int], num_taken: int = 1) -> list[int]:
    async def program(api: Api) -> list[int]:
        async with Context(model_of(api, "tiny")) as ctx:
            tokens = await heal(ctx.fill(prompt), api.get_vocabs(), num_taken)
            assert list(ctx.tokens) == prompt[: len(ctx) - len(tokens)] + tokens
            return tokens

    tokens: list[int] = await run(node, program)
    return tokens


@pytest.mark.parametrize("num_taken", [0, 1, 2])
async def test_healing_takes_the_likeliest_tokens_that_fit(
    tiny: Node, reference: Reference, num_taken: int
) -> None:
    tokenizer = tiny.model("tiny").tokenizer
    spelled = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    num_changed = 0
    for text in ("the age of the do", "the quick brow", "jumps over th", "what is the a", "a la"):
        prompt = tokenizer.encode(text)
        kept = prompt[: len(prompt) - num_taken]
        left = b"".join(spelled[token] for token in prompt[len(kept) :])
        expected: list[int] = []
        while left:
            scores = logits(reference("llama"), [*kept, *expected])[-1]
            fitting = [t for t, text_of in enumerate(spelled) if text_of[: len(left)] == left]
            if not fitting:
                fits = [t for t, text_of in enumerate(spelled) if left[: len(text_of)] == text_of]
                fitting = [max(fits, key=lambda token: len(spelled[token]))]
            expected.append(max(fitting, key=lambda token: float(scores[token])))
            left = left[len(spelled[expected[-1]]) :]
        assert await healed(tiny, prompt, num_taken) == expected
        num_changed += expected != prompt[len(kept) :]
    assert bool(num_changed) == bool(num_taken)


async def test_what_has_no_text_stays(tiny: Node) -> None:
    assert await healed(tiny, [41, 0]) == []
    assert await healed(tiny, [41], 4) == []
    kept_special = await healed(tiny, [41, 0, 50, 51], 9)
    assert kept_special
