"""When a router waits for a program of a lost node, and when it says that it is lost."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from quire.cluster.engines.node_engine import ClusterKey
from quire.cluster.nodes.record_reader import HeldRecord
from quire.cluster.passing.program_rescue import ProgramRescue
from quire.cluster.requests.places import program_lookups
from quire.core.errors import EngineLost, UnknownHandle

PROGRAM = "prog-1"
CHILD = "prog-2"
LOOKUPS = program_lookups(PROGRAM)


class Target:
    """A node that answers with ``status``."""

    def __init__(self, name: str, status: int, load: int = 0) -> None:
        self.name, self.status, self.load = name, status, load
        self.node = SimpleNamespace(name=name, takes_work_for=lambda _: True, ask=self.ask)
        self.num_asked = 0

    async def ask(self, *asked: object, may_repeat: bool) -> Target:
        self.num_asked += 1
        if self.status == 0:
            raise EngineLost("it is gone")
        return self

    async def head(self) -> Target:
        return self

    async def read_all(self, limit: int) -> bytes:
        return b'{"error": {"message": "it says so"}}'

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *exc: object) -> None: ...


class Locator:
    """Finds nothing at first, then ``node``."""

    def __init__(self) -> None:
        self.node: Any = None
        self.asked = asyncio.Event()

    async def find(self, lookups: object, headers: object) -> Any:
        self.asked.set()
        if self.node is None:
            raise EngineLost("node-0 cannot be asked")
        return self.node

    def forget(self, lookups: object) -> None: ...


class Reader:
    """Of a node that is lost, with one program."""

    is_told = True

    def __init__(self, stays: str | None = None) -> None:
        self.node = SimpleNamespace(name="node-0")
        self.kept: dict[str, HeldRecord] = {}
        members = [PROGRAM, CHILD]
        self.orphans = {PROGRAM: HeldRecord([b"part"], members, stays=stays)}
        self.gone: list[str] = []

    def has(self, id: str) -> bool:
        return any(id in record.members for record in self.orphans.values())

    def let_go(self, id: str, *, is_elsewhere: bool) -> None:
        del self.orphans[id]
        if is_elsewhere:
            self.gone.append(id)


class World:
    def __init__(self, *targets: Target, stays: str | None = None) -> None:
        self.locator: Any = Locator()
        self.reader: Any = Reader(stays)
        engines: Any = targets
        self.rescue = ProgramRescue(lambda: engines, ClusterKey("key"), self.locator)
        self.rescue._readers.add(self.reader)

    async def run(self) -> None:
        await self.rescue._rescue(self.reader)


async def test_the_least_used_node_takes_it_and_who_asks_waits_until_it_has_it() -> None:
    busy, idle = Target("busy", 201, load=3), Target("idle", 201)
    w = World(busy, idle)
    finding = asyncio.create_task(w.rescue.find(LOOKUPS, []))
    await w.locator.asked.wait()
    await w.run()
    assert (busy.num_asked, idle.num_asked, w.reader.gone) == (0, 1, [PROGRAM])
    w.locator.asked.clear()
    await w.locator.asked.wait()  # the node has it, and has not told so
    assert not finding.done()
    w.locator.node = idle.node
    assert await asyncio.wait_for(finding, 100) is idle.node


async def test_who_asks_for_a_child_waits_too() -> None:
    w = World(Target("idle", 201))
    assert w.rescue._patience_s(program_lookups(CHILD)) > 0
    await w.run()
    assert w.rescue._patience_s(program_lookups(CHILD)) > 0
    assert w.rescue._patience_s(program_lookups("prog-3")) == 0


async def test_a_node_that_has_it_already_has_taken_it() -> None:
    w = World(Target("one", 409))
    await w.run()
    assert (w.reader.gone, w.rescue.num_rescued) == ([PROGRAM], 1)


async def test_a_node_that_was_found_again_is_asked_once_it_has_ended_the_old_one() -> None:
    """Until then it would say that it has the program already."""
    found = Target("found", 409)
    w = World(found)
    before: Any = Reader()
    before.node, before.orphans, before.gone = found.node, {}, [PROGRAM]
    w.rescue._readers.add(before)
    assert w.rescue.outdated(LOOKUPS[0]) == {"found"}
    assert not w.rescue.outdated("/v1/programs/another")
    await w.run()
    assert (found.num_asked, list(w.reader.orphans)) == (0, [PROGRAM])
    before.gone, found.status = [], 201
    assert not w.rescue.outdated(LOOKUPS[0])
    await w.run()
    assert (found.num_asked, w.reader.gone) == (1, [PROGRAM])


async def test_one_that_may_have_taken_it_is_asked_again_before_others() -> None:
    doubtful, other = Target("doubtful", 0), Target("other", 201, load=1)
    w = World(doubtful, other)
    await w.run()
    assert (doubtful.num_asked, other.num_asked, w.reader.gone) == (1, 0, [])
    doubtful.status, doubtful.load = 201, 5
    await w.run()
    assert (doubtful.num_asked, other.num_asked, w.reader.gone) == (2, 0, [PROGRAM])


async def test_nodes_that_take_nothing_now_are_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    full = Target("full", 429)
    w = World(full)
    await w.run()
    await w.run()
    assert (full.num_asked, w.reader.gone, list(w.reader.orphans)) == (2, [], [PROGRAM])
    assert caplog.text.count("it says so") == 1
    w.rescue.check(LOOKUPS)


@pytest.mark.parametrize("stays", [None, "it has children"])
async def test_what_no_node_can_go_on_with_is_lost(stays: str | None) -> None:
    one, other = Target("one", 400), Target("other", 404, load=1)
    w = World(one, other, stays=stays)
    await w.run()
    assert (w.reader.orphans, w.reader.gone, w.rescue.num_lost) == ({}, [], 1)
    assert one.num_asked == other.num_asked == (stays is None)
    with pytest.raises(UnknownHandle, match="lost with its node node-0: ") as caught:
        await w.rescue.find(LOOKUPS, [])
    why = stays or "node other cannot go on with it: it says so"
    assert why in caught.value.message
    with pytest.raises(UnknownHandle, match=r"prog-2 was lost .* with prog-1, to which") as caught:
        w.rescue.check(program_lookups(CHILD))
    assert why in caught.value.message


@pytest.mark.parametrize("answers", [True, False])
async def test_what_is_found_to_be_lost_while_the_nodes_are_asked_is_lost(answers: bool) -> None:
    w = World(stays="it holds exports")
    found = w.locator.find

    async def find(lookups: object, headers: object) -> Any:
        await w.run()
        return None if answers else await found(lookups, headers)

    w.locator.find = find
    with pytest.raises(UnknownHandle, match="it holds exports"):
        await w.rescue.find(LOOKUPS, [])


async def test_what_nobody_has_is_not_waited_for() -> None:
    w = World()
    w.reader.orphans.clear()
    with pytest.raises(EngineLost, match="cannot be asked"):
        await asyncio.wait_for(w.rescue.find(LOOKUPS, []), 100)
