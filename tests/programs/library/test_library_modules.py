"""Modular caching: modules that see themselves alone, at their positions, in transformers too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import EOS, logits, run
from transformers import LlamaForCausalLM

from quire.core.errors import ProgramFailed
from quire.node import Node
from quire.programs.api import Api
from quire.programs.library.caching.modular_caching import compose, place
from quire.programs.sdk import Context

pytestmark = pytest.mark.asyncio(loop_scope="module")

Reference = Callable[[str], LlamaForCausalLM]
SCHEMA = {"begin": "what is ", "dog": "the lazy dog is brown. ", "fox": "a fox jumps over. "}
EXPORTED_BEFORE = {"begin": "who is ", "dog": "a brown dog is lazy. "}
"""Of a test of its own, because what a module exports stays for others."""
QUESTION = "the age of the dog"


async def composed(
    node: Node, *prompts: tuple[list[str], str], schema: dict[str, str] = SCHEMA
) -> list[dict[str, Any]]:
    """Each prompt's tokens, positions, owners of positions, answer and imported modules."""

    async def program(api: Api) -> list[dict[str, Any]]:
        modules = place(api, schema)
        found = []
        for names, question in prompts:
            made = await compose(api, modules, names, question, 16)
            answer, imported = made.tokens, made.imported
            tokens, positions, owner = [], [], []
            for name in [one for one in schema if one in names]:
                tokens += modules[name].tokens
                first = modules[name].position
                positions += range(first, first + len(modules[name].tokens))
                owner += [name] * len(modules[name].tokens)
            asked = api.tokenize(question)
            first = sum(len(module.tokens) for module in modules.values())
            found.append(
                {
                    "tokens": tokens + asked,
                    "positions": [*positions, *range(first, first + len(asked))],
                    "owner": owner,
                    "answer": answer,
                    "imported": imported,
                }
            )
        return found

    result: list[dict[str, Any]] = await run(node, program)
    return result


def expected(model: LlamaForCausalLM, prompt: dict[str, Any]) -> list[int]:
    tokens, positions, owner = list(prompt["tokens"]), list(prompt["positions"]), prompt["owner"]

    def sees(query: int, key: int) -> bool:
        return query >= len(owner) or owner[query] == owner[key]

    said: list[int] = []
    while len(said) < 16 and EOS not in said:
        said.append(int(torch.argmax(logits(model, tokens, sees, positions)[-1])))
        tokens.append(said[-1])
        positions.append(positions[-1] + 1)
    return said


async def test_modules_are_composed_as_under_a_mask(tiny: Node, reference: Reference) -> None:
    prompts = await composed(
        tiny,
        (["begin", "dog"], QUESTION),
        (["fox", "begin"], QUESTION),
        (["begin", "dog", "fox"], "a quick fox"),
    )
    for prompt in prompts:
        assert prompt["answer"] == expected(reference("llama"), prompt)
    assert [prompt["imported"] for prompt in prompts] == [
        [],
        ["begin"],
        ["begin", "dog", "fox"],
    ]
    gap = prompts[1]["positions"]
    assert gap != list(range(len(gap))), "what is left out leaves a gap"


async def test_later_programs_import_what_earlier_ones_exported(tiny: Node) -> None:
    both = (["begin", "dog"], QUESTION)
    (first,) = await composed(tiny, both, schema=EXPORTED_BEFORE)
    (second,) = await composed(tiny, both, schema=EXPORTED_BEFORE)
    assert first["imported"] == []
    assert second["imported"] == ["begin", "dog"]
    assert second["answer"] == first["answer"]


async def test_one_module_at_the_beginning_is_a_plain_prefix(tiny: Node) -> None:
    async def plain(api: Api) -> list[int]:
        async with Context(api) as ctx:
            modules = place(api, {"only": SCHEMA["dog"]})
            ctx.fill(modules["only"].tokens).fill(QUESTION)
            generated = list((await ctx.generate(max_tokens=16)).token_ids)
            answer = (await compose(api, modules, ["only"], QUESTION, 16)).tokens
            assert answer == generated
            return answer

    assert len(await run(tiny, plain)) == 16


async def test_an_unknown_module_is_named(tiny: Node) -> None:
    with pytest.raises(ProgramFailed, match="the schema has begin, dog, fox"):
        await composed(tiny, (["begin", "cat"], QUESTION))
