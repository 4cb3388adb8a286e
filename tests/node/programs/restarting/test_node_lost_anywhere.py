"""A restartable program loses its engine in any turn, at a node whose edge hears of it late.

The record that clients read is looked at in every turn: it says that the program runs, until it has
the result of a program that nothing has disturbed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from fake_node import TENANT
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.ids import EngineId
from quire.core.interfaces import ProgramPort, ReplySink
from quire.node.programs import life
from quire.node.programs.handle import ProgramHandle
from quire.node.programs.programs import ProgramTable
from quire.node.programs.records import ProgramLaunch
from quire.node.programs.restarting.restarts import Restarts
from quire.programs.api import Api
from quire.programs.inferlet import Main
from quire.programs.runtime.replay_log import MAX_RESTARTS, ReplayLog
from quire.programs.runtime.replay_port import ReplayPort
from quire.programs.runtime.running import RunningProgram
from quire.programs.sdk import Context
from quire.programs.services.store import Store, T
from quire.programs.services.store_table import StoreTable
from quire.testing import FakeEngine, LocalNode, fake_pool

ENGINE = EngineId("fake")
_MAX_TURNS = 2000
"""Far more than any of these programs takes: what has not ended then never will."""


async def forks(api: Api) -> list[Any]:
    """Asks nothing but the engine: forks, of which one is joined and one dropped."""
    context = Context(api).fill([5, 6, 7, 8, 9])
    await context.prefill()
    context.evict(1, 2)  # now nobody but the program can compute its pages anew
    children = [context.fork().fill([20 + index]) for index in range(2)]
    said = await asyncio.gather(*[one.generate_until(max_tokens=3) for one in children])
    context.join(children[0])
    children[1].drop()
    await api.send("forked")
    return [*said, (await context.next_dist()).token_ids]


async def forks_and_asks(api: Api) -> list[Any]:
    """Asks a service too, side by side with what it does on the engine."""

    async def asks() -> list[str | None]:
        told = []
        for number in range(8):
            await api.store_put("place", str(number))
            told.append(await api.store_get("place"))
        return told

    return list(await asyncio.gather(forks(api), asks()))


MAINS = (forks, forks_and_asks)


@pytest.fixture(autouse=True, scope="module")
def store_at_once() -> Iterator[None]:
    """The store answers in the next turn: with its thread the number of turns would depend on how
    busy the machine is."""
    tables: dict[Store, StoreTable] = {}

    async def run(self: Store, job: Callable[[StoreTable, float], T]) -> T:
        await asyncio.sleep(0)
        if self not in tables:
            tables[self] = StoreTable(None)
        return job(tables[self], self._now_s())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "run", run)
        yield
    for table in tables.values():
        table.close()


class LateEdge(ProgramTable):
    """A table that is told of programs so many turns of the loop after it has happened."""

    def __init__(self, num_turns: int) -> None:
        super().__init__()
        self._num_turns = num_turns

    def soon(self, callback: Callable[[], object]) -> None:
        later(self._num_turns, callback)


def later(num_turns: int, callback: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    loop.call_soon(*((later, num_turns - 1, callback) if num_turns else (callback,)))


class Launched:
    """``main`` in a table of programs, on a node whose engine may be lost. ``news_late``: by how
    many turns the table hears late of messages and ends."""

    def __init__(self, node: LocalNode, main: Main, news_late: int = 0) -> None:
        self._node = node
        self._main = main
        self.log = ReplayLog()
        table = LateEdge(news_late)
        self.handle: ProgramHandle = table.launch(
            "forks", ProgramLaunch(TENANT), self._start, Restarts(self.log)
        )

    def _start(self) -> RunningProgram:
        connect = self._node.connect("forks")

        def connected(sink: ReplySink, loop: asyncio.AbstractEventLoop) -> ProgramPort:
            port = ReplayPort(self.log, sink, loop)
            port.attach(connect(port, loop))
            return port

        return self._node.launch(self._main, connect=connected)

    def lose_engine(self) -> None:
        """It is gone, and another one with empty memory is there."""
        harness = self._node.harness
        engine = harness.engines[ENGINE]
        harness.lose_engine(ENGINE)
        harness.start_engine(ENGINE, FakeEngine(engine.info.pool, script=engine._script))

    def is_ended(self) -> bool:
        """Whether its record says so. What runs has neither result nor error."""
        record = self.handle.record()
        if record.state.ended:
            return True
        assert (record.result, record.error) == (None, None), record
        return False


async def run(
    main: Main, kills: tuple[int, ...] = (), news_late: int = 0, losses_late: int = 0
) -> tuple[Any, list[str], int]:
    """The result of ``main`` as its first record that has ended says, its messages, and in how
    many turns; the engine is lost after so many of them (``kills``: each from the one before)."""
    engine = FakeEngine(fake_pool(page_size=4, num_blocks=256))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            life, "call_on", lambda _, call, *args: later(losses_late, lambda: call(*args))
        )
        async with LocalNode({ENGINE: engine}) as node:
            program = Launched(node, main, news_late)
            left, num_turns = list(kills), 0
            while not program.is_ended():
                assert num_turns < _MAX_TURNS, program.handle.record()
                if left and not left[0]:
                    left.pop(0)
                    program.lose_engine()
                await asyncio.sleep(0)
                num_turns += 1
                left[:1] = [one - 1 for one in left[:1]]
            record = program.handle.record()
            assert record.state == "finished", record
            return record.result, program.handle.messages_after(0), num_turns


@cache
def undisturbed(main: Main) -> tuple[Any, list[str], int]:
    return asyncio.run(run(main))


@pytest.mark.parametrize("main", MAINS)
@pytest.mark.parametrize("late", [(3, 0), (0, 12)])
def test_lost_in_any_turn_it_ends_as_if_it_had_not_been(main: Main, late: tuple[int, int]) -> None:
    *expected, num_turns = undisturbed(main)
    for turn in range(num_turns):
        *ended, _ = asyncio.run(run(main, (turn,), *late))
        assert ended == expected, f"lost in turn {turn}"


@settings(max_examples=30)
@given(
    main=st.sampled_from(MAINS),
    kills=st.lists(st.integers(0, 90), min_size=2, max_size=MAX_RESTARTS).map(tuple),
    news_late=st.integers(0, 9),
    losses_late=st.integers(0, 15),
)
def test_lost_again_and_again_while_it_catches_up_too(
    main: Main, kills: tuple[int, ...], news_late: int, losses_late: int
) -> None:
    *expected, _ = undisturbed(main)
    *ended, _ = asyncio.run(run(main, kills, news_late, losses_late))
    assert ended == expected
