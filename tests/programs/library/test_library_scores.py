"""Eviction by attention: pages and tokens of a simulation over transformers' attentions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from tiny_models import EOS, PROMPT, greedy, model_of, run
from transformers import LlamaForCausalLM

from quire.core.errors import ProgramFailed
from quire.node import Node
from quire.programs.api import Api
from quire.programs.library.attention.heavy_hitters import heavy_hitter_steps
from quire.programs.library.attention.snapkv import compress
from quire.programs.sdk import Context

pytestmark = pytest.mark.asyncio(loop_scope="module")

Reference = Callable[[str], LlamaForCausalLM]
LONG_PROMPT = (PROMPT * 3)[:46]
SIZE = 4


class Simulation:
    """A text, pass after pass; ``gone[page]`` is the first query that no longer sees the page."""

    def __init__(self, model: LlamaForCausalLM, prompt: Sequence[int]) -> None:
        self.model, self.tokens, self.gone = model, list(prompt), dict[int, int]()

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of the last token, and attention [query, key] averaged over heads and layers."""
        num = len(self.tokens)
        visible = torch.ones(num, num, dtype=torch.bool).tril()
        for page, query in self.gone.items():
            visible[query:, page * SIZE : (page + 1) * SIZE] = False
        mask = torch.zeros(num, num).masked_fill(~visible, torch.finfo(torch.float32).min)
        with torch.inference_mode():
            output = self.model(
                torch.tensor([self.tokens]),
                attention_mask=mask[None, None],
                use_cache=False,
                output_attentions=True,
            )
        attention = torch.stack(output.attentions).mean(dim=(0, 1, 2))
        return output.logits[0, -1], attention

    def masses(self, attention: torch.Tensor, queries: range) -> dict[int, float]:
        shares = attention[queries.start : queries.stop].sum(0)
        return {
            page: float(shares[page * SIZE : (page + 1) * SIZE].sum())
            for page in range(-(-len(self.tokens) // SIZE))
        }

    def evict(self, page: int) -> None:
        self.gone[page] = len(self.tokens)

    @property
    def held(self) -> list[int]:
        return [page for page in range(-(-len(self.tokens) // SIZE)) if page not in self.gone]


def simulate_heavy_hitters(
    model: LlamaForCausalLM, budget: int, num_recent: int, num_tokens: int
) -> tuple[list[int], dict[int, int]]:
    text = Simulation(model, LONG_PROMPT)
    sums: dict[int, float] = {}
    first = 0
    while len(text.tokens) < len(LONG_PROMPT) + num_tokens and EOS not in text.tokens[46:]:
        logits, attention = text.run()
        for page, mass in text.masses(attention, range(first, len(text.tokens))).items():
            sums[page] = sums.get(page, 0.0) + mass
        first = len(text.tokens)
        while len(text.held) > budget:
            old = [page for page in text.held if page <= (first - 1) // SIZE - num_recent]
            text.evict(min(old, key=lambda page: sums[page]))
        text.tokens.append(int(logits.argmax()))
    return text.tokens[len(LONG_PROMPT) :], text.gone


async def hit(
    node: Node, budget: int, num_recent: int, num_tokens: int
) -> tuple[list[int], list[int]]:
    """Tokens, and the pages held behind each step."""

    async def program(api: Api) -> tuple[list[int], list[int]]:
        held = []
        async with Context(model_of(api, "tiny")) as ctx:
            async for dist in heavy_hitter_steps(
                ctx, LONG_PROMPT, num_tokens, budget=budget, num_recent=num_recent
            ):
                held.append(ctx.num_pages)
                ctx.fill([dist.max_index()])
            return list(ctx.tokens[len(LONG_PROMPT) :]), held

    tokens, held = await run(node, program)
    return tokens, held


@pytest.mark.parametrize(("budget", "num_recent"), [(6, 1), (5, 3), (8, 2)])
async def test_heavy_hitters_are_kept_as_in_the_simulation(
    tiny: Node, reference: Reference, budget: int, num_recent: int
) -> None:
    expected, gone = simulate_heavy_hitters(reference("llama"), budget, num_recent, 20)
    tokens, held = await hit(tiny, budget, num_recent, 20)
    assert tokens == expected
    assert max(held) <= budget
    assert len(gone) >= 12 - budget
    assert tokens != greedy(reference("llama"), LONG_PROMPT, 20)


async def test_with_room_for_all_pages_nothing_changes(tiny: Node, reference: Reference) -> None:
    tokens, held = await hit(tiny, 99, 1, 20)
    assert tokens == greedy(reference("llama"), LONG_PROMPT, 20)
    assert held[-1] == -(-(46 + 19) // SIZE)


async def test_a_budget_needs_room(tiny: Node) -> None:
    for budget, num_recent in ((3, 3), (3, 0)):
        with pytest.raises(ProgramFailed, match=f"a budget of {budget} pages"):
            await hit(tiny, budget, num_recent, 4)


async def snapped(node: Node, budget: int, window: int) -> tuple[list[int], list[int]]:
    """The pages that were kept, and the tokens."""

    async def program(api: Api) -> tuple[list[int], list[int]]:
        async with Context(model_of(api, "tiny")) as ctx:
            ctx.fill(LONG_PROMPT)
            kept = await compress(ctx, budget=budget, window=window)
            assert ctx.num_pages == len(kept)
            if ctx.tokens[-1] != EOS:
                await ctx.generate(max_tokens=19)
            return kept, list(ctx.tokens[len(LONG_PROMPT) :])

    kept, tokens = await run(node, program)
    return kept, tokens


@pytest.mark.parametrize(("budget", "window"), [(6, 4), (5, 9), (8, 1)])
async def test_snapkv_keeps_what_the_window_looks_at(
    tiny: Node, reference: Reference, budget: int, window: int
) -> None:
    text = Simulation(reference("llama"), LONG_PROMPT)
    logits, attention = text.run()
    masses = text.masses(attention, range(46 - window, 46))
    first = (46 - window) // SIZE
    best = sorted(range(first), key=lambda page: -masses[page])
    for page in best[budget - (12 - first) :]:
        text.evict(page)
    expected_kept = text.held
    while True:
        text.tokens.append(int(logits.argmax()))
        if len(text.tokens) == 46 + 20 or text.tokens[-1] == EOS:
            break
        logits, _ = text.run()
    kept, tokens = await snapped(tiny, budget, window)
    assert kept == expected_kept
    assert tokens == text.tokens[46:]


async def test_snapkv_with_room_for_all_is_greedy(tiny: Node, reference: Reference) -> None:
    kept, tokens = await snapped(tiny, 12, 8)
    assert kept == list(range(12))
    assert tokens == greedy(reference("llama"), LONG_PROMPT, 20)
    with pytest.raises(ProgramFailed, match="has 3 pages, the budget is 2"):
        await snapped(tiny, 2, 8)
