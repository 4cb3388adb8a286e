"""Topics and work queues between programs of a tenant, over a node with fake engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from quire.core.errors import (
    Forbidden,
    InvalidArgument,
    MailboxClosed,
    MailboxFull,
    QuotaExceeded,
)
from quire.core.ids import ProgramId, TenantId
from quire.programs.api import Api, connect_api
from quire.programs.capabilities import Capabilities
from quire.programs.services.operations import Identity
from quire.programs.services.shared import SharedServices
from quire.programs.services.store import Store
from quire.programs.services.topics import HeardMessages, TopicLimits, Topics
from quire.programs.services.work_queues import QueueLimits, WorkQueues
from quire.testing import LocalNode, VirtualClock

TENANT = TenantId("default")


@pytest_asyncio.fixture
async def node() -> AsyncIterator[LocalNode]:
    async with LocalNode() as node:
        yield node


def api_of(node: LocalNode, tenant: str = "default") -> Api:
    return connect_api(node.connect(tenant=tenant))


async def settled() -> None:
    """Everyone who can go on without news has gone on."""
    for _ in range(10):
        await asyncio.sleep(0)


class TestTopics:
    async def test_every_subscriber_of_the_tenant_hears_in_order(self, node: LocalNode) -> None:
        speaker, stranger = api_of(node), api_of(node, "other")
        readers = [await api_of(node).subscribe("news") for _ in range(2)]
        foreign = await stranger.subscribe("news")
        assert await speaker.broadcast("news", "one") == 2
        assert await speaker.broadcast("news", "two") == 2
        assert await speaker.broadcast("weather", "rain") == 0
        for reader in readers:
            assert [await reader.receive(), await reader.receive()] == ["one", "two"]
        assert await stranger.broadcast("news", "theirs") == 1
        assert await foreign.receive() == "theirs"

    async def test_what_was_said_before_is_not_heard(self, node: LocalNode) -> None:
        api = api_of(node)
        await api.broadcast("news", "early")
        reader = await api.subscribe("news")
        await api.broadcast("news", "late")
        assert await reader.receive() == "late"

    async def test_a_slow_reader_loses_the_oldest_and_is_told_how_many(
        self, node: LocalNode
    ) -> None:
        api = api_of(node)
        reader = await api.subscribe("news", buffer=2)
        for number in range(5):
            await api.broadcast("news", str(number))
        assert [await reader.receive(), await reader.receive()] == ["3", "4"]
        assert reader.num_missed == 3

    async def test_a_slow_lossless_reader_gets_what_fits_and_then_an_error(
        self, node: LocalNode
    ) -> None:
        api = api_of(node)
        reader = await api.subscribe("news", buffer=2, lossless=True)
        for number in range(4):
            await api.broadcast("news", str(number))
        assert [await reader.receive(), await reader.receive()] == ["0", "1"]
        with pytest.raises(MailboxFull, match="its buffer of 2 messages is full"):
            await reader.receive()

    async def test_closing_ends_the_iteration_and_the_subscription(self, node: LocalNode) -> None:
        api = api_of(node)
        async with await api.subscribe("news") as reader:
            reading = asyncio.ensure_future(_all(reader))
            await api.broadcast("news", "one")
            await settled()
        assert await reading == ["one"]
        assert await api.broadcast("news", "two") == 0
        with pytest.raises(MailboxClosed):
            await reader.receive()

    async def test_subscriptions_end_with_their_program(self, node: LocalNode) -> None:
        async def listens(api: Api) -> None:
            await api.subscribe("news")

        await node.run(listens)
        assert await api_of(node).broadcast("news", "one") == 0
        assert node.services.topics.num_subscriptions(TENANT) == 0

    async def test_a_cancelled_wait_loses_nothing(self, node: LocalNode) -> None:
        api = api_of(node)
        reader = await api.subscribe("news")
        waiting = asyncio.ensure_future(reader.receive())
        await settled()
        await api.broadcast("news", "one")
        waiting.cancel()
        await settled()
        assert await reader.receive() == "one"

    async def test_bounds(self) -> None:
        topics = Topics(TopicLimits(max_subscriptions=1, max_message_bytes=4))
        topics.subscribe(TENANT, "news")
        with pytest.raises(QuotaExceeded, match="hold 1 subscriptions"):
            topics.subscribe(TENANT, "weather")
        topics.subscribe(TenantId("other"), "weather")
        with pytest.raises(InvalidArgument, match="5 bytes; at most 4"):
            topics.broadcast(TENANT, "news", "12345")
        for buffer in (0, 1025):
            with pytest.raises(InvalidArgument, match="choose 1 to 1024"):
                topics.subscribe(TenantId("third"), "news", buffer=buffer)

    async def test_what_was_put_back_comes_first_again(self) -> None:
        topics = Topics()
        subscription = topics.subscribe(TENANT, "news", buffer=2)
        topics.broadcast(TENANT, "news", "one")
        heard = await subscription.take()
        topics.broadcast(TENANT, "news", "two")
        subscription.put_back(heard)
        assert (await subscription.take()).messages == ["one", "two"]

    async def test_what_waits_for_readers_is_bounded_in_bytes(self) -> None:
        topics = Topics(TopicLimits(max_bytes=8))
        slow, quick = (topics.subscribe(TENANT, "news", buffer=2) for _ in range(2))
        topics.broadcast(TENANT, "news", "12345")
        assert topics.num_bytes(TENANT) == 5, "two readers share one message"
        with pytest.raises(QuotaExceeded, match="5 bytes wait for readers"):
            topics.broadcast(TENANT, "news", "1234")
        assert topics.broadcast(TENANT, "nobody", "1234") == 0
        full = TenantId("full")
        topics.subscribe(full, "news", buffer=2)
        for text in ("12345", "123"):
            assert topics.broadcast(full, "news", text) == 1
        assert topics.num_bytes(full) == 8, "as many as are allowed"
        topics.broadcast(TenantId("other"), "news", "1234")
        await quick.take()
        with pytest.raises(QuotaExceeded):
            topics.broadcast(TENANT, "news", "1234")  # the slow reader holds it still
        for word in ("a", "b", "c"):  # the slow reader loses the long one, which makes room
            topics.broadcast(TENANT, "news", word)
        assert topics.num_bytes(TENANT) == 2
        slow.close()
        quick.close()
        assert topics.num_bytes(TENANT) == 0

    @pytest.mark.parametrize("lossless", [False, True])
    async def test_what_is_put_back_is_bounded(self, lossless: bool) -> None:
        topics = Topics(TopicLimits(take_messages=4, max_message_bytes=4))
        subscription = topics.subscribe(TENANT, "news", buffer=2, lossless=lossless)
        for _ in range(100):
            subscription.put_back(HeardMessages(["1"] * 100))
        assert topics.num_bytes(TENANT) <= 2 + 4
        with pytest.raises(InvalidArgument, match="5 bytes; at most 4"):
            subscription.put_back(HeardMessages(["12345"]))
        subscription.close()
        subscription.put_back(HeardMessages(["1"]))
        assert topics.num_bytes(TENANT) == 0


class TestWorkQueues:
    async def test_what_is_put_back_is_bounded(self) -> None:
        queues = WorkQueues(VirtualClock(), QueueLimits(max_messages=2, max_bytes=8))
        for _ in range(4):
            queues.put_back(TENANT, "work", "1")
        with pytest.raises(QuotaExceeded, match="put back"):
            queues.put_back(TENANT, "work", "1")
        queues.put_back(TENANT, "more", "12345678")
        with pytest.raises(QuotaExceeded, match=r"\(12 bytes"):
            queues.put_back(TENANT, "other", "12345")
        assert queues.num_messages(TENANT, "other") == 0
        few = WorkQueues(VirtualClock(), QueueLimits(max_queues=1))
        for name in "ab":
            few.put_back(TENANT, name, "")
        with pytest.raises(QuotaExceeded):
            few.put_back(TENANT, "c", "")

    async def test_each_message_has_one_taker(self, node: LocalNode) -> None:
        giver, first, second = api_of(node), api_of(node), api_of(node)
        taking = asyncio.gather(first.pull("work"), second.pull("work"))
        await settled()
        await giver.push("work", "one")
        await giver.push("work", "two")
        assert sorted(await taking) == ["one", "two"]
        assert node.services.queues.num_messages(TENANT, "work") == 0

    async def test_a_queue_is_in_order_and_outlives_its_program(self, node: LocalNode) -> None:
        async def works(api: Api) -> None:
            for number in range(3):
                await api.push("work", str(number))

        await node.run(works)
        api = api_of(node)
        assert [await api.pull("work") for _ in range(3)] == ["0", "1", "2"]

    async def test_another_tenants_queue_is_another_queue(self, node: LocalNode) -> None:
        await api_of(node, "other").push("work", "theirs")
        api = api_of(node)
        await api.push("work", "ours")
        assert await api.pull("work") == "ours"
        waiting = asyncio.ensure_future(api.pull("work"))
        await settled()
        assert not waiting.done()
        waiting.cancel()

    async def test_push_waits_for_room(self) -> None:
        queues = WorkQueues(VirtualClock(), QueueLimits(max_messages=1))
        await queues.push(TENANT, "work", "one")
        pushing = asyncio.ensure_future(queues.push(TENANT, "work", "two"))
        await settled()
        assert not pushing.done()
        assert await queues.pull(TENANT, "work") == "one"
        await pushing
        assert await queues.pull(TENANT, "work") == "two"

    async def test_pushes_that_wait_for_room_count_too(self) -> None:
        queues = WorkQueues(VirtualClock(), QueueLimits(max_messages=1, max_bytes=8))
        mine, other = TenantId("t"), TenantId("u")
        await queues.push(mine, "q", "1234")
        waiting = asyncio.create_task(queues.push(mine, "q", "5678"))
        await asyncio.sleep(0)
        with pytest.raises(QuotaExceeded, match="8 bytes wait in 1 queues of this tenant"):
            await queues.push(mine, "q", "9")
        await queues.push(other, "q", "1234")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        again = asyncio.create_task(queues.push(mine, "q", "abcd"))
        await asyncio.sleep(0)
        assert await queues.pull(mine, "q") == "1234"
        await again
        await queues.push(mine, "p", "efgh")
        with pytest.raises(QuotaExceeded):
            await queues.push(mine, "o", "i")
        assert [await queues.pull(mine, name) for name in "qp"] == ["abcd", "efgh"]
        assert not queues._tenants.get(mine), "nothing is counted for nobody"

    async def test_a_cancelled_pull_takes_nothing(self) -> None:
        queues = WorkQueues(VirtualClock())
        waiting = asyncio.ensure_future(queues.pull(TENANT, "work"))
        await settled()
        await queues.push(TENANT, "work", "one")
        waiting.cancel()
        await settled()
        assert waiting.cancelled()
        assert await queues.pull(TENANT, "work") == "one"
        assert not queues._tenants, "nothing is kept for nobody"

    async def test_messages_expire_by_the_nodes_clock(self) -> None:
        clock = VirtualClock()
        queues = WorkQueues(clock)
        await queues.push(TENANT, "work", "short", ttl_s=5)
        await queues.push(TENANT, "work", "long", ttl_s=50)
        clock.advance(5)
        assert await queues.pull(TENANT, "work") == "long"

    async def test_a_tenant_has_so_many_bytes_and_queues(self) -> None:
        clock = VirtualClock()
        queues = WorkQueues(clock, QueueLimits(max_bytes=8, max_queues=2))
        await queues.push(TENANT, "a", "12345", ttl_s=5)
        with pytest.raises(QuotaExceeded, match="5 bytes wait in 2 queues"):
            await queues.push(TENANT, "b", "1234")
        await queues.push(TENANT, "b", "123")
        with pytest.raises(QuotaExceeded, match="in 3 queues"):
            await queues.push(TENANT, "c", "")
        await queues.push(TenantId("other"), "c", "1234")
        clock.advance(5)
        await queues.push(TENANT, "c", "1234")  # what has expired makes room
        assert [await queues.pull(TENANT, name) for name in "bc"] == ["123", "1234"]

    @pytest.mark.parametrize("ttl_s", [0, -1, 1e9, float("nan")])
    async def test_a_time_to_live_must_make_sense(self, ttl_s: float) -> None:
        with pytest.raises(InvalidArgument, match="time to live"):
            await WorkQueues(VirtualClock()).push(TENANT, "work", "one", ttl_s)


class TestCapabilities:
    async def test_a_program_reaches_what_its_manifest_names(self) -> None:
        shared = SharedServices(VirtualClock(), Store())
        allowed = Capabilities(topics=("news.*", "work"))
        services = shared.of(Identity(ProgramId(1), TENANT, "p", allowed))
        assert await services.ask("topic.broadcast", {"topic": "news.de", "message": "m"}) == 0
        await services.ask("queue.push", {"queue": "work", "message": "m", "ttl_s": 1.0})
        for name, arguments in {
            "topic.broadcast": {"topic": "newsroom", "message": "m"},
            "topic.subscribe": {"topic": "weather", "buffer": 1, "lossless": False},
            "queue.push": {"queue": "work2", "message": "m", "ttl_s": 1.0},
            "queue.pull": {"queue": "other"},
            "queue.pull.undo": {"queue": "other", "answer": "m"},
        }.items():
            with pytest.raises(Forbidden, match="is not allowed for this program"):
                await services.ask(name, arguments)

    @pytest.mark.parametrize(
        ("name", "arguments", "words"),
        [
            ("topic.shout", {}, "no service 'topic.shout'"),
            ("topic.broadcast", {"topic": "t"}, "missing required field `message`"),
            ("topic.broadcast", {"topic": 1, "message": "m"}, "Expected `str`, got `int`"),
            ("topic.broadcast", {"topic": "t", "message": "m", "x": 1}, "unknown field `x`"),
            ("topic.broadcast", {"topic": "", "message": "m"}, "a topic's name must be text"),
            ("topic.broadcast", {"topic": "\n", "message": "m"}, "must be printable"),
            ("topic.broadcast", {"topic": "t" * 513, "message": "m"}, "at most 512"),
        ],
    )
    async def test_what_does_not_fit_is_refused(
        self, name: str, arguments: dict[str, Any], words: str
    ) -> None:
        services = SharedServices(VirtualClock(), Store()).of(Identity(ProgramId(1), TENANT, "p"))
        with pytest.raises(InvalidArgument, match=words):
            await services.ask(name, arguments)

    def test_two_capabilities_allow_what_both_do(self) -> None:
        wide = Capabilities(None, ("news.*", "work"), ("*",))
        narrow = Capabilities(("*.example.org", "a.com"), ("news.de", "w*"), ("cache",))
        both = wide.narrowed(narrow)
        assert both == Capabilities(("*.example.org", "a.com"), ("news.de", "work"), ("cache",))
        assert narrow.narrowed(wide).topics == ("news.de", "work")
        hosts = Capabilities(("*.org", "b.com")).narrowed(narrow).hosts
        assert hosts == ("*.example.org",)
        assert narrow.narrowed(Capabilities((), (), ())) == Capabilities((), (), ())


async def _all(messages: AsyncIterator[str]) -> list[str]:
    return [message async for message in messages]
