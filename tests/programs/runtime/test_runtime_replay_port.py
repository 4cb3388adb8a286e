"""What a program does again on a new engine, and what it has ended there meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from programs_node import node_of
from replay_node import recorded, turns

from quire.core.calls import AskService
from quire.core.errors import ProgramCancelled, UnknownHandle
from quire.core.ids import ProgramId
from quire.core.interfaces import ServedModel
from quire.core.quotas import Quotas
from quire.programs.api import Api
from quire.programs.inferlet import Main
from quire.programs.runtime.replay_log import ReplayLog
from quire.programs.runtime.replay_port import ReplayPort
from quire.programs.sdk import Context
from quire.simulation import VirtualClock


class Waits:
    """Where a program waits until it is told to go on."""

    def __init__(self) -> None:
        self.is_there, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def here(self) -> None:
        self.is_there.set()
        await self.may_go_on.wait()


async def resumed(main: Any) -> Any:
    """The result of ``main(api, waits)`` whose engine is lost while it waits. The new engine takes
    its time."""
    log, before, behind = ReplayLog(), Waits(), Waits()

    def until(waits: Waits) -> Main:
        async def program(api: Api) -> Any:
            return await main(api, waits)

        return program

    async with node_of() as node:
        first = node.launch(until(before), connect=recorded(node, log))
        await before.is_there.wait()
        first.cancel()
        with pytest.raises(ProgramCancelled):
            await first.result()
    async with node_of() as node:
        behind.may_go_on.set()
        node.hold = True
        again = node.launch(until(behind), connect=recorded(node, log))
        await turns(60)
        node.hold = False
        return await again.result()


async def undisturbed(main: Any) -> Any:
    waits = Waits()
    waits.may_go_on.set()

    async def program(api: Api) -> Any:
        return await main(api, waits)

    async with node_of() as node:
        return await node.run(program)


async def fails_and_resets(api: Api, waits: Waits) -> list[list[int]]:
    """Resets its queue behind tokens that were computed one after another, and that it goes on
    with, on that queue and on another one."""
    queue, other = api.create_queue(), api.create_queue()
    pages, embeds = api.alloc_kvpage(queue, 2), api.alloc_emb(queue, 5)
    dists = []

    async def step(position: int) -> None:
        embed = embeds[position]
        api.embed_txt(queue, 5 + position, position, embed)
        api.forward(queue, pages[:1], embed, pages[:1], embed)
        dists.append(await api.get_next_dist(queue, embed))

    for position in range(3):
        await step(position)
    with pytest.raises(UnknownHandle):
        await api.import_kvpage(queue, "nowhere")
    api.reset_queue(queue)
    await step(3)
    seen = api.alloc_emb(other, 1)
    api.embed_txt(other, 9, 4, seen)
    api.forward(other, pages[:1], seen, pages[1:], seen)
    dists.append(await api.get_next_dist(other, seen[0]))
    await waits.here()
    dists += [await api.get_next_dist(queue, embed) for embed in embeds[:4]]
    dists.append(await api.get_next_dist(other, seen[0]))
    return [dist.token_ids for dist in dists]


async def test_a_reset_cancels_nothing_that_had_ended_before_it() -> None:
    expected = await undisturbed(fails_and_resets)
    assert expected[:5] == expected[5:]
    assert await resumed(fails_and_resets) == expected


async def closes_behind_a_reset(api: Api, waits: Waits) -> list[int]:
    """The queue that it resets, twice, is closed at once; its pages go with it."""
    kept, queue = api.create_queue(), api.create_queue(priority=1)
    pages, embeds = api.alloc_kvpage(queue, 1), api.alloc_emb(queue, 3)
    tokens: list[int] = []
    for position, embed in enumerate(embeds):
        api.embed_txt(queue, 5 + position, position, embed)
        api.forward(queue, pages, embed, pages, embed)
        tokens.append((await api.get_next_dist(queue, embed)).max_index())
    for _ in range(2):
        with pytest.raises(UnknownHandle):
            await api.import_kvpage(queue, "nowhere")
        api.reset_queue(queue)
        api.set_queue_priority(queue, 0)
        await api.synchronize(queue)
    api.close_queue(queue)
    await waits.here()
    await api.synchronize(kept)
    return tokens


async def test_what_follows_a_reset_waits_with_it() -> None:
    assert await resumed(closes_behind_a_reset) == await undisturbed(closes_behind_a_reset)


async def exports_and_imports(api: Api, waits: Waits) -> list[Any]:
    """Before the loss and behind it, from its own export."""
    ctx = Context(api).fill("The quick brown fox")
    await ctx.export("fox")
    before = await Context.from_export(api, "fox")
    await waits.here()
    behind = await Context.from_export(api, "fox")
    texts = [before.text, behind.text]
    said = [await one.generate(max_tokens=5, ignore_eos=True) for one in (before, behind, ctx)]
    return [*texts, *(one.token_ids for one in said)]


async def test_exports_keep_their_text_through_a_loss() -> None:
    expected = await undisturbed(exports_and_imports)
    assert expected[:2] == ["The quick brown fox"] * 2
    assert await resumed(exports_and_imports) == expected


def in_passing(end: str, num: int) -> Any:
    """A program that resets or closes a queue ``num`` turns behind a command there: that may have
    ended by then, or end without being told yet, or be cancelled."""

    async def program(api: Api, waits: Waits) -> Any:
        kept, queue = api.create_queue(), api.create_queue()
        page, embeds = api.alloc_kvpage(kept, 1), api.alloc_emb(kept, 2)
        await api.synchronize(kept)
        for position in range(3):
            api.embed_txt(queue, [5], [position], embeds[0])
            ran = api.forward(queue, page, embeds[0], page, embeds[0])
        await turns(num)
        getattr(api, end)(queue)
        try:
            await ran
        except ProgramCancelled:
            return None
        await waits.here()
        return (await api.get_next_dist(kept, embeds[0])).token_ids

    return program


@pytest.mark.parametrize("end", ["reset_queue", "close_queue"])
async def test_what_had_ended_before_it_was_told_is_not_cancelled_either(end: str) -> None:
    told = 0
    for num in range(12):
        main = in_passing(end, num)
        expected = await undisturbed(main)
        if expected is not None:
            told += 1
            assert await resumed(main) == expected, num
    assert told > 1


async def test_a_service_is_not_asked_again_for_what_it_has_answered() -> None:
    log, asked = ReplayLog(), []

    class Nobody:
        """Hears of no command: none is issued."""

    class Node:
        program = ProgramId(1)
        quotas = Quotas()
        seed = 0
        clock = VirtualClock()
        first_number = 1

        def models(self) -> list[ServedModel]:
            return []

        async def ask(self, question: AskService, undo: str | None = None) -> Any:
            asked.append(question.name)
            return len(asked)

    async def incarnation(*names: str) -> list[Any]:
        port = ReplayPort(log, Nobody(), asyncio.get_running_loop())  # type: ignore[arg-type]
        port.attach(Node())  # type: ignore[arg-type]
        return [
            await port.ask(AskService(n, name, {"key": name})) for n, name in enumerate(names, 1)
        ]

    assert await incarnation("store_put", "store_get") == [1, 2]
    assert await incarnation("store_put", "store_get", "store_list") == [1, 2, 3]
    assert asked == ["store_put", "store_get", "store_list"]


async def forks_and_hears_late(api: Api, waits: Waits) -> list[list[int]]:
    """What it hears between the fork and the next generations comes late in the first run, when
    the fork's pages have been copied, and is there when it runs again."""
    context = Context(api).fill([5, 6, 7])
    await context.generate_until(max_tokens=4, ignore_eos=True)
    fork = context.fork()
    if not waits.may_go_on.is_set():
        await turns(60)
    for one, token in ((context, 8), (fork, 9)):
        one.fill([token])
    for one in (context, fork):
        await one.generate_until(max_tokens=9, ignore_eos=True)
    await waits.here()
    for one in (context, fork):
        await one.generate_until(max_tokens=3, ignore_eos=True)
    return [list(one.tokens) for one in (context, fork)]


async def test_what_it_waits_for_may_have_ended_in_one_run_alone() -> None:
    assert await resumed(forks_and_hears_late) == await undisturbed(forks_and_hears_late)
