"""A program and its children go on from any part of their records that was sent, and end as they
would have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from fake_node import TENANT, StartNode

from quire.core.errors import InvalidArgument, ProgramCancelled
from quire.core.record_parts import RecordsWanted, ToldPart
from quire.node import Node, ProgramHandle
from quire.node.programs.restarting import told_family
from quire.node.programs.restarting.family_move import family_left_behind, running_family
from quire.node.programs.restarting.handing_over import HandedProgram
from quire.node.programs.restarting.told_family import program_of
from quire.programs.library import LIBRARY
from quire.programs.sdk import Context, inferlet

NUM_TURNS = 3
NAMES = (
    "asker",
    "between",
    "boss",
    "crowd",
    "echo",
    "fixed",
    "lucky",
    "office",
    "patient",
    "scribe",
    "stopper",
    "word",
)


@inferlet("echo", restartable=True)
async def echo(api, name):  # type: ignore[no-untyped-def]
    """Answers each question with the text that the model generates after it."""
    context = Context(api).fill(f"echo {name}: ")
    answers = []
    while (question := await api.receive()) != "thanks":
        context.fill(question)
        answers.append(await context.generate_until(max_tokens=3))
        await api.send(f"{name} on {question}: {answers[-1]}")
    return answers


@inferlet("word", restartable=True)
async def word(api, said):  # type: ignore[no-untyped-def]
    """Says its word three times and ends."""
    for _ in range(3):
        await api.send(said)
    return said


@inferlet("asker", restartable=True)
async def asker(api, second="echo"):  # type: ignore[no-untyped-def]
    """Asks two children, one of which may have children of its own, and a third that ends."""
    said = []
    children = [await api.launch("echo", ["one"]), await api.launch(second, ["two"])]
    short = await api.launch("word", ["short"])
    for turn in range(NUM_TURNS):
        await api.receive()
        for child in children:
            await child.send(f"question {turn}")
        said += [await child.receive() for child in children]
        said.append(await short.receive())
        await api.send(said[-2])
    for child in children:
        await child.send("thanks")
    return [*said, *[await child.join() for child in (*children, short)]]


@inferlet("between", restartable=True)
async def between(api, name):  # type: ignore[no-untyped-def]
    """Passes questions and answers on."""
    child = await api.launch("echo", [name])
    while (question := await api.receive()) != "thanks":
        await child.send(question)
        await api.send(await child.receive())
    await child.send("thanks")
    return await child.join()


@inferlet("office", restartable=True)
async def office(api):  # type: ignore[no-untyped-def]
    """Waits for all of its children at a time, and sends what one of them says to the next."""
    children = [await api.launch("echo", [name]) for name in ("one", "two", "three")]
    carried = []

    async def carry_from(number: int) -> None:
        while True:
            said = await children[number].receive()
            carried.append(said)
            await api.send(said)
            await children[(number + 1) % 3].send(f"letter {len(carried)}")

    rounds = [asyncio.ensure_future(carry_from(number)) for number in (2, 0, 1)]
    await children[0].send("letter 0")
    await api.receive()
    for one in rounds:
        one.cancel()
    return len(carried) > 3


@inferlet("fixed")
async def fixed(api, name):  # type: ignore[no-untyped-def]
    """Cannot be restarted."""
    await api.send(await api.receive())
    return name


@inferlet("boss", restartable=True)
async def boss(api):  # type: ignore[no-untyped-def]
    """Has a child for a while that cannot be restarted."""
    await api.send("begun")
    child = await api.launch("fixed", ["a name"])
    await api.receive()
    await child.send("a word")
    said = [await child.receive(), await child.join()]
    await api.send("joined")
    await api.receive()
    return said


@inferlet("stopper", restartable=True)
async def stopper(api):  # type: ignore[no-untyped-def]
    """Cancels a child, and asks later what has become of it."""
    child = await api.launch("patient", [])
    await child.receive()
    await child.cancel("enough")
    await api.send("cancelled")
    await api.receive()
    try:
        return await child.join()
    except ProgramCancelled as exc:
        return exc.code


@inferlet("patient", restartable=True)
async def patient(api):  # type: ignore[no-untyped-def]
    await api.send("here")
    try:
        await api.receive()
    finally:
        await asyncio.sleep(0.2)


@pytest.fixture(autouse=True)
def shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setitem(LIBRARY._modules, name, __name__)


class Router:
    """Keeps the parts of records that ``node`` sends."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.asked = RecordsWanted("router")
        self.parts: list[bytes] = []
        self.saved: list[list[bytes]] = []
        """The parts to keep after each part that has arrived."""
        self.told: list[bytes] = []
        """All parts that have arrived."""
        self.changed = asyncio.Event()
        self.last: ToldPart | None = None

    async def read(self) -> None:
        told = await self.node.for_routers.told_records(self.asked, TENANT)
        self.asked = RecordsWanted("router", told.feed, told.number)
        for part in told.parts:
            self.last = part
            if part.is_first:
                self.parts = []
            self.changed.set()
            if part.stays is None:
                self.parts.append(part.part)
                self.told.append(part.part)
                self.saved.append(list(self.parts))

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.changed.clear()
            await self.changed.wait()

    async def keep(self) -> None:
        while True:
            await self.read()
            await asyncio.sleep(0)  # a node that stops answers at once


