"""Children of a program, its log, time and randomness, over a node with fake engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from quire.core.errors import (
    InvalidArgument,
    MailboxClosed,
    ProgramCancelled,
    ProgramFailed,
    QuotaExceeded,
    UnknownHandle,
)
from quire.core.ids import ProgramId, TenantId
from quire.core.quotas import Quotas
from quire.programs.api import Api
from quire.programs.inferlet import inferlet
from quire.programs.runtime.running import ProgramState
from quire.programs.sdk import Context
from quire.programs.services.children import (
    MAX_KEPT,
    MAX_KEPT_BYTES,
    MAX_UNREAD,
    ChildService,
    ChildState,
    Family,
)
from quire.programs.services.operations import Identity
from quire.testing import LocalNode


@pytest_asyncio.fixture
async def node() -> AsyncIterator[LocalNode]:
    async with LocalNode() as node:
        yield node


@inferlet("echo")
async def echo(api: Api, *args: str) -> list[str]:
    """Says its arguments, then what it is told, and returns all."""
    said = list(args)
    for word in args:
        await api.send(word)
    api.log("warning", "echoing", num_words=len(args))
    said.append(await api.receive())
    return said


@inferlet("fails")
async def fails(api: Api) -> None:
    raise ValueError("on purpose")


@inferlet("forever")
async def forever(api: Api) -> None:
    await asyncio.Event().wait()


class TestChildren:
    async def test_a_child_talks_to_its_parent_and_returns(self, node: LocalNode) -> None:
        async def parent(api: Api) -> Any:
            child = await api.launch(echo, ["one", "two"])
            heard = [await child.receive(), await child.receive()]
            await child.send("three")
            result = await api.join(child)
            with pytest.raises(MailboxClosed):
                await child.receive()
            logs = [(line["level"], line["text"], line["fields"]) for line in await child.logs()]
            return [heard, result, await child.join(), logs, child.name]

        heard, result, again, logs, name = await node.run(parent)
        assert heard == ["one", "two"]
        assert result == again == ["one", "two", "three"]
        assert logs == [("warning", "echoing", {"num_words": 2})]
        assert name == "echo"

    async def test_a_program_of_the_library_by_name(self, node: LocalNode) -> None:
        async def parent(api: Api) -> Any:
            child = await api.launch("text_completion", ["hello", "3"])
            return [await child.join(), "".join([text async for text in child.messages()])]

        result, messages = await node.run(parent)
        assert result
        assert messages

    async def test_the_childs_error_surfaces_where_it_is_joined(self, node: LocalNode) -> None:
        async def parent(api: Api) -> str:
            child = await api.launch(fails)
            with pytest.raises(ProgramFailed, match="ValueError: on purpose") as caught:
                await child.join()
            return str(caught.value.details["traceback"])

        assert 'raise ValueError("on purpose")' in await node.run(parent)

    async def test_cancel_ends_the_child(self, node: LocalNode) -> None:
        async def parent(api: Api) -> None:
            child = await api.launch(forever)
            await api.cancel(child, "enough")
            await child.cancel()
            with pytest.raises(ProgramCancelled, match="enough"):
                await child.join()

        await node.run(parent)

    async def test_children_end_with_their_parent_however_it_ends(self, node: LocalNode) -> None:
        launched = asyncio.Event()

        @inferlet()
        async def middle(api: Api) -> None:
            await api.launch(forever)
            launched.set()
            await asyncio.Event().wait()

        async def parent(api: Api) -> None:
            await api.launch(middle)
            await launched.wait()
            raise RuntimeError("the parent fails")

        running = node.launch(parent)
        await launched.wait()
        below = [program for program in node.programs() if program.name in ("middle", "forever")]
        assert len(below) == 2
        with pytest.raises(ProgramFailed):
            await running.result()
        for program in below:
            with pytest.raises(ProgramCancelled, match="its parent has ended"):
                await program.result()
            assert program.state is ProgramState.CANCELLED

    async def test_a_fork_bomb_ends_in_its_own_error(self, node: LocalNode) -> None:
        errors: list[QuotaExceeded] = []

        @inferlet()
        async def bomb(api: Api) -> int:
            children = []
            try:
                while True:
                    children.append(await api.launch(bomb))
            except QuotaExceeded as exc:
                errors.append(exc)
                raise
            finally:
                await asyncio.gather(*(c.join() for c in children), return_exceptions=True)

        connect = node.connect("bomb", quotas=Quotas(max_children=7))
        running = node.launch(bomb, connect=connect)
        with pytest.raises(ProgramFailed, match="7 descendants of one launched program are alive"):
            await running.result()
        assert errors
        assert await node.run(echo_alone) == "unharmed"
        await node.idle()
        assert node.programs() == []

    async def test_children_are_no_way_around_a_quota_of_tokens(self, node: LocalNode) -> None:
        finished: list[int] = []

        @inferlet()
        async def writer(api: Api) -> None:
            await Context(api).fill("once").generate_until(max_tokens=5, ignore_eos=True)
            finished.append(5)

        async def parent(api: Api) -> None:
            for _ in range(4):
                await (await api.launch(writer)).join()

        connect = node.connect("parent", quotas=Quotas(max_generated_tokens=12))
        with pytest.raises(ProgramFailed) as caught:
            await node.run(parent, connect=connect)
        assert "by program 'parent' and those that it has launched" in caught.value.message
        assert finished == [5, 5]

    async def test_children_are_no_way_around_a_quota_of_pages(self, node: LocalNode) -> None:
        @inferlet()
        async def hoard(api: Api) -> None:
            pages = api.alloc_kvpage(3)
            await api.synchronize()
            await api.receive()
            api.dealloc_kvpage(pages)

        async def parent(api: Api) -> list[str]:
            children = [await api.launch(hoard) for _ in range(3)]
            await asyncio.sleep(0)
            for child in children:
                await child.send("end")
            ended = await asyncio.gather(*(c.join() for c in children), return_exceptions=True)
            return [str(one) for one in ended if one is not None]

        connect = node.connect("parent", quotas=Quotas(max_pages=8))
        (refused,) = await node.run(parent, connect=connect)
        assert "6 pages are held by program 'parent' and those that it has launched" in refused

    async def test_descendants_that_have_ended_do_not_count(self, node: LocalNode) -> None:
        async def parent(api: Api) -> int:
            for _ in range(5):
                await (await api.launch(echo_alone)).join()
            return 5

        connect = node.connect("parent", quotas=Quotas(max_children=1))
        assert await node.run(parent, connect=connect) == 5

    async def test_what_cannot_be_launched_is_refused(self, node: LocalNode) -> None:
        async def parent(api: Api) -> None:
            for arguments, error, words in [
                ({}, InvalidArgument, "either a program or source"),
                ({"program": "x", "source": "y"}, InvalidArgument, "either a program or source"),
                ({"program": "no_such"}, UnknownHandle, "no program 'no_such'"),
                ({"program": echo, "args": "word"}, InvalidArgument, "args is a list"),
                ({"program": echo, "named": {"n": 1}}, InvalidArgument, "no argument n"),
            ]:
                with pytest.raises(error, match=words):
                    await api.launch(**arguments)  # type: ignore[arg-type]

        await node.run(parent)

    async def test_what_is_put_back_comes_first_and_is_bounded(self, node: LocalNode) -> None:
        async def parent(api: Api) -> list[str]:
            child = await api.launch(echo, ["one"])
            heard = await child.receive()
            put_back = {"child": child.id, "answer": heard}
            for _ in range(MAX_UNREAD):
                await api.issuer.ask("child.receive.undo", None, **put_back)
            with pytest.raises(QuotaExceeded, match="receive them first"):
                await api.issuer.ask("child.receive.undo", None, **put_back)
            await child.cancel()
            return [heard, await child.receive()]

        assert await node.run(parent) == ["one", "one"]

    async def test_another_programs_child_is_nobody_elses(self, node: LocalNode) -> None:
        holder: list[Any] = []

        async def parent(api: Api) -> None:
            holder.append(await api.launch(forever))
            await asyncio.Event().wait()

        async def thief(api: Api) -> None:
            with pytest.raises(UnknownHandle, match="no child"):
                await api.issuer.ask("child.join", child=holder[0].id)

        running = node.launch(parent)
        while not holder:
            await node.idle()
        await node.run(thief)
        running.cancel()
        with pytest.raises(ProgramCancelled):
            await running.result()


@inferlet()
async def echo_alone(api: Api) -> str:
    return "unharmed"


class TestRandomness:
    async def test_the_seed_decides_every_stream(self, node: LocalNode) -> None:
        async def draws(api: Api) -> list[float]:
            first, other = api.random(), api.random("other")
            assert api.random() is first
            return [first.random(), other.random(), first.random()]

        async def run(seed: int) -> list[float]:
            return list(await node.run(draws, connect=node.connect("draws", seed=seed)))

        assert await run(1) == await run(1)
        assert len({*await run(1), *await run(2)}) == 6

    async def test_a_childs_seed_follows_from_its_parents(self, node: LocalNode) -> None:
        @inferlet()
        async def draw(api: Api) -> float:
            return api.random().random()

        async def parent(api: Api) -> list[float]:
            children = [await api.launch(draw) for _ in range(2)]
            return [await child.join() for child in children] + [
                await (await api.launch(draw, seed=5)).join()
            ]

        async def run(seed: int) -> list[float]:
            return list(await node.run(parent, connect=node.connect("parent", seed=seed)))

        first, again, other = await run(1), await run(1), await run(2)
        assert first == again
        assert len({*first, *other[:2]}) == 5
        assert first[2] == other[2]


class TestLogAndTime:
    async def test_a_log_line_has_level_text_and_fields(self, node: LocalNode) -> None:
        lines: list[Any] = []

        async def talks(api: Api) -> None:
            api.log("info", "step", number=1, of={"total": 2})
            api.log("error", "no fields")

        running = node.launch(talks)
        running.listen_log(lambda *line: lines.append(line))
        await running.result()
        assert lines == [
            ("info", "step", {"number": 1, "of": {"total": 2}}),
            ("error", "no fields", {}),
        ]

    async def test_bad_lines_are_refused(self, node: LocalNode) -> None:
        async def talks(api: Api) -> None:
            with pytest.raises(InvalidArgument, match="log level 'loud'"):
                api.log("loud", "text")
            with pytest.raises(InvalidArgument, match="not JSON"):
                api.log("info", "text", thing=object())
            with pytest.raises(InvalidArgument, match="not JSON"):
                api.log("info", "text", number=float("nan"))
            with pytest.raises(InvalidArgument, match="at most 65536"):
                api.log("info", "x" * 70_000)

        await node.run(talks)

    async def test_time_goes_on(self, node: LocalNode) -> None:
        async def waits(api: Api) -> None:
            before, unix = api.monotonic(), api.now()
            await api.sleep(0.001)
            assert (api.monotonic(), api.now()) == (before + 0.001, unix + 0.001)
            assert node.clock.now_s() == before + 0.001, "programs read the node's clock"
            for seconds in (-1, float("nan"), float("inf")):
                with pytest.raises(InvalidArgument, match="0 or more"):
                    await api.sleep(seconds)

        await node.run(waits)


class SlowWay:
    """``on_node`` whose answers are held up on their way back, or whose work is held up."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.way_back = asyncio.Event()

    async def late_answer(self, work: Any) -> Any:
        answer = await work
        self.arrived.set()
        await self.way_back.wait()
        return answer

    async def late_start(self, work: Any) -> Any:
        """As a loop does that is told of the work before it is told of the cancellation."""
        self.work = work
        self.arrived.set()
        await self.way_back.wait()


