"""Topics: every program of a tenant that subscribes to a topic receives what is broadcast on it.

Owns the subscriptions and their bounds. A broadcast never waits for a reader: messages that a
reader does not take in time are dropped and counted, or end its subscription if it is lossless.
Waiting messages use the node's memory, so a tenant's broadcasts are refused when there are too
many. Thread-safe, because programs live on several loops. Must not know who may use which topic.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from quire.core.errors import InvalidArgument, MailboxClosed, MailboxFull, QuotaExceeded
from quire.core.ids import TenantId
from quire.programs.services.names import check_message, check_name
from quire.programs.services.waiting import Waiters


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """``max_subscriptions``: those of one tenant. ``max_buffer``: messages that wait for one
    reader. ``max_bytes``: bytes of all messages that wait for a tenant's readers, each message
    counted once."""

    max_subscriptions: int = 4096
    max_bytes: int = 256 << 20
    max_buffer: int = 1024
    max_message_bytes: int = 1 << 20
    take_messages: int = 64
    take_bytes: int = 4 << 20


@dataclass(frozen=True, slots=True)
class HeardMessages:
    """Messages in the order of their broadcasts; ``num_missed``: messages dropped before them."""

    messages: Sequence[str]
    num_missed: int = 0


@dataclass(slots=True)
class _Said:
    """One message, shared by all subscriptions that have not read it."""

    text: str
    num_bytes: int
    num_holders: int = 0


class Topics:
    """All topics of a node, separate for each tenant."""

    def __init__(self, limits: TopicLimits | None = None) -> None:
        self.limits = limits or TopicLimits()
        self.lock = threading.Lock()
        self._listeners: dict[tuple[TenantId, str], list[TopicBuffer]] = {}
        self._num_by_tenant: dict[TenantId, int] = {}
        self._bytes_by_tenant: dict[TenantId, int] = {}

    def subscribe(
        self, tenant: TenantId, topic: str, *, buffer: int = 64, lossless: bool = False
    ) -> TopicBuffer:
        """Receive what is broadcast from now on.

        Raises:
            InvalidArgument: an invalid name, or a buffer out of its bounds.
            QuotaExceeded: the tenant has too many subscriptions.
        """
        check_name("topic", topic)
        if not 1 <= buffer <= self.limits.max_buffer:
            raise InvalidArgument(
                f"a subscription with a buffer of {buffer}: choose 1 to {self.limits.max_buffer}"
            )
        with self.lock:
            count = self._num_by_tenant.get(tenant, 0)
            if count >= self.limits.max_subscriptions:
                raise QuotaExceeded(
                    f"the programs of this tenant hold {count} subscriptions, which is the limit: "
                    "close some",
                    max_subscriptions=self.limits.max_subscriptions,
                )
            self._num_by_tenant[tenant] = count + 1
            subscription = TopicBuffer(self, tenant, topic, buffer, lossless)
            self._listeners.setdefault((tenant, topic), []).append(subscription)
        return subscription

    def broadcast(self, tenant: TenantId, topic: str, message: str) -> int:
        """Send to all present subscriptions; return their number.

        Raises:
            InvalidArgument: an invalid name, not text, or too long.
            QuotaExceeded: too much waits for the tenant's readers.
        """
        check_name("topic", topic)
        num_bytes = check_message("broadcast", message, self.limits.max_message_bytes)
        with self.lock:
            listeners = self._listeners.get((tenant, topic), ())
            waiting = self._bytes_by_tenant.get(tenant, 0)
            if listeners and waiting + num_bytes > self.limits.max_bytes:
                raise QuotaExceeded(
                    f"broadcast of {num_bytes} bytes: {waiting} bytes wait for readers of this "
                    f"tenant's topics; at most {self.limits.max_bytes} are allowed: read them, "
                    "close unused subscriptions, or choose smaller buffers",
                    max_bytes=self.limits.max_bytes,
                )
            said = _Said(message, num_bytes)
            for subscription in listeners:
                subscription.put(said)
            return len(listeners)

    def num_subscriptions(self, tenant: TenantId) -> int:
        return self._num_by_tenant.get(tenant, 0)

    def num_bytes(self, tenant: TenantId) -> int:
        """The bytes that wait for the tenant's readers."""
        return self._bytes_by_tenant.get(tenant, 0)

    def hold(self, tenant: TenantId, said: _Said) -> None:
        """Note that a subscription keeps ``said``. The lock is held."""
        said.num_holders += 1
        if said.num_holders == 1:
            self._bytes_by_tenant[tenant] = self.num_bytes(tenant) + said.num_bytes

    def let_go(self, tenant: TenantId, said: _Said) -> None:
        """Note that a subscription no longer keeps ``said``. The lock is held."""
        said.num_holders -= 1
        if not said.num_holders:
            self._bytes_by_tenant[tenant] -= said.num_bytes
            if not self._bytes_by_tenant[tenant]:
                del self._bytes_by_tenant[tenant]

    def forget(self, subscription: TopicBuffer) -> None:
        """Remove a closed subscription. The lock is held."""
        key = (subscription.tenant, subscription.topic)
        self._listeners[key].remove(subscription)
        if not self._listeners[key]:
            del self._listeners[key]
        self._num_by_tenant[subscription.tenant] -= 1
        if not self._num_by_tenant[subscription.tenant]:
            del self._num_by_tenant[subscription.tenant]


