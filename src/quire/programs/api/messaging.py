"""Trait Messaging: messages between a program and its client, and among the programs of a tenant.

Served by the node, without control.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Self

from quire.core.errors import MailboxClosed
from quire.core.traits import Trait
from quire.programs.api.issuer import Issuer
from quire.programs.api.queued import TraitFunctions
from quire.programs.services.mailbox import ProgramMailbox, SentMessage


class MessagingFunctions(TraitFunctions):
    trait = Trait.MESSAGING

    def __init__(self, issuer: Issuer, mailbox: ProgramMailbox | None = None) -> None:
        super().__init__(issuer)
        self._mailbox = mailbox

    def send(self, message: str) -> SentMessage:
        """Send a message to the client. It is sent at once; awaiting the result waits for the
        client to read.

        Raises:
            MailboxFull: the client does not read and the mailbox is full.
            MailboxClosed: the client has disconnected, or the program was launched without a
                client.
        """
        return self._connected().to_client.send(message)

    async def receive(self) -> str:
        """The client's next message.

        Raises:
            MailboxClosed: the client has closed its side, or there is no client.
        """
        return await self._connected().to_program.receive()

    async def broadcast(self, topic: str, message: str) -> int:
        """Send to every program of the tenant that has subscribed to ``topic``; returns their
        number.

        Never waits for a reader. Messages of one program reach each reader in order.

        Raises:
            Forbidden: the manifest of this program does not name the topic.
            InvalidArgument: an invalid name, not text, or more than 1 MiB of text.
            QuotaExceeded: 256 MiB wait for readers of the tenant's topics.
        """
        reached: int = await self._issuer.ask("topic.broadcast", topic=topic, message=message)
        return reached

    async def subscribe(
        self, topic: str, *, buffer: int = 64, lossless: bool = False
    ) -> Subscription:
        """Receive what is broadcast on ``topic`` from now on; see ``Subscription``.

        ``buffer``: the number of messages that wait for a slow reader, at most 1024. Beyond it the
        oldest are dropped and counted; with ``lossless`` the subscription ends with an error
        instead.

        Raises:
            Forbidden: the manifest of this program does not name the topic.
            QuotaExceeded: the tenant's programs hold too many subscriptions.
        """
        number = await self._issuer.ask(
            "topic.subscribe", topic=topic, buffer=buffer, lossless=lossless
        )
        return Subscription(self._issuer, topic, number)

    async def push(self, queue: str, message: str, *, ttl_s: float = 3600.0) -> None:
        """Append ``message`` to the tenant's work queue; one program will take it.

        Waits while the queue has 1024 messages. A message that is not taken within ``ttl_s``
        seconds is dropped. Queues need not be created. They outlive the programs that use them, but
        not the node.

        Raises:
            Forbidden: the manifest of this program does not name the queue as a topic.
            QuotaExceeded: the tenant's queues hold too much.
        """
        await self._issuer.ask("queue.push", queue=queue, message=message, ttl_s=ttl_s)

    async def pull(self, queue: str) -> str:
        """Take the oldest message of the tenant's work queue; waits for one.

        No other program gets the message. Cancelling the wait takes nothing.

        Raises:
            Forbidden: the manifest of this program does not name the queue as a topic.
        """
        message: str = await self._issuer.ask("queue.pull", "queue.pull.undo", queue=queue)
        return message

    def _connected(self) -> ProgramMailbox:
        if self._mailbox is None:
            raise MailboxClosed("this program was launched without a client")
        return self._mailbox


class Subscription:
    """Messages of one topic, in order: ``async for message in subscription``, or ``receive``.

    ``num_missed``: messages dropped so far because the program read too slowly. The subscription
    ends with ``close``, at the end of ``async with``, or with the program.
    """

    def __init__(self, issuer: Issuer, topic: str, number: int) -> None:
        self.topic = topic
        self.num_missed = 0
        self._issuer = issuer
        self._number = number
        self._heard: deque[str] = deque()
        self._closed = False

    async def receive(self) -> str:
        """The next message.

        Raises:
            MailboxFull: the subscription is lossless and the program was too slow.
            MailboxClosed: the subscription is closed.
        """
        while not self._heard:
            if self._closed:
                raise MailboxClosed(f"the subscription to {self.topic!r} is closed")
            heard: dict[str, Any] = await self._issuer.ask(
                "topic.take", "topic.take.undo", subscription=self._number
            )
            self._heard.extend(heard["messages"])
            self.num_missed += heard["num_missed"]
        return self._heard.popleft()

    async def __aiter__(self) -> AsyncIterator[str]:
        while True:
            try:
                message = await self.receive()
            except MailboxClosed:
                return
            yield message

    async def close(self) -> None:
        """End the subscription. Idempotent."""
        if not self._closed:
            self._closed = True
            self._heard.clear()
            await self._issuer.ask("topic.unsubscribe", subscription=self._number)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
