"""Turns at a store: the node's policy, shares, cancellation, several loops."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import pytest
from fake_node import fake_config, fake_model_files, fake_transport

from quire.core.calls import SPARE_PRIORITY
from quire.core.config import EngineConfig, NodeConfig, TenantConfig
from quire.core.errors import CapacityError
from quire.core.ids import ModelId, ProgramId, TenantId
from quire.core.scheduler_config import SchedulerConfig
from quire.node import Node
from quire.node.programs import services
from quire.node.turns import RequestTurns, TurnStatistics
from quire.programs import inferlet
from quire.programs.api import Api
from quire.programs.services.encoding import CallOrder
from quire.programs.services.operations import Identity
from quire.programs.vectors import CollectionPlace, ExactStore, FoundRow
from quire.programs.vectors.store import F32


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.25
        return self.now


def turns_of(policy: str = "fcfs", at_once: int = 1, **weights: float) -> RequestTurns:
    config = NodeConfig(
        (EngineConfig(source="x", name=ModelId("x")),),
        scheduler=SchedulerConfig(policy=policy),
        tenants=tuple(TenantConfig(TenantId(name), weight=one) for name, one in weights.items()),
    )
    return RequestTurns(config, at_once, Time())


def program(number: int, tenant: str = "default") -> Identity:
    return Identity(ProgramId(number), TenantId(tenant), "p")


class Requests:
    """Requests that wait behind one that has its turn until ``play``."""

    def __init__(self, turns: RequestTurns) -> None:
        self.turns = turns
        self.had_turn: list[str] = []
        self._release = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def send(self, name: str, identity: Identity, **order: int) -> asyncio.Task[None]:
        task = asyncio.create_task(self._request(name, identity, CallOrder(**order)))  # type: ignore[arg-type]
        self._tasks.append(task)
        await asyncio.sleep(0)
        self.turns.check_invariants()
        return task

    async def _request(self, name: str, identity: Identity, order: CallOrder) -> None:
        async with self.turns.turn(identity, order):
            self.had_turn.append(name)
            await self._release.wait()

    async def play(self) -> list[str]:
        """The names behind the first, in the order of their turns."""
        self._release.set()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task
        self.turns.check_invariants()
        assert self.turns.statistics() == TurnStatistics(0, 0)
        return self.had_turn[1:]


@pytest.mark.parametrize(
    ("policy", "names"),
    [
        ("fcfs", ["a0", "b1", "a2", "b2"]),
        ("topology", ["a2", "a0", "b2", "b1"]),
        ("invocation", ["a0", "a2", "b1", "b2"]),
    ],
)
async def test_the_nodes_policy_orders_a_store(policy: str, names: list[str]) -> None:
    """Depth is the number of a name. Of program ``a`` both are of one step, of ``b`` of two. A
    batch is one request: of the program that came first the deepest."""
    requests = Requests(turns_of(policy))
    await requests.send("first", program(9))
    await requests.send("a0", program(1), depth=0, invocation=1)
    await requests.send("b1", program(2), depth=1, invocation=1)
    await requests.send("a2", program(1), depth=2, invocation=1)
    await requests.send("b2", program(2), depth=2, invocation=2)
    assert await requests.play() == names


async def test_so_many_at_once_and_priorities_before_the_policy() -> None:
    requests = Requests(turns_of(at_once=2))
    for name in ("first", "second", "third"):
        await requests.send(name, program(1))
    await requests.send("urgent", program(2), priority=1)
    assert requests.turns.statistics() == TurnStatistics(num_waiting=2, num_running=2)
    assert await requests.play() == ["second", "urgent", "third"]


async def test_tenants_take_turns_by_their_weights() -> None:
    requests = Requests(turns_of(a=1.0, b=2.0))
    await requests.send("first", program(9, "other"))
    for number in range(4):
        await requests.send(f"a{number}", program(1, "a"))
    for number in range(4):
        await requests.send(f"b{number}", program(2, "b"))
    assert (await requests.play())[:6] == ["a0", "b0", "b1", "a1", "b2", "b3"]


async def test_who_is_cancelled_takes_no_turn_whether_it_waits_or_runs() -> None:
    requests = Requests(turns_of())
    first = await requests.send("first", program(1))
    waiting = await requests.send("waiting", program(1))
    await requests.send("next", program(1))
    waiting.cancel()
    await asyncio.sleep(0)
    assert requests.turns.statistics() == TurnStatistics(num_waiting=1, num_running=1)
    first.cancel()
    assert await requests.play() == ["next"]


async def test_a_turn_that_was_given_while_its_waiter_is_cancelled_goes_to_the_next() -> None:
    turns = turns_of()
    requests = Requests(turns)
    first = await requests.send("first", program(1))
    given = await requests.send("given", program(1))
    await requests.send("next", program(1))
    first.cancel()
    await asyncio.sleep(0)  # the first leaves, and the second is told
    given.cancel()
    assert await requests.play() == ["next"]


async def test_a_program_that_has_ended_is_forgotten_with_its_last_request() -> None:
    turns = turns_of("plas")
    ended: list[ProgramId] = []
    turns._order.end_program = lambda one, now_s: ended.append(one)  # type: ignore[method-assign]
    requests = Requests(turns)
    await requests.send("first", program(1))
    await requests.send("second", program(2))
    turns.end(ProgramId(1))
    turns.end(ProgramId(3))
    assert not ended
    assert await requests.play() == ["second"]
    assert ended == [ProgramId(1)]
    turns.end(ProgramId(2))
    turns.end(ProgramId(2))
    assert ended == [ProgramId(1), ProgramId(2)]


class Waiting(ExactStore):
    """Its first search ends when two others wait. ``asked``: the rows that each asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.turns: RequestTurns

    async def search(self, place: CollectionPlace, vectors: F32, num: int) -> list[list[FoundRow]]:
        self.asked.append(num)
        while len(self.asked) == 1 and self.turns.statistics().num_waiting < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return await super().search(place, vectors, num)