class TopicBuffer:
    """One reader's buffer. ``take`` is called by the reader; ``close`` may be called from any
    thread."""

    def __init__(
        self, topics: Topics, tenant: TenantId, topic: str, buffer: int, lossless: bool
    ) -> None:
        self.tenant = tenant
        self.topic = topic
        self._topics = topics
        self._buffer = buffer
        self._lossless = lossless
        self._messages: deque[_Said] = deque()
        self._num_missed = 0
        self._overflowed = False
        self._closed = False
        self._readers = Waiters()

    def put(self, said: _Said) -> None:
        """Add a message; called by a broadcast. The lock is held."""
        if self._overflowed:
            return
        if len(self._messages) >= self._buffer:
            if self._lossless:
                self._overflowed = True
                self._readers.wake()
                return
            self._drop_oldest()
            self._num_missed += 1
        self._messages.append(said)
        self._topics.hold(self.tenant, said)
        self._readers.wake()

    def _drop_oldest(self) -> _Said:
        said = self._messages.popleft()
        self._topics.let_go(self.tenant, said)
        return said

    async def take(self) -> HeardMessages:
        """Wait for a message; return all that have arrived.

        Raises:
            MailboxFull: a lossless reader was too slow; what it missed is unknown.
            MailboxClosed: the subscription is closed.
        """
        while True:
            with self._topics.lock:
                if self._messages:
                    return self._taken()
                if self._closed:
                    raise MailboxClosed(f"the subscription to {self.topic!r} is closed")
                if self._overflowed:
                    raise MailboxFull(
                        f"the reader of topic {self.topic!r} is too slow: its buffer of "
                        f"{self._buffer} messages is full. Read faster, choose a larger buffer, or "
                        "subscribe without lossless",
                        buffer=self._buffer,
                    )
                future = self._readers.add()
            await future

    def _taken(self) -> HeardMessages:
        limits = self._topics.limits
        taken: list[str] = []
        num_bytes = 0
        while self._messages and len(taken) < limits.take_messages:
            num_bytes += self._messages[0].num_bytes
            if taken and num_bytes > limits.take_bytes:
                break
            taken.append(self._drop_oldest().text)
        num_missed, self._num_missed = self._num_missed, 0
        return HeardMessages(taken, num_missed)

    def put_back(self, heard: HeardMessages) -> None:
        """Put back messages that were taken and have not reached the program.

        A guest may claim any messages, so the bounds of ``take`` apply.
        """
        limits = self._topics.limits
        back = [
            _Said(text, check_message("broadcast", text, limits.max_message_bytes))
            for text in heard.messages[-limits.take_messages :]
        ]
        with self._topics.lock:
            if self._closed or len(self._messages) > self._buffer:
                return  # closed, or messages that were put back earlier still exceed the buffer
            for said in reversed(back):
                self._messages.appendleft(said)
                self._topics.hold(self.tenant, said)
            self._num_missed += heard.num_missed
            while len(self._messages) > self._buffer and not self._lossless:
                self._drop_oldest()
                self._num_missed += 1
            self._readers.wake()

    def close(self) -> None:
        """End the subscription. Idempotent."""
        with self._topics.lock:
            if not self._closed:
                self._closed = True
                while self._messages:
                    self._drop_oldest()
                self._topics.forget(self)
                self._readers.wake()
