"""Techniques that choose what tokens see: equal to a transformers forward under the same mask."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tiny_models import EOS, PROMPT, greedy, logits, model_of, run
from transformers import LlamaForCausalLM

from quire.core.errors import InvalidArgument, ProgramFailed
from quire.node import Node
from quire.programs.api import Api
from quire.programs.library.attention.hierarchical_attention import read_tree, sections
from quire.programs.library.attention.windowed_attention import windowed_steps
from quire.programs.sdk import Context, Sees, steps

pytestmark = pytest.mark.asyncio(loop_scope="module")

Reference = Callable[[str], LlamaForCausalLM]
LONG_PROMPT = (PROMPT * 4)[:70]


def held_pages(node: Node) -> int:
    return sum(engine.pool.num_held for engine in node.statistics().controller.engines)


def sink_window(window: int, num_sinks: int) -> Sees:
    return lambda query, key: key < num_sinks or query - key < window


async def windowed(
    node: Node, name: str, prompt: list[int], num: int, window: int, num_sinks: int
) -> tuple[list[int], int]:
    """Tokens, and the most pages that were held behind a step."""

    async def program(api: Api) -> tuple[list[int], int]:
        most = 0
        async with Context(model_of(api, name)) as ctx:
            async for dist in windowed_steps(ctx, prompt, num, window=window, num_sinks=num_sinks):
                most = max(most, ctx.num_pages)
                ctx.fill([dist.max_index()])
            return list(ctx.tokens[len(prompt) :]), most

    tokens, most = await run(node, program)
    return tokens, most


@pytest.mark.parametrize("name", ["tiny", "wide"])
@pytest.mark.parametrize(("window", "num_sinks"), [(8, 0), (9, 4), (2, 1), (33, 3)])
async def test_windows_and_sinks_are_masked_forwards(
    tiny: Node, reference: Reference, name: str, window: int, num_sinks: int
) -> None:
    expected = greedy(reference("llama"), LONG_PROMPT, 24, sink_window(window, num_sinks))
    tokens, _ = await windowed(tiny, name, LONG_PROMPT, 24, window, num_sinks)
    assert tokens == expected
    assert tokens != greedy(reference("llama"), LONG_PROMPT, 24)


@pytest.mark.parametrize("name", ["tiny", "wide"])
async def test_a_window_of_the_whole_context_changes_nothing(
    tiny: Node, reference: Reference, name: str
) -> None:
    tokens, _ = await windowed(tiny, name, PROMPT, 24, 500, 0)
    assert tokens == greedy(reference("llama"), PROMPT, 24)


async def test_pages_outside_the_window_are_freed(tiny: Node) -> None:
    before = held_pages(tiny)
    seen: list[int] = []

    async def program(api: Api) -> None:
        async with Context(model_of(api, "tiny")) as ctx:
            async for dist in windowed_steps(ctx, LONG_PROMPT, 60, window=8, num_sinks=4):
                ctx.fill([dist.token_ids[1] if dist.max_index() == EOS else dist.max_index()])
                seen.append(held_pages(tiny) - before)
            assert len(ctx) == 130

    await run(tiny, program)
    # one page of sinks, the window on two or three pages, and the step's own page under way
    assert max(seen[1:]) <= 1 + 3 + 1 < -(-130 // 4)


async def test_bad_windows_are_refused(tiny: Node) -> None:
    with pytest.raises(ProgramFailed, match="2 or more tokens"):
        await windowed(tiny, "tiny", PROMPT, 4, 1, 0)
    with pytest.raises(ProgramFailed, match="-1 sinks"):
        await windowed(tiny, "tiny", PROMPT, 4, 4, -1)


TREE = "a fox\n# the dog\nlazy\n## the age\nwhat is\n## over\nthe fox\n# brown\nquick jumps\n"


async def test_sections_know_their_ancestors() -> None:
    found = sections(TREE)
    assert [part.text.splitlines()[0] for part in found] == [
        "a fox", "# the dog", "## the age", "## over", "# brown",
    ]  # fmt: skip
    assert [set(part.above) for part in found] == [{0}, {0, 1}, {0, 1, 2}, {0, 1, 3}, {0, 4}]
    assert "".join(part.text for part in found) == TREE
    assert [set(part.above) for part in sections("# only")] == [{0}, {0, 1}]


@pytest.mark.parametrize("text", [TREE, "one section only"])
async def test_a_tree_is_one_masked_forward(tiny: Node, reference: Reference, text: str) -> None:
    async def program(api: Api) -> tuple[list[int], list[int], list[int], int]:
        async with Context(model_of(api, "tiny")) as ctx:
            parts = sections(text)
            owner: list[int] = []
            for index, part in enumerate(parts):
                owner += [index] * len(api.tokenize(part.text))
            num_pairs = await read_tree(ctx, parts, "what is the age")
            prompt = list(ctx.tokens)
            async for dist in steps(ctx, 16):
                ctx.fill([dist.max_index()])
            return prompt, owner, list(ctx.tokens[len(prompt) :]), num_pairs

    prompt, owner, tokens, num_pairs = await run(tiny, program)
    above = [part.above for part in sections(text)]

    def sees(query: int, key: int) -> bool:
        return query >= len(owner) or owner[key] in above[owner[query]]

    assert tokens == greedy(reference("llama"), prompt, 16, sees)
    num = len(owner)
    assert num_pairs == sum(
        query == key or sees(query, key) for query in range(num) for key in range(query + 1)
    )
    if text == TREE:
        plain, tree = (logits(reference("llama"), prompt, one) for one in (None, sees))
        assert (plain[-1] - tree[-1]).abs().max() > 0.05
    else:
        assert num_pairs == num * (num + 1) // 2


async def test_the_last_token_cannot_be_evicted(tiny: Node) -> None:
    async def program(api: Api) -> None:
        async with Context(model_of(api, "tiny")) as ctx:
            await ctx.fill(PROMPT).next_dist()
            with pytest.raises(InvalidArgument, match="the last token cannot be"):
                ctx.evict(0, len(ctx))

    await run(tiny, program)