async def keeping(node: Node) -> tuple[Router, asyncio.Task[None]]:
    feed = node._parts.programs.records(TENANT)
    feed._poll_s = feed._interval_s = 0.005
    router = Router(node)
    await router.read()
    return router, asyncio.create_task(router.keep())


async def turn(program: ProgramHandle, number: int) -> str:
    await program.send("go on")
    reader = program.attach(number)
    try:
        return (await anext(reader)).text
    finally:
        reader.close()


def rescued(there: Node, parts: list[bytes]) -> ProgramHandle:
    handed = program_of(parts)
    codes = {one.id: LIBRARY[one.name] for one in handed.family()}
    return there.for_routers.take(codes, handed, TENANT)


@pytest.mark.parametrize("second", ["echo", "between"])
async def test_they_go_on_from_all_that_was_told(start_node: StartNode, second: str) -> None:
    here = await start_node()
    router, reading = await keeping(here)
    program = here.launch(asker, (second,), tenant=TENANT, seed=3)
    said = [await turn(program, number) for number in range(NUM_TURNS)]
    result = await program.result()
    reading.cancel()
    assert len(router.saved) > NUM_TURNS
    assert {len(list(program_of(parts).family())) for parts in router.saved} > {1}
    step = max(1, len(router.saved) // 8)
    for parts in router.saved[::step]:
        there = await start_node()
        found = rescued(there, parts)
        num_given = program_of(parts).received.count("go on")
        for _ in range(NUM_TURNS - num_given):
            await found.send("go on")
        assert [message.text async for message in found.attach()] == said
        assert await found.result() == result
        await there._parts.programs.wait_idle()


async def test_tasks_that_wait_side_by_side_go_on_as_they_did(start_node: StartNode) -> None:
    here, there = await start_node(), await start_node()
    router, reading = await keeping(here)
    program = here.launch(office, tenant=TENANT, seed=3)
    reader = program.attach()
    said = [(await anext(reader)).text for _ in range(7)]
    parts = list(router.parts)  # of about now
    reading.cancel()
    found = rescued(there, parts)
    other = found.attach()
    assert [(await anext(other)).text for _ in range(7)] == said
    program.terminate()
    await found.send("end")
    assert await found.result()


async def quiet(router: Router, is_there: Callable[[HandedProgram], bool]) -> HandedProgram:
    """Wait until ``is_there`` holds for the record that was sent, and return that record."""
    await router.until(lambda: bool(router.parts) and is_there(program_of(router.parts)))
    return program_of(router.parts)


async def test_messages_are_where_their_answers_say(start_node: StartNode) -> None:
    here = await start_node()
    router, reading = await keeping(here)
    program = here.launch(asker, tenant=TENANT, seed=3)
    for number in range(NUM_TURNS):
        await turn(program, number)
    await program.result()
    reading.cancel()
    for parts in router.saved:
        found = program_of(parts)
        for child in found.children:
            sent = [
                one for one in found.calls if one.answered and is_about("child.send", child, one)
            ]
            if child.program is not None:
                assert child.program.received == [dict(one.what[1])["message"] for one in sent]
            heard = [one for one in found.calls if is_about("child.receive", child, one)]
            num_heard = sum(one.answered and one.error is None for one in heard)
            if child.ended is not None and child.name == "word":
                assert num_heard + len(child.ended.messages) == 3
            elif child.program is not None:
                assert child.num_read == num_heard


def is_about(operation: str, child: Any, asked: Any) -> bool:
    return asked.what[0] == operation and dict(asked.what[1])["child"] == child.id


async def test_one_that_cannot_go_on_keeps_its_family_until_it_ends(start_node: StartNode) -> None:
    here, there = await start_node(), await start_node()
    router, reading = await keeping(here)
    program = here.launch(boss, tenant=TENANT)
    await anext(program.attach())
    await router.until(lambda: router.last is not None and router.last.stays is not None)
    assert router.last is not None
    assert router.last.stays is not None
    assert "its child 'fixed' (prog-" in router.last.stays
    assert "has to stay: it is not restartable" in router.last.stays
    assert len(router.last.members) == 2
    assert await turn(program, 1) == "joined"
    await quiet(
        router,
        lambda found: (
            found.received == ["go on"] and not any(child.program for child in found.children)
        ),
    )
    reading.cancel()
    found = rescued(there, router.parts)
    await found.send("go on")
    assert await found.result() == ["a word", "a name"]


async def test_one_that_was_cancelled_does_not_go_on(start_node: StartNode) -> None:
    here, there = await start_node(), await start_node()
    router, reading = await keeping(here)
    program = here.launch(stopper, tenant=TENANT)
    reader = program.attach()
    await anext(reader)  # its record is kept
    reading.cancel()
    assert router.last is not None
    assert router.last.members == [program.id]
    (child,) = program_of(router.parts).children
    assert child.ended is not None
    found = rescued(there, router.parts)
    await found.send("go on")
    assert await found.result() == "program_cancelled"
    assert len(there.programs(TENANT)) == 1


async def test_those_that_are_left_behind_leave_nothing(start_node: StartNode) -> None:
    here = await start_node()
    program = here.launch(asker, ("between",), tenant=TENANT)
    await turn(program, 0)
    assert len(list(running_family(program))) == 4
    told = await here.for_routers.told_records(RecordsWanted("router", gone=[program.id]), TENANT)
    assert told.parts == []
    (ended,) = here.programs(TENANT)
    assert ended.name == "word"
    await here.for_routers.told_records(RecordsWanted("router", gone=[ended.id]), TENANT)
    assert here.programs(TENANT) == []
    family_left_behind(program)
    await here._parts.programs.wait_idle()


async def test_of_those_that_have_ended_nothing_is_kept_for_ever(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told_family, "_MIN_DROPPED_BYTES", 0)
    here, there = await start_node(), await start_node()
    router, reading = await keeping(here)
    program = here.launch(crowd, tenant=TENANT)
    reader = program.attach()
    for _ in range(12):
        await anext(reader)
    found = await quiet(router, lambda found: len(found.received) == 0)
    assert sum(map(len, router.parts)) < sum(len(part) for part in router.told) / 2
    assert len(found.children) == 12
    again = rescued(there, router.parts)
    results = []
    for one in (program, again):
        await one.send("end")
        results.append(await one.result())
    reading.cancel()
    assert results[0] == results[1]
    assert results[0][:-1] == ["short"] * 12


@inferlet("scribe", restartable=True)
async def scribe(api):  # type: ignore[no-untyped-def]
    """Receives much from its model, and returns little."""
    context = Context(api).fill("once upon a time")
    for _ in range(8):
        await context.generate_until(max_tokens=6)
    return "short"


@inferlet("crowd", restartable=True)
async def crowd(api):  # type: ignore[no-untyped-def]
    children = []
    for _ in range(12):
        children.append(await api.launch("scribe", []))
        await children[-1].join()
        await api.send("one more")
    await api.receive()
    children.append(await api.launch("lucky", []))
    return [await child.join() for child in children]


@inferlet("lucky", restartable=True)
async def lucky(api):  # type: ignore[no-untyped-def]
    return api.random().random()


async def test_parts_that_lack_a_child_are_refused(start_node: StartNode) -> None:
    here = await start_node()
    router, reading = await keeping(here)
    program = here.launch(asker, tenant=TENANT)
    await turn(program, 0)
    reading.cancel()
    first, *others = router.parts
    with pytest.raises(InvalidArgument, match="not those from its first"):
        program_of(others)
    whole = [msgspec.msgpack.decode(part) for part in (first, *others)]
    lost = list(running_family(program))[1].id
    for part in whole:
        part["members"].pop(lost, None)
    with pytest.raises(InvalidArgument, match="not those from its first"):
        program_of([msgspec.msgpack.encode(part) for part in whole])
    other = {"root": "prog-2", "members": {}}
    with pytest.raises(InvalidArgument, match="not those from its first"):
        program_of([*router.parts, msgspec.msgpack.encode(other)])
    program.terminate()