class OneMessage:
    """A child that has sent one message."""

    id, name, ended = "prog-1", "says", False

    def __init__(self) -> None:
        self.unread = ["hello"]

    async def receive(self) -> str:
        return self.unread.pop()

    def when_ended(self, callback: Any) -> None: ...


async def service_with_child(on_node: Any, state: ChildState | None = None) -> ChildService:
    async def spawn(wanted: Any) -> Any:
        return OneMessage()

    async def at_once(work: Any) -> Any:
        return await work

    identity = Identity(ProgramId(1), TenantId("t"), "parent")
    loop = asyncio.get_running_loop()
    service = ChildService(identity, Family(None), 0, spawn, at_once, loop.call_soon, state=state)
    await service.launch("says", None, [], {}, 1)
    service._on_node = on_node
    return service


async def test_what_a_restarted_program_had_launched_is_still_its_child() -> None:
    async def at_once(work: Any) -> Any:
        return await work

    async def spawn(wanted: Any) -> Any:
        raise AssertionError("nothing is launched again")

    state = ChildState()
    before = await service_with_child(at_once, state)
    await before.put_back("prog-1", "put back")
    loop = asyncio.get_running_loop()
    after = ChildService(
        before.identity, Family(None), 0, spawn, at_once, loop.call_soon, state=state
    )
    assert [await after.receive("prog-1") for _ in range(2)] == ["put back", "hello"]