@pytest.mark.parametrize(("policy", "order"), [("fcfs", [1, 2, 3]), ("topology", [1, 3, 2])])
async def test_the_vector_store_of_a_node_takes_turns_by_its_policy(
    monkeypatch: pytest.MonkeyPatch, policy: str, order: list[int]
) -> None:
    store = Waiting()
    monkeypatch.setattr(services, "vector_store", lambda choice, data_dir: store)
    config = fake_config(scheduler=SchedulerConfig(policy=policy))
    node = Node(config, transport_factory=fake_transport, model_files=fake_model_files)
    store.turns = node._parts.services._vector_turns

    @inferlet()
    async def main(api: Api) -> None:
        await api.vectors_put("x", [[1, 0]], ["a"])
        searches = [api.vectors_search("x", [[1, 0]], n, depth=n) for n in (1, 2, 3)]
        await asyncio.gather(*searches)

    await node.start()
    try:
        await node.launch(main, tenant=TenantId("default")).result()
    finally:
        await node.stop()
    assert store.asked == order
    assert store.turns.statistics() == TurnStatistics(0, 0)
    assert not store.turns._programs, "the program has ended"


async def test_programs_of_several_loops_share_the_turns() -> None:
    turns = turns_of()
    together: list[int] = []
    running = 0

    async def use(number: int) -> None:
        nonlocal running
        for _ in range(20):
            async with turns.turn(program(number), CallOrder()):
                running += 1
                together.append(running)
                await asyncio.sleep(0)
                running -= 1

    threads = [threading.Thread(target=lambda n=n: asyncio.run(use(n))) for n in (1, 2)]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    await use(3)
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert together == [1] * 60
    assert turns.statistics() == TurnStatistics(0, 0)


async def settled() -> None:
    """Whoever has a turn has begun."""
    for _ in range(8):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("at_once", "num_spare"), [(1, 1), (2, 1), (4, 3)])
async def test_a_spare_request_has_its_turn_at_once_or_none(at_once: int, num_spare: int) -> None:
    turns = turns_of(at_once=at_once)
    requests = Requests(turns)
    spare = [
        await requests.send(str(n), program(n), priority=SPARE_PRIORITY) for n in range(at_once + 1)
    ]
    await settled()
    assert requests.had_turn == [str(n) for n in range(num_spare)]
    refused = [task for task in spare if task.done()]
    assert len(refused) == at_once + 1 - num_spare
    assert all(isinstance(task.exception(), CapacityError) for task in refused)
    last = await requests.send("last", program(9))
    await settled()
    assert ("last" in requests.had_turn) == (at_once > 1), "of several turns one is left for others"
    spare[0].cancel()
    await settled()
    assert "last" in requests.had_turn
    for task in (last, *spare):
        task.cancel()
    await asyncio.gather(last, *spare, return_exceptions=True)
    turns.check_invariants()
