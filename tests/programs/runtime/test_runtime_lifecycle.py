"""Programs over the real controller, on one loop and on a thread: nothing is left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from programs_node import level, node_of
from programs_port import ScriptedPort

from quire.core.errors import NeverWithinQuota, ProgramCancelled, ProgramFailed, UnknownHandle
from quire.core.quotas import Quotas
from quire.programs import inferlet
from quire.programs.api import Api
from quire.programs.runtime import NativeConfig, NativeRuntime, ProgramHost, ProgramState
from quire.programs.sdk import Context


@inferlet("busy")
async def busy(api: Api) -> None:
    """Everything at once: forks that generate, low-level commands, exports, messages."""
    ctx = Context(api).fill("A text that fills some pages, and then some more.")
    await ctx.export("busy", ttl_s=None)
    forks = [ctx.fork().fill(str(number)) for number in range(2)]
    kv, emb = api.alloc_kvpage(4), api.alloc_emb(3)
    api.embed_txt([65, 66, 67], [0, 1, 2], emb)
    api.forward([], emb, kv, emb[-1:])
    async with asyncio.TaskGroup() as group:
        for fork in forks:
            group.create_task(endless(fork))
        while True:
            dist = await api.get_next_dist(emb[-1:])
            await api.send(str(dist.max_index()))


async def endless(ctx: Context) -> None:
    while True:
        await ctx.generate(max_tokens=7, ignore_eos=True)
        ctx.truncate(40)


@pytest.mark.parametrize("num_turns", [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89])
async def test_cancelled_at_any_turn(num_turns: int) -> None:
    async with node_of(4) as node:
        before = await level(node)
        host = ProgramHost(asyncio.get_running_loop())
        running = host.launch(busy, [], node.connect())
        for _ in range(num_turns):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(ProgramCancelled):
            await running.result()
        await host.shutdown()
        assert await level(node) == before


async def test_cancelled_on_its_own_thread() -> None:
    async with node_of(4) as node:
        before = await level(node)
        runtime = NativeRuntime(NativeConfig(grace_s=1.0))
        runtime.start()
        running = runtime.launch(busy, [], node.connect())
        for _ in range(3):
            await running.receive()
        running.cancel()
        with pytest.raises(ProgramCancelled):
            await running.result()
        await asyncio.to_thread(runtime.close)
        assert await level(node) == before
        assert runtime.programs() == []


async def fail_over(api: Api) -> None:
    Context(api).fill("abc").generate(max_tokens=50)
    api.alloc_kvpage(3)
    raise KeyError("oops")


async def free_twice(api: Api) -> None:
    pages = api.alloc_kvpage(1)
    api.dealloc_kvpage(pages)
    api.dealloc_kvpage(pages)


async def over_quota(api: Api) -> None:
    api.alloc_kvpage(9)
    await api.synchronize()


@pytest.mark.parametrize(
    ("main", "code"),
    [(fail_over, None), (free_twice, UnknownHandle.code), (over_quota, NeverWithinQuota.code)],
)
async def test_failing_programs_leave_nothing_and_disturb_nobody(main: Any, code: str) -> None:
    async with node_of(4) as node:
        before = await level(node)
        host = ProgramHost(asyncio.get_running_loop())
        bystander = host.launch(busy, [], node.connect())
        failing = host.launch(
            inferlet("failing")(main), [], node.connect(quotas=Quotas(max_pages=8))
        )
        with pytest.raises(ProgramFailed) as caught:
            await failing.result()
        assert caught.value.details.get("code") == code
        await bystander.receive()
        assert bystander.state is ProgramState.RUNNING
        bystander.cancel()
        await host.shutdown()
        assert await level(node) == before


async def test_a_handle_of_another_program_is_refused_by_control_too() -> None:
    """A program that forges an id gets past no check: names are looked up among its own."""
    from quire.core.commands import DeallocPages
    from quire.programs.api import connect_api
    from quire.programs.api.issuer import nothing

    async with node_of(4) as node:
        owner, thief = connect_api(node.connect()), connect_api(node.connect())
        owner.available_models()
        for _ in range(5):
            owner.alloc_kvpage(1)
        page = owner.alloc_kvpage(1)[0]
        await owner.synchronize()
        queue = thief.create_queue()
        forged = DeallocPages(id=thief.issuer.command_id(), pages=[page.page_id])
        with pytest.raises(UnknownHandle, match=f"page {page.id}"):
            await thief.issuer.submit(queue, forged, nothing)
        assert await owner.dealloc_kvpage(page) is None
        owner.close()
        thief.close()


@inferlet("waiting")
async def waiting(api: Api) -> None:
    """Waits for a message that never comes."""
    await api.receive()


async def test_two_calls_of_one_program_are_both_known() -> None:
    """Calls of a session run under the session's id."""
    host = ProgramHost(asyncio.get_running_loop())
    first, second = (
        host.launch(waiting, [], lambda sink, loop: ScriptedPort(sink, loop, program=1))
        for _ in range(2)
    )
    assert host.programs() == [first, second]
    await host.shutdown()
    assert (first.state, second.state) == (ProgramState.CANCELLED, ProgramState.CANCELLED)
    assert host.programs() == []
