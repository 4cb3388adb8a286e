"""A program on several queues loses its engine at every point, and ends as if it had not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from replay_node import lost_after, num_turns

from quire.core.decoding import StopSpec
from quire.programs.api import Api
from quire.programs.inferlet import Main
from quire.programs.sdk import Context
from quire.programs.services.store import Store, T
from quire.programs.services.store_table import StoreTable


async def everywhere(main: Main) -> None:
    """Lost once in every turn, and in every few turns a second time, while it catches up."""
    expected, last = await num_turns(main)
    once: list[tuple[int, ...]] = [(num,) for num in range(last)]
    twice = [(num, 1 + num % 17) for num in range(0, last, 5)]
    total = 0
    for nums in (*once, *twice):
        result, num_again = await lost_after(main, *nums)
        assert result == expected, f"lost after {nums} turns"
        total += num_again
    assert total, "it has begun again"


async def forks(api: Api) -> list[Any]:
    """Shared pages, copies of pages that are being filled, joins and drops, over and over."""
    context = Context(api).fill([5, 6, 7, 8, 9, 10])
    said: list[Any] = []
    await context.prefill()
    context.evict(1, 2)  # now nobody but the program can compute its pages anew
    for number in range(2):
        await context.prefill()
        children = [context.fork().fill([20 + index]) for index in range(3)]
        said += await asyncio.gather(
            *[child.generate_until(max_tokens=2 + index) for index, child in enumerate(children)]
        )
        if number % 2:
            context.join(*children[1:])
            children[0].drop()
        else:
            context.drop()
            context, *others = children
            for other in others:
                other.drop()
            context.truncate(len(context) - 2)
        said.append((await context.next_dist()).token_ids)
    return said


async def test_forks_find_their_pages_filled_again() -> None:
    await everywhere(forks)


async def cuts_off(api: Api) -> list[Any]:
    """Goes on with what a generation had told when it was cut off, on another queue."""
    context = Context(api).fill([5, 6, 7])
    await context.prefill()
    context.evict(1, 2)
    parts = []
    async with context.generate(max_tokens=300, ignore_eos=True) as generation:
        async for part in generation:
            parts.append(part)
            if len(parts) == 6:
                break
    context.truncate(8)
    async with context.fork() as fork:
        told = (await fork.next_dist()).token_ids
    return [told, (await context.next_dist()).token_ids]


async def test_what_a_cancelled_decode_had_told_is_there_again() -> None:
    await everywhere(cuts_off)


async def hands_over(api: Api) -> list[Any]:
    """A queue waits for another one's answers, and sampling, without the program's awaiting any."""
    first, second = api.create_queue(), api.create_queue(priority=1)
    pages, embeds = api.alloc_kvpage(first, 3), api.alloc_emb(first, 2)
    api.embed_txt(first, [5, 6], [0, 1], embeds)
    api.forward(first, [], embeds, pages[0], embeds)
    behind = second.after(api.synchronize(first))
    api.copy_kvpage(behind, pages[0], pages[1], num_slots=2)
    api.embed_txt(first, [7], [2], embeds[0])
    api.forward(first, pages[0], embeds[0], pages[0], embeds[0])
    sampled = api.sample(first, embeds[0])
    api.copy_kvpage(second.after(sampled), pages[0], pages[2], num_slots=3)
    await api.synchronize(second)
    told = []
    for page, position in ((pages[1], 2), (pages[2], 3)):
        (embed,) = api.alloc_emb(second, 1)
        api.embed_txt(second, [9], [position], embed)
        api.forward(second, page, embed, page, embed)
        told.append((await api.get_next_dist(second, embed)).token_ids)
    return [await sampled, *told]


async def test_what_waits_for_an_answer_that_is_not_asked_for_again_waits_all_the_same() -> None:
    await everywhere(hands_over)


async def finds_prefixes(api: Api) -> list[Any]:
    """Maps pages that the lost engine's index had, of two texts, and goes on behind each."""
    texts = [[number, *range(5, 17)] for number in (2, 3)]
    for text in texts:
        await api.decode([], text, api.alloc_kvpage(4), stop=StopSpec(max_tokens=0), position=0)
    said: list[Any] = []
    for text in texts:
        pages, num_tokens = await api.import_prefix(text)
        own = api.alloc_kvpage(5)
        rest = text[num_tokens:]
        generated = await api.decode(
            pages, rest, own, stop=StopSpec(max_tokens=4), position=num_tokens
        )
        said.append(list(generated.token_ids))
    return said


async def test_pages_of_a_prefix_that_was_found_are_computed_again() -> None:
    await everywhere(finds_prefixes)


async def tidies(api: Api) -> list[Any]:
    """Asks and reads the clock when it cleans up, as it would after any failure."""
    said: list[Any] = []
    for number in range(2):
        context = Context(api).fill([5, 6, 7 + number])
        try:
            await context.prefill()
            context.evict(1, 2)
            said.append(await context.generate_until(max_tokens=4, ignore_eos=True))
            said.append(await api.store_get("tidy"))
        finally:
            is_late = api.now() > 0
            await api.store_put("tidy", f"{number} {is_late}")
            context.drop()
    return said


async def test_what_an_incarnation_asks_when_it_is_over_is_not_in_the_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store answers in the next turn: with its thread, how many turns there are, and so how
    often the program is run, would depend on how busy the machine is."""
    tables: dict[Store, StoreTable] = {}

    async def run(self: Store, job: Callable[[StoreTable, float], T]) -> T:
        await asyncio.sleep(0)
        if self not in tables:
            tables[self] = StoreTable(None)
        return job(tables[self], self._now_s())

    monkeypatch.setattr(Store, "run", run)
    await everywhere(tidies)
    for table in tables.values():
        table.close()
