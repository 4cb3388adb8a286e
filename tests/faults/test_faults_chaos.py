"""A run of faults, the same for the same seed, behind which everything is at its level again.

A round takes every action once, in an order of its own. There is one, on a quick and on a busy
machine alike; with ``--chaos-s`` others are begun for so long, in ``make chaos`` for an hour.
Nothing is asserted about time.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import chaos_actions
import httpx
import pytest
import pytest_asyncio
from chaos_actions import ACTIONS, Action, Chaos
from chaos_node import READY_S, ChaosNode, Levels, gone
from hostile_guests import KEEPS

from quire.cluster.simulation.virtual_loop import VirtualLoop
from quire.core.scratch import MIN_AGE_S
from quire.node import RestartLimits
from quire.simulation import VirtualClock

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="levels are read from /proc"),
    pytest.mark.skipif(
        find_spec("wasmtime") is None or find_spec("componentize_py") is None,
        reason="the extra 'sandbox' is not installed (wasmtime, componentize-py)",
    ),
    pytest.mark.timeout(0),  # each wait has a bound of its own
]


def rounds(seed: int) -> Iterator[list[Action]]:
    """Without end: every action once in each, in an order that the seed decides."""
    order = random.Random(seed)
    while True:
        yield order.sample(ACTIONS, len(ACTIONS))


@pytest_asyncio.fixture
async def node(tmp_path: Path, sandbox_cache: Path) -> AsyncIterator[ChaosNode]:
    node = ChaosNode(tmp_path, sandbox_cache)
    try:
        await node.start()
        yield node
    finally:
        node.stop()


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int:
    return int(pytestconfig.getoption("--chaos-seed"))


@pytest.fixture
def duration_s(pytestconfig: pytest.Config) -> float:
    return float(pytestconfig.getoption("--chaos-s"))


def test_a_seed_is_a_schedule() -> None:
    def names(seed: int) -> list[list[str]]:
        found = rounds(seed)
        return [[action.__name__ for action in next(found)] for _ in range(5)]

    assert names(7) == names(7)
    assert names(7) != names(8)
    assert all(sorted(one) == sorted(action.__name__ for action in ACTIONS) for one in names(7))


def test_what_is_left_behind_is_named() -> None:
    before = Levels(0, 0, 0, 0, 0, 2, 60, 18, 0)
    assert replace(before, files=70, threads=30).exceeds(before) == {}
    leaking = replace(before, files=77, held_blocks=1, child_processes=3, temporary_files=1)
    assert leaking.exceeds(before) == {
        "held_blocks": (0, 1),
        "child_processes": (2, 3),
        "files": (60, 77),
        "temporary_files": (0, 1),
    }


class SlowNode:
    """A node, and a client of it, that notices the losses of its engine after some ``delays_s``,
    and gives it up by ``RestartLimits``."""

    def __init__(self, delays_s: list[float]) -> None:
        self._delays_s = iter(delays_s)
        self._noticed_s: list[float] = []
        self._limits = RestartLimits()
        self.is_given_up = False

    def child(self, module: str) -> int:
        asyncio.get_running_loop().call_later(next(self._delays_s), self._notice)
        return 0

    def _notice(self) -> None:
        now_s = asyncio.get_running_loop().time()
        recent = [at_s for at_s in self._noticed_s if now_s - at_s <= self._limits.window_s]
        self.is_given_up |= len(recent) + 1 >= self._limits.max_losses
        self._noticed_s.append(now_s)

    async def ready(self) -> None:
        assert not self.is_given_up

    async def get(self, path: str) -> httpx.Response:
        engine = {"state": "restarting", "restarts": len(self._noticed_s)}
        return httpx.Response(200, json={"engines": {"small": engine}})


def test_an_engine_is_not_lost_so_often_that_its_node_gives_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However late the node notices some of its losses."""
    monkeypatch.setattr(chaos_actions, "send_signal", lambda pid, number: True)
    node: Any = SlowNode([8.0, 0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 9.0, 0.0, 0.0, 0.0])

    async def lose_all() -> None:
        chaos = Chaos(node, node, random.Random(3), [])
        for _ in range(12):
            await chaos.lose_engine()

    VirtualLoop(VirtualClock()).run(lose_all())
    assert not node.is_given_up


# a client that is cancelled while it connects leaves its socket to the collector of this process;
# the node's own sockets are counted
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket.socket")
async def test_everything_comes_back_to_its_level(
    node: ChaosNode, seed: int, duration_s: float
) -> None:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
    client = httpx.AsyncClient(base_url=node.url, timeout=READY_S, limits=limits)
    async with client as http:
        chaos = Chaos(node, http, random.Random(seed), [])
        schedule = rounds(seed)
        # the first round starts what is started once, and is not looked at
        await run_round(chaos, next(schedule), 0)
        before = await node.settled()
        ends_s, count = time.monotonic() + duration_s, 0
        while count == 0 or time.monotonic() < ends_s:
            count += 1
            await run_round(chaos, next(schedule), count)
            await node.settled(before)
        print(f"{count} rounds with seed {seed}; levels {await node.settled(before)}")


async def run_round(chaos: Chaos, actions: list[Action], number: int) -> None:
    for action in actions:
        print(f"round {number}: {action.__name__}", flush=True)
        try:
            await action(chaos)
        except Exception as exc:
            exc.add_note(f"in round {number}, {action.__name__}; log: {chaos.node.log}")
            raise
    await chaos.node.ready()


async def test_a_killed_node_leaves_no_process_and_nothing_that_the_next_one_keeps(
    node: ChaosNode, seed: int
) -> None:
    async with httpx.AsyncClient(base_url=node.url, timeout=READY_S) as http:
        chaos = Chaos(node, http, random.Random(seed), [])
        assert (await chaos.launch(KEEPS, "write", "kept", wait=True))["result"] == "kept"
        calls = [asyncio.create_task(chaos.chat(500)) for _ in range(4)]
        await asyncio.sleep(chaos.random.random())
        await gone(node.kill())
        await asyncio.gather(*calls, return_exceptions=True)
    for left in node.temporary.iterdir():
        then_s = time.time() - 2 * MIN_AGE_S
        os.utime(left, (then_s, then_s))
    await node.start()
    async with httpx.AsyncClient(base_url=node.url, timeout=READY_S) as http:
        chaos = Chaos(node, http, random.Random(seed), [])
        assert (await chaos.launch(KEEPS, "read", wait=True))["result"] == "kept"
    assert list(node.temporary.iterdir()) == []
