"""Topics: what one program says is heard by every program of its tenant that listens.

Owns the subscriptions and their bound: a broadcast never waits for a reader. What a reader does not
take in time is dropped and counted for it, or (a lossless one) ends its subscription. Thread-safe:
programs live on several loops. Must not know who may use which topic.
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
    """``max_subscriptions``: of one tenant. ``max_buffer``: messages that wait for one reader."""

    max_subscriptions: int = 4096
    max_buffer: int = 1024
    max_message_bytes: int = 1 << 20
    take_messages: int = 64
    take_bytes: int = 4 << 20


@dataclass(frozen=True, slots=True)
class Heard:
    """Messages in the order of their broadcasts; ``num_missed``: dropped before them."""

    messages: Sequence[str]
    num_missed: int = 0


class Topics:
    """All topics of a node, each tenant's its own."""

    def __init__(self, limits: TopicLimits | None = None) -> None:
        self.limits = limits or TopicLimits()
        self.lock = threading.Lock()
        self._listeners: dict[tuple[TenantId, str], list[Subscription]] = {}
        self._num_by_tenant: dict[TenantId, int] = {}

    def subscribe(
        self, tenant: TenantId, topic: str, *, buffer: int = 64, lossless: bool = False
    ) -> Subscription:
        """Hear what is broadcast from now on.

        Raises:
            InvalidArgument: no name, or a buffer out of its bounds.
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
                    f"the programs of this tenant hold {count} subscriptions, no more are allowed: "
                    "close some",
                    max_subscriptions=self.limits.max_subscriptions,
                )
            self._num_by_tenant[tenant] = count + 1
            subscription = Subscription(self, tenant, topic, buffer, lossless)
            self._listeners.setdefault((tenant, topic), []).append(subscription)
        return subscription

    def broadcast(self, tenant: TenantId, topic: str, message: str) -> int:
        """Tell everyone who listens now; how many those are.

        Raises:
            InvalidArgument: no name, no text, or too long.
        """
        check_name("topic", topic)
        check_message("broadcast", message, self.limits.max_message_bytes)
        with self.lock:
            listeners = self._listeners.get((tenant, topic), ())
            for subscription in listeners:
                subscription.put(message)
            return len(listeners)

    def num_subscriptions(self, tenant: TenantId) -> int:
        return self._num_by_tenant.get(tenant, 0)

    def forget(self, subscription: Subscription) -> None:
        """For a subscription that closes; the lock is held."""
        key = (subscription.tenant, subscription.topic)
        self._listeners[key].remove(subscription)
        if not self._listeners[key]:
            del self._listeners[key]
        self._num_by_tenant[subscription.tenant] -= 1
        if not self._num_by_tenant[subscription.tenant]:
            del self._num_by_tenant[subscription.tenant]


class Subscription:
    """One listener's buffer. ``take`` belongs to the reader; ``close`` is for any thread."""

    def __init__(
        self, topics: Topics, tenant: TenantId, topic: str, buffer: int, lossless: bool
    ) -> None:
        self.tenant = tenant
        self.topic = topic
        self._topics = topics
        self._buffer = buffer
        self._lossless = lossless
        self._messages: deque[str] = deque()
        self._num_missed = 0
        self._overflowed = False
        self._closed = False
        self._readers = Waiters()

    def put(self, message: str) -> None:
        """For a broadcast; the lock is held."""
        if self._overflowed:
            return
        if len(self._messages) >= self._buffer:
            if self._lossless:
                self._overflowed = True
                self._readers.wake()
                return
            self._messages.popleft()
            self._num_missed += 1
        self._messages.append(message)
        self._readers.wake()

    async def take(self) -> Heard:
        """What has come, at least one message.

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
                        f"the reader of topic {self.topic!r} is too slow: {self._buffer} messages "
                        "waited when one more came. Read faster, take a larger buffer, or "
                        "subscribe without lossless",
                        buffer=self._buffer,
                    )
                future = self._readers.add()
            await future

    def _taken(self) -> Heard:
        limits = self._topics.limits
        taken: list[str] = []
        num_bytes = 0
        while self._messages and len(taken) < limits.take_messages:
            num_bytes += len(self._messages[0].encode("utf-8", "surrogatepass"))
            if taken and num_bytes > limits.take_bytes:
                break
            taken.append(self._messages.popleft())
        num_missed, self._num_missed = self._num_missed, 0
        return Heard(taken, num_missed)

    def put_back(self, heard: Heard) -> None:
        """What ``take`` gave has reached nobody."""
        with self._topics.lock:
            self._messages.extendleft(reversed(heard.messages))
            self._num_missed += heard.num_missed
            while len(self._messages) > self._buffer and not self._lossless:
                self._messages.popleft()
                self._num_missed += 1
            self._readers.wake()

    def close(self) -> None:
        """Hear nothing more. Idempotent."""
        with self._topics.lock:
            if not self._closed:
                self._closed = True
                self._messages.clear()
                self._topics.forget(self)
                self._readers.wake()


__all__ = ["Heard", "Subscription", "TopicLimits", "Topics"]
