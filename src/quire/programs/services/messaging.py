"""One program's access to topics and work queues: under its tenant and its capabilities."""

from __future__ import annotations

from itertools import count
from typing import Any

from quire.core.errors import UnknownHandle
from quire.programs.services.operations import Identity, ProgramService, operation
from quire.programs.services.topics import HeardMessages, TopicBuffer, Topics
from quire.programs.services.work_queues import WorkQueues


class MessagingService(ProgramService):
    """Owns the program's subscriptions, which end with it."""

    def __init__(self, identity: Identity, topics: Topics, queues: WorkQueues) -> None:
        self._identity = identity
        self._tenant = identity.tenant
        self._allowed = identity.capabilities
        self._topics = topics
        self._queues = queues
        self._numbers = count(1)
        self._subscriptions: dict[int, TopicBuffer] = {}

    def close(self) -> None:
        while self._subscriptions:
            self._subscriptions.popitem()[1].close()

    @operation("topic.broadcast")
    async def broadcast(self, topic: str, message: str) -> int:
        self._allowed.check_topic(topic)
        return self._topics.broadcast(self._tenant, topic, message)

    @operation("topic.subscribe")
    async def subscribe(self, topic: str, buffer: int, lossless: bool) -> int:
        """The number of the subscription, for the calls below."""
        self._allowed.check_topic(topic)
        number = next(self._numbers)
        self._subscriptions[number] = self._topics.subscribe(
            self._tenant, topic, buffer=buffer, lossless=lossless
        )
        return number

    @operation("topic.take")
    async def take(self, subscription: int) -> dict[str, Any]:
        heard = await self._find(subscription).take()
        return {"messages": list(heard.messages), "num_missed": heard.num_missed}

    @operation("topic.take.undo")
    async def put_back(self, subscription: int, answer: dict[str, Any]) -> None:
        found = self._subscriptions.get(subscription)
        if found is not None:
            messages = [text for text in answer["messages"] if isinstance(text, str)]
            found.put_back(HeardMessages(messages, int(answer["num_missed"])))

    @operation("topic.unsubscribe")
    async def unsubscribe(self, subscription: int) -> None:
        found = self._subscriptions.pop(subscription, None)
        if found is not None:
            found.close()

    @operation("queue.push")
    async def push(self, queue: str, message: str, ttl_s: float) -> None:
        self._allowed.check_topic(queue)
        await self._queues.push(self._tenant, queue, message, ttl_s)

    @operation("queue.pull")
    async def pull(self, queue: str) -> str:
        self._allowed.check_topic(queue)
        return await self._queues.pull(self._tenant, queue)

    @operation("queue.pull.undo")
    async def return_pulled(self, queue: str, answer: str) -> None:
        self._allowed.check_topic(queue)
        self._queues.put_back(self._tenant, queue, answer)

    def _find(self, subscription: int) -> TopicBuffer:
        found = self._subscriptions.get(subscription)
        if found is None:
            raise UnknownHandle(f"no subscription {subscription}: it was closed")
        return found
