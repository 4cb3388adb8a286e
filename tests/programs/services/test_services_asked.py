"""What a restartable program asks of its children is done once, whenever it begins again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from quire.core.ids import ProgramId, TenantId
from quire.programs.runtime.arrivals import ArrivalOrder
from quire.programs.runtime.replay_log import Questions, RecordedQuestion
from quire.programs.services.children import ChildService, ChildState, Family
from quire.programs.services.operations import Identity


class Says:
    """A child that sends ``words`` and keeps the messages that it receives."""

    name, ended = "says", False

    def __init__(self, number: int) -> None:
        self.id = f"prog-{number}"
        self.words = ["one", "two"]
        self.told: list[str] = []
        self.cancelled: list[str] = []

    def send(self, message: str) -> Awaitable[None]:
        self.told.append(message)
        return asyncio.sleep(0)

    async def receive(self) -> str:
        return self.words.pop(0)

    def cancel(self, reason: str) -> None:
        self.cancelled.append(reason)

    def when_ended(self, callback: Any) -> None: ...


class Life:
    """A program of which each incarnation asks through ``ask``. ``there``, ``back``: while one of
    them is cleared, nothing passes from the program's loop to that of the node, or back."""

    def __init__(self) -> None:
        self.asked: list[RecordedQuestion] = []
        self.children: list[Says] = []
        self.there, self.back, self.spawned = asyncio.Event(), asyncio.Event(), asyncio.Event()
        for way in (self.there, self.back, self.spawned):
            way.set()
        self.done = asyncio.Event()
        self.state = ChildState()
        self.family = Family(None)
        identity = Identity(ProgramId(1), TenantId("t"), "parent")
        loop = asyncio.get_running_loop()
        self.service = ChildService(
            identity, self.family, 0, self._spawn, self._on_node, loop.call_soon,
            lasting=True, state=self.state,
        )  # fmt: skip
        self.questions = Questions(self.asked, "service", ArrivalOrder(self.asked))

    async def _spawn(self, wanted: Any) -> Any:
        await self.spawned.wait()
        self.children.append(Says(len(self.children) + 1))
        return self.children[-1]

    async def _on_node(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def on_its_way() -> Any:
            await self.there.wait()
            try:
                return await work
            finally:
                self.done.set()

        # as on another loop: cancelled a turn later
        answer = await asyncio.shield(asyncio.ensure_future(on_its_way()))
        await self.back.wait()
        return answer

    async def ask(self, *what: Any) -> Any:
        return await self.questions.ask(what, lambda: self._carry_out(*what))

    async def _carry_out(self, name: str, *arguments: Any) -> Any:
        return await getattr(self.service, name)(*arguments)

    async def cut_off(self, asking: asyncio.Task[Any]) -> None:
        """Have the program begin again while it asks."""
        self.questions.end()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        self.questions = Questions(self.asked, "service", ArrivalOrder(self.asked))


LAUNCH = ("launch", "says", None, [], {}, 1)


async def launched() -> Life:
    life = Life()
    await life.ask(*LAUNCH)
    life.done.clear()
    return life


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (("send", "prog-1", "hello"), None),
        (("receive", "prog-1"), "one"),
        (("put_back", "prog-1", "zero"), None),
        (LAUNCH, {"id": "prog-2", "name": "says"}),
    ],
)
async def test_what_was_done_is_not_done_again(question: tuple[Any, ...], answer: Any) -> None:
    life = await launched()
    life.back.clear()
    asking = asyncio.create_task(life.ask(*question))
    await life.done.wait()
    await life.cut_off(asking)
    life.back.set()
    await asyncio.sleep(0)
    assert life.asked[-1].answered
    assert await life.ask(*LAUNCH) == {"id": "prog-1", "name": "says"}
    assert await life.ask(*question) == answer
    child = life.children[0]
    done = {
        "send": child.told == ["hello"],
        "receive": child.words == ["two"] and not life.state.unread.get("prog-1"),
        "put_back": list(life.state.unread.get("prog-1", ())) == ["zero"],
        "launch": len(life.children) == 2,
    }
    assert done[question[0]]


@pytest.mark.parametrize(
    "question",
    [("send", "prog-1", "hello"), ("receive", "prog-1"), ("put_back", "prog-1", "zero"), LAUNCH],
)
async def test_what_comes_too_late_is_not_done(question: tuple[Any, ...]) -> None:
    life = await launched()
    life.there.clear()
    asking = asyncio.create_task(life.ask(*question))
    await asyncio.sleep(0)
    await life.cut_off(asking)
    life.there.set()
    await life.done.wait()
    assert (life.children[0].told, life.children[0].words) == ([], ["one", "two"])
    assert (life.state.unread, len(life.children)) == ({}, 1)
    assert not life.asked[-1].answered


async def test_a_child_that_comes_too_late_ends() -> None:
    life = await launched()
    life.spawned.clear()
    asking = asyncio.create_task(life.ask(*LAUNCH))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await life.cut_off(asking)
    life.spawned.set()
    await life.done.wait()
    _, late = life.children
    assert late.cancelled == ["its parent begins again, and launches another in its place"]
    assert set(life.state.children) == {"prog-1"}


async def test_a_message_that_comes_too_late_is_the_next_one() -> None:
    life = await launched()
    receiving, may_come = life.children[0].receive, asyncio.Event()

    async def late() -> str:
        await may_come.wait()
        return await receiving()

    life.children[0].receive = late  # type: ignore[method-assign]
    asking = asyncio.create_task(life.ask("receive", "prog-1"))
    for _ in range(3):
        await asyncio.sleep(0)
    await life.cut_off(asking)
    may_come.set()
    await life.done.wait()
    await life.ask(*LAUNCH)
    assert [await life.ask("receive", "prog-1") for _ in range(2)] == ["one", "two"]


async def test_a_message_that_the_program_gave_up_is_not_in_its_record() -> None:
    life = await launched()
    life.back.clear()
    asking = asyncio.create_task(life.ask("receive", "prog-1"))
    await life.done.wait()
    assert life.asked[-1].answered
    asking.cancel()  # by the program itself
    await asyncio.gather(asking, return_exceptions=True)
    await asyncio.sleep(0)
    assert not life.asked[-1].answered
    assert list(life.state.unread["prog-1"]) == ["one"]


async def test_without_a_record_nothing_is_noted() -> None:
    life = Life()
    carry: Callable[..., Any] = life._carry_out
    assert await carry(*LAUNCH) == {"id": "prog-1", "name": "says"}
    assert await carry("receive", "prog-1") == "one"
    assert life.asked == []