class EndedChild:
    """A child that has returned something of ``num_bytes``."""

    name, ended = "says", True

    def __init__(self, number: int, num_bytes: int) -> None:
        self.id = f"prog-{number}"
        self.num_bytes = num_bytes

    async def result(self) -> str:
        return self.id

    def when_ended(self, callback: Any) -> None:
        callback()


@pytest.mark.parametrize(
    ("num_bytes", "num_launched", "num_kept"),
    [
        pytest.param(0, MAX_KEPT + 2, MAX_KEPT, id="by their number"),
        pytest.param(MAX_KEPT_BYTES // 3, 5, 3, id="by their size"),
        pytest.param(2 * MAX_KEPT_BYTES, 3, 1, id="the last whatever its size"),
    ],
)
async def test_what_ended_children_keep_is_bounded(
    num_bytes: int, num_launched: int, num_kept: int
) -> None:
    launched = 0

    async def spawn(wanted: Any) -> Any:
        nonlocal launched
        launched += 1
        return EndedChild(launched, num_bytes)

    async def at_once(work: Any) -> Any:
        return await work

    identity = Identity(ProgramId(1), TenantId("t"), "parent")
    loop = asyncio.get_running_loop()
    service = ChildService(identity, Family(None), 0, spawn, at_once, loop.call_soon)
    ids = [(await service.launch("says", None, [], {}, 1))["id"] for _ in range(num_launched)]
    for child in ids[-num_kept:]:
        assert await service.join(child) == child
    for child in ids[:-num_kept]:
        with pytest.raises(UnknownHandle, match=r"up to 64 MiB\): join children soon"):
            await service.join(child)


class TestAWaitThatIsCancelled:
    async def test_an_answer_on_its_way_is_the_next_message_again(self) -> None:
        way = SlowWay()
        service = await service_with_child(way.late_answer)
        waiting = asyncio.create_task(service.receive("prog-1"))
        await way.arrived.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        way.way_back.set()
        assert await service.receive("prog-1") == "hello"

    async def test_so_is_one_that_is_taken_behind_the_cancellation(self) -> None:
        way = SlowWay()
        service = await service_with_child(way.late_start)
        waiting = asyncio.create_task(service.receive("prog-1"))
        await way.arrived.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0)  # what it left for the node's loop
        await way.work
        way.way_back.set()
        service._on_node = way.late_answer
        assert await service.receive("prog-1") == "hello"
