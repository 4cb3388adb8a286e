"""Restartable programs on a fake engine that is lost where a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from programs_node import level, node_of

from quire.core.errors import ErrorRecord, ProgramCancelled
from quire.core.ids import EngineId
from quire.core.interfaces import ProgramPort, ReplySink
from quire.programs.inferlet import Inferlet, Main
from quire.programs.runtime.replay_log import ReplayLog
from quire.programs.runtime.replay_port import ReplayPort
from quire.programs.runtime.running import Connect, RunningProgram
from quire.testing import FakeEngine, LocalNode

T = TypeVar("T")

_ENGINE = EngineId("fake")
_SLOW_TURNS = 60


def recorded(node: LocalNode, log: ReplayLog) -> Connect:
    """The port of another incarnation of the program whose record is ``log``."""
    connect = node.connect("again")

    def connected(sink: ReplySink, loop: asyncio.AbstractEventLoop) -> ProgramPort:
        port = ReplayPort(log, sink, loop)
        port.attach(connect(port, loop))
        return port

    return connected


class Restartable:
    """A program that begins again whenever it is told that ``node`` has lost its engine. ``args``
    are those of its launch."""

    def __init__(self, node: LocalNode, main: Main | Inferlet, *args: str) -> None:
        self._node = node
        self._main = main
        self._args = args
        self.num_again = 0
        self.log = ReplayLog()
        self.log.on_loss = self._begin_again
        self._running = self._launch()

    @property
    def has_ended(self) -> bool:
        return self._running.state.ended

    def _launch(self) -> RunningProgram:
        connect = recorded(self._node, self.log)
        return self._node.launch(self._main, *self._args, connect=connect)

    def _begin_again(self, error: ErrorRecord) -> None:
        self._running.cancel("it begins again")
        self.num_again += 1
        self._running = self._launch()

    async def result(self) -> Any:
        """What the last incarnation returns."""
        while True:
            running = self._running
            try:
                return await running.result()
            except ProgramCancelled:
                if running is self._running:
                    raise


async def lose_engine(node: LocalNode) -> None:
    """It is gone, and another one with empty memory is there, which takes its time: whoever does
    not wait for it runs ahead."""
    engine = node.harness.engines[_ENGINE]
    node.harness.lose_engine(_ENGINE)
    node.harness.start_engine(_ENGINE, FakeEngine(engine.info.pool, script=engine._script))
    node.hold = True
    await turns(_SLOW_TURNS)
    node.hold = False


def threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have work for a thread done in the next turn of the loop: otherwise the number of turns would
    depend on how busy the machine is."""

    async def to_thread(function: Callable[..., T], *args: Any, **keywords: Any) -> T:
        await asyncio.sleep(0)
        return function(*args, **keywords)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)


async def turns(num: int) -> None:
    """``num`` turns of the loop: in each the node moves a message at most."""
    for _ in range(num):
        await asyncio.sleep(0)


async def lost_after(main: Main, *nums: int) -> tuple[Any, int]:
    """The result of ``main``, whose engine is lost after so many turns, and again after so many
    more; how often it has begun again."""
    async with node_of() as node:
        program = Restartable(node, main)
        for num in nums:
            await turns(num)
            if not program.has_ended:
                await lose_engine(node)
        result = await program.result()
        left = await level(node)
        assert (left["held"], left["queues"]) == (0, 0), left
        return result, program.num_again


async def num_turns(main: Main) -> tuple[Any, int]:
    """The result of ``main`` that nothing disturbs, and the turns of the loop until then."""
    async with node_of() as node:
        program, num = Restartable(node, main), 0
        while not program.has_ended:
            await turns(1)
            num += 1
        return await program.result(), num
