"""A restartable program goes from node to node, and ends as if it had stayed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from fake_node import TENANT, StartNode
from sandbox_node import needs_sandbox, program, sandbox_config, sandbox_node
from web_stub import WebStub

from quire.core.errors import (
    AlreadyExists,
    EngineLost,
    InvalidArgument,
    ProgramCancelled,
    UnknownHandle,
)
from quire.node import Node, ProgramHandle
from quire.node.programs.restarting.handing_over import packed, unpacked
from quire.programs.library import LIBRARY
from quire.programs.sdk import Context, inferlet, temperature

NUM_TURNS = 4


@inferlet("interview", restartable=True, topics=["topic"])
async def interview(api, kind="plain"):  # type: ignore[no-untyped-def]
    """Answers each message on the same pages."""
    context = Context(api).fill("an interview: ")
    answers = []
    for turn in range(NUM_TURNS):
        message = await api.receive()
        if kind == "asks":
            await api.broadcast("topic", "heard")
        if kind == "exports":
            await context.prefill()
            await context.export(f"turn {turn}")
        context.fill(message)
        answers.append(await context.generate_until(max_tokens=5, sampler=temperature(1.0)))
        await api.send(answers[-1])
    return answers


@inferlet("stays")
async def stays(api):  # type: ignore[no-untyped-def]
    await api.receive()


@pytest.fixture(autouse=True)
def shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIBRARY._modules, "interview", __name__)


async def answered(program: ProgramHandle, num_messages: int) -> list[str]:
    """The first messages of ``program``."""
    reader = program.attach()
    try:
        return [(await anext(reader)).text for _ in range(num_messages)]
    finally:
        reader.close()


async def moved(program: ProgramHandle, there: Node) -> ProgramHandle:
    handed = unpacked(packed(await program.life.hand_over()))
    taken = there.for_routers.take({handed.id: LIBRARY[handed.name]}, handed, TENANT)
    program.life.leave()
    return taken


@pytest.mark.parametrize("num_before", [0, 1, 3])
async def test_it_goes_on_where_it_was(start_node: StartNode, num_before: int) -> None:
    here, there = await start_node(), await start_node()
    undisturbed = here.launch(interview, tenant=TENANT, seed=5)
    program = here.launch(interview, tenant=TENANT, seed=5)
    for one in (undisturbed, program):
        for turn in range(num_before):
            await one.send(f"question {turn}")
    said = await answered(program, num_before)
    reader = program.attach(num_before)
    taken = await moved(program, there)
    assert taken.id == program.id
    assert [message async for message in reader] == [], "its readers are let go"
    assert program.has_left
    with pytest.raises(EngineLost, match="has moved"):
        await program.result()
    with pytest.raises(UnknownHandle):
        here.program(program.id, TENANT)
    for one in (undisturbed, taken):
        for turn in range(num_before, NUM_TURNS):
            await one.send(f"question {turn}")
    result = await taken.result()
    assert result[:num_before] == said
    assert await answered(taken, NUM_TURNS) == result, "all of them, under their numbers"
    assert len(await undisturbed.result()) == NUM_TURNS
    assert there.program(taken.id, TENANT).record().state == "finished"
    assert [one.id for one in here.programs(TENANT)] == [undisturbed.id]


GUEST = program(
    """
    @inferlet("guest", restartable=True)
    async def guest(api):
        context = Context(api).fill("an interview: ")
        answers = []
        for turn in range(4):
            context.fill(await api.receive())
            answers.append(await context.generate_until(max_tokens=5))
            await api.send(answers[-1])
        return answers
    """
)


@pytest.mark.e2e
@needs_sandbox
@pytest.mark.timeout(300)
async def test_a_guest_goes_on_where_it_was(sandbox_cache: Path) -> None:
    async with AsyncExitStack() as stack:
        here, there = (sandbox_node(sandbox_config(sandbox_cache)) for _ in range(2))
        for node in (here, there):
            await node.start()
            stack.push_async_callback(node.stop)
        await guest_moves(here, there)


FETCHES = program(
    """
    from quire.core.errors import RequestInterrupted

    @inferlet("fetches", restartable=True, hosts=["127.0.0.1"])
    async def fetches(api, url):
        found = [(await api.http_get(url + "/json")).status]
        found.append((await api.http_post(url + "/json", "once")).status)
        reading = asyncio.ensure_future(api.http_get(url + "/held"))
        writing = asyncio.ensure_future(api.http_post(url + "/held", "perhaps"))
        keyed = asyncio.ensure_future(
            api.http_post(url + "/held", "again", headers={"Idempotency-Key": "k"})
        )
        await asyncio.sleep(0)
        await api.send("under way")
        found.append((await reading).status)
        try:
            await writing
        except RequestInterrupted as exc:
            found.append([exc.code, exc.retriable])
        found.append((await keyed).status)
        return found
    """
)


@pytest.mark.e2e
@needs_sandbox
@pytest.mark.timeout(300)
async def test_what_other_hosts_have_answered_a_guest_goes_with_it(sandbox_cache: Path) -> None:
    """What has no answer is asked again, unless that could be done twice."""
    web = WebStub()
    config = sandbox_config(sandbox_cache, allow_private_hosts=True)
    async with AsyncExitStack() as stack:
        stack.callback(web.close)
        here, there = (sandbox_node(config) for _ in range(2))
        for node in (here, there):
            await node.start()
            stack.push_async_callback(node.stop)
        guest = here.launch(await here.inspect(FETCHES), (web.url(""),), tenant=TENANT)
        await answered(guest, 1)
        await asyncio.to_thread(web.wait_for, "/held", 3)
        handed = unpacked(packed(await guest.life.hand_over()))
        taken = there.for_routers.take(
            {handed.id: await there.inspect(handed.code)}, handed, TENANT
        )
        guest.life.leave()
        await asyncio.to_thread(web.wait_for, "/held", 5)
        web.release()
        assert await taken.result() == [200, 200, 200, ["request_interrupted", True], 200]
        assert await answered(taken, 1) == ["under way"]
    assert sorted(web.paths) == ["/held"] * 5 + ["/json"] * 2
    assert sorted(web.bodies) == [b"", b"", b"", b"again", b"again", b"once", b"perhaps"]


async def guest_moves(here: Node, there: Node) -> None:
    guest = await here.inspect(GUEST)
    undisturbed, moves = (here.launch(guest, tenant=TENANT) for _ in range(2))
    for one in (undisturbed, moves):
        await one.send("question 0")
        await answered(one, 1)
    handed = unpacked(packed(await moves.life.hand_over()))
    taken = there.for_routers.take({handed.id: await there.inspect(handed.code)}, handed, TENANT)
    moves.life.leave()
    for one in (undisturbed, taken):
        for turn in range(1, NUM_TURNS):
            await one.send(f"question {turn}")
    assert await taken.result() == await undisturbed.result()
    assert await answered(taken, NUM_TURNS) == await taken.result()


async def test_nobody_takes_it(start_node: StartNode) -> None:
    here = await start_node()
    program = here.launch(interview, tenant=TENANT, seed=5)
    await program.send("question 0")
    (said,) = await answered(program, 1)
    await program.life.hand_over()
    with pytest.raises(EngineLost, match="send it again"):
        await program.send("question 1")
    with pytest.raises(InvalidArgument, match="it ends here"):
        await program.life.hand_over()
    program.life.stay()
    for turn in range(1, NUM_TURNS):
        await program.send(f"question {turn}")
    assert (await program.result())[0] == said


async def test_it_is_ended_on_its_way(start_node: StartNode) -> None:
    here = await start_node()
    program = here.launch(interview, tenant=TENANT)
    await program.life.hand_over()
    program.terminate()
    program.life.stay()
    with pytest.raises(ProgramCancelled):
        await program.result()


async def test_it_goes_from_node_to_node(start_node: StartNode) -> None:
    nodes = [await start_node() for _ in range(3)]
    program = nodes[0].launch(interview, tenant=TENANT)
    for turn in range(NUM_TURNS):
        await program.send(f"question {turn}")
        await answered(program, turn + 1)
        if turn < NUM_TURNS - 1:
            program = await moved(program, nodes[(turn + 1) % 3])
    result = await program.result()
    assert await answered(program, NUM_TURNS) == result


@pytest.mark.parametrize(
    ("kind", "said"), [("asks", "a topic of this node"), ("exports", "names are a node's own")]
)
async def test_what_others_do_not_have_keeps_it(
    start_node: StartNode, kind: str, said: str
) -> None:
    here = await start_node()
    program = here.launch(interview, (kind,), tenant=TENANT)
    await program.send("question")
    await answered(program, 1)
    with pytest.raises(InvalidArgument, match=said):
        await program.life.hand_over()
    await program.send("it goes on")
    await answered(program, 2)
    program.terminate()


async def test_others_stay_and_say_why(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = await start_node(), await start_node()
    with pytest.raises(InvalidArgument, match="restartable=True"):
        await here.launch(stays, tenant=TENANT).life.hand_over()
    parent = here.launch(stays, tenant=TENANT)
    child = here.launch(interview, tenant=TENANT, parent=parent.id)
    with pytest.raises(InvalidArgument, match="another program has launched it"):
        await child.life.hand_over()
    program = here.launch(interview, tenant=TENANT)
    monkeypatch.delitem(LIBRARY._modules, "interview")
    with pytest.raises(InvalidArgument, match="this node's process alone"):
        await program.life.hand_over()
    program.terminate()
    with pytest.raises(InvalidArgument, match="it ends here"):
        await program.life.hand_over()
    other = here.launch(interview, tenant=TENANT)
    monkeypatch.setitem(LIBRARY._modules, "interview", __name__)
    handed = await other.life.hand_over()
    there.for_routers.take({handed.id: interview}, handed, TENANT)
    with pytest.raises(AlreadyExists):
        there.for_routers.take({handed.id: interview}, handed, TENANT)
    with pytest.raises(InvalidArgument, match="of another node"):
        unpacked(b"\x91\xc4\x01x")
