"""A program that waits for several things side by side receives them again in the order in which
they came, wherever they come from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
from programs_node import node_of
from replay_node import turns

from quire.core.calls import AskService
from quire.core.errors import ProgramCancelled
from quire.core.interfaces import ProgramPort, ReplySink
from quire.programs.api import Api
from quire.programs.runtime.replay_log import ReplayLog
from quire.programs.runtime.replay_port import ReplayPort
from quire.testing import LocalNode

_SETTLED = 40
_TWICE = ("decode", "message", "client") * 2
ORDERS = sorted(set(permutations(_TWICE)))[::11]


class Asked:
    """The node's port of a program, which is answered when the test says so."""

    def __init__(self, port: ProgramPort, messages: asyncio.Queue[str]) -> None:
        self._port = port
        self._messages = messages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)

    async def ask(self, question: AskService, undo: str | None = None) -> Any:
        return await self._messages.get()


class Life:
    """One incarnation of ``races`` on ``node``. ``received``: what its clients have sent before."""

    def __init__(self, node: LocalNode, log: ReplayLog, received: list[str]) -> None:
        self._node = node
        self._messages: asyncio.Queue[str] = asyncio.Queue()
        self.said: list[str] = []
        self._num_decodes = 0
        connect = node.connect("again")

        def connected(sink: ReplySink, loop: asyncio.AbstractEventLoop) -> ProgramPort:
            port = ReplayPort(log, sink, loop)
            port.attach(Asked(connect(port, loop), self._messages))
            return port

        async def program(api: Api) -> None:
            await races(api, self.said)

        node.hold = True
        self.running = node.launch(program, connect=connected)
        for message in received:
            self.running.send(message)

    async def comes(self, what: str) -> None:
        """Have the next decode end, or the next message come."""
        if what == "decode":
            self._num_decodes += 1
            await self._until(lambda: self.num_decoded >= self._num_decodes)
        elif what == "message":
            self._messages.put_nowait("from a child")
        else:
            self.running.send("from a client")
        await turns(_SETTLED)

    async def catches_up(self, before: list[str]) -> None:
        """Have the engine compute again until the program has said as much as before."""
        await self._until(lambda: len(self.said) >= len(before))
        self._num_decodes = self.num_decoded
        await turns(_SETTLED)

    @property
    def num_decoded(self) -> int:
        return sum(line.startswith("decoded") for line in self.said)

    async def _until(self, holds: Callable[[], bool]) -> None:
        """Let the engine compute until ``holds``."""
        self._node.hold = False
        async with asyncio.timeout(60):
            while not holds():
                await turns(1)
        self._node.hold = True


async def races(api: Api, said: list[str]) -> None:
    """Goes on with what comes first: the next token, the message of a child or that of a client.
    What it issues then has the next number."""
    queue = api.create_queue()

    async def step(token: int) -> None:
        page, embeds = api.alloc_kvpage(queue, 1), api.alloc_emb(queue, 1)
        api.embed_txt(queue, [token], [0], embeds)
        api.forward(queue, [], embeds, page[0], embeds)
        await api.get_next_dist(queue, embeds[0])

    async def decodes() -> None:
        for number in range(2):
            await step(5 + number)
            said.append(f"decoded {number}")

    async def hears() -> None:
        for number in range(2):
            said.append(f"{await api.pull('a child')} {number}")
            api.alloc_kvpage(queue, 1)

    async def listens() -> None:
        for number in range(2):
            said.append(f"{await api.receive()} {number}")
            api.alloc_kvpage(queue, 2)

    await asyncio.gather(decodes(), hears(), listens())


async def goes_on(order: tuple[str, ...], num_before: int) -> tuple[list[str], list[str]]:
    """What the program says by the end, if it is moved after ``num_before`` arrivals; and what it
    had said by then."""
    log = ReplayLog()
    async with node_of() as node:
        first = Life(node, log, [])
        await turns(_SETTLED)
        for what in order[:num_before]:
            await first.comes(what)
        before = list(first.said)
        assert len(before) == num_before
        log.stop()
        await turns(_SETTLED)
        first.running.cancel()
        with pytest.raises(ProgramCancelled):
            await first.running.result()
    async with node_of() as node:
        received = ["from a client"] * order[:num_before].count("client")
        second = Life(node, log, received)
        await second.catches_up(before)
        for what in order[num_before:]:
            if what != "decode" or second.num_decoded < 2:
                await second.comes(what)
        await second.running.result()
        return second.said, before


@pytest.mark.parametrize("num_before", range(1, 6))
async def test_what_comes_side_by_side_comes_in_the_same_order_again(num_before: int) -> None:
    for order in ORDERS:
        said, before = await goes_on(order, num_before)
        assert said[:num_before] == before, order
        assert len(said) == len(order)
