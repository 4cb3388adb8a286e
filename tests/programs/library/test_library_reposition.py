"""What the library takes to other positions, against transformers under masks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tiny_models import EOS, PROMPT, greedy, logits, model_of, run
from transformers import LlamaForCausalLM

from quire.core.errors import ProgramFailed
from quire.node import Node
from quire.programs.api import Api
from quire.programs.library.caching.modular_caching import Module
from quire.programs.library.caching.movable_modules import compose
from quire.programs.sdk import Context, StreamingWindow

pytestmark = pytest.mark.asyncio(loop_scope="module")

Reference = Callable[[str], LlamaForCausalLM]
TEXTS = {"begin": "what is ", "dog": "the lazy dog is brown. ", "fox": "a fox jumps over. "}
QUESTION = "the age of the dog"


@pytest.mark.parametrize("name", ["tiny", "wide"])
async def test_a_window_without_sinks_is_a_masked_forward_whose_positions_count_on(
    tiny: Node, reference: Reference, name: str
) -> None:
    """Rotary attention sees differences, so where the window stands does not matter."""
    prompt, num = (PROMPT * 4)[:70], 40
    size, dropped = 64, 32

    async def program(api: Api) -> list[int]:
        async with Context(model_of(api, name)) as ctx:
            window = StreamingWindow(ctx, size=size, num_sinks=0)
            await window.read(prompt)
            tokens = await window.generate(num)
            assert window.num_forgotten == 64
            return tokens

    def sees(query: int, key: int) -> bool:
        # the token that fills the window is run when the older half is gone
        return key >= (query + 1 - dropped) // dropped * dropped

    assert await run(tiny, program) == greedy(reference("llama"), prompt, num, sees)


async def test_modules_stand_in_any_order_as_under_a_mask(tiny: Node, reference: Reference) -> None:
    orders = (["begin", "dog", "fox"], ["fox", "begin", "dog"], ["dog", "dog"])

    async def program(
        api: Api,
    ) -> tuple[dict[str, list[int]], list[int], list[tuple[list[int], int]]]:
        modules = {name: Module(tuple(api.tokenize(text)), 0) for name, text in TEXTS.items()}
        answers = [await compose(api, modules, names, QUESTION, 12) for names in orders]
        tokens = {name: list(module.tokens) for name, module in modules.items()}
        return tokens, api.tokenize(QUESTION), answers

    modules, asked, answers = await run(tiny, program)
    for names, (answer, num_imported) in zip(orders, answers, strict=True):
        tokens = [token for name in names for token in modules[name]]
        owner = [i for i, name in enumerate(names) for _ in modules[name]]
        assert num_imported == (0 if names is orders[0] else len(tokens))
        assert answer == said(reference("llama"), [*tokens, *asked], owner)


def said(model: LlamaForCausalLM, tokens: list[int], owner: list[int]) -> list[int]:
    def sees(query: int, key: int) -> bool:
        return query >= len(owner) or owner[query] == owner[key]

    answer: list[int] = []
    while len(answer) < 12 and EOS not in answer:
        answer.append(int(torch.argmax(logits(model, [*tokens, *answer], sees)[-1])))
    return answer


async def test_an_unknown_module_is_named(tiny: Node) -> None:
    async def program(api: Api) -> None:
        await compose(api, {}, ["cat"], QUESTION, 4)

    with pytest.raises(ProgramFailed, match="no modules \\['cat'\\]"):
        await run(tiny, program)
