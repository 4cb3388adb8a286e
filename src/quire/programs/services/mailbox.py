"""Messages between a program and the client that launched it: two bounded channels.

A channel has two ends that may live on different event loops (and so threads). Owns the bound:
a writer is told to wait when the reader falls behind, and gets an error when it does not wait. A
reader or writer waits as a task, or (one that serves many channels) leaves a callback. Must not
know what the messages mean.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from typing import Any

from quire.core.errors import ConfigError, InvalidArgument, MailboxClosed, MailboxFull
from quire.programs.services.waiting import Waiters


@dataclass(frozen=True, slots=True)
class MailboxLimits:
    """Bounds of one direction.

    Awaiting a ``send`` returns once fewer than ``capacity`` messages wait; a writer that does not
    await may run on up to ``limit`` and is refused there, or where ``max_bytes`` wait.
    ``max_message_bytes``: of one message. Bytes are those of its UTF-8.
    """

    capacity: int = 64
    limit: int = 1024
    max_message_bytes: int = 1 << 20
    max_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if not 1 <= self.capacity <= self.limit:
            raise ConfigError(
                f"mailbox capacity {self.capacity}, limit {self.limit}: "
                "choose 1 <= capacity <= limit"
            )


_DEFAULT_LIMITS = MailboxLimits()


class Sent:
    """What ``send`` returns: the message *is* sent; awaiting it waits until there is room."""

    __slots__ = ("_wait",)

    def __init__(self, wait: Callable[[], Generator[Any, None, None]]) -> None:
        self._wait = wait

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait()


def check_message(message: str, name: str, limits: MailboxLimits) -> int:
    """The message's bytes.

    Raises:
        InvalidArgument: no ``str``, or too long for the channel ``name``.
    """
    if not isinstance(message, str):
        raise InvalidArgument(
            f"{name}: a message is a str, not {type(message).__name__}: "
            "encode it, e.g. with json.dumps"
        )
    num_bytes = len(message.encode("utf-8", "surrogatepass"))
    if num_bytes > limits.max_message_bytes:
        raise InvalidArgument(
            f"{name}: a message of {num_bytes} bytes, at most "
            f"{limits.max_message_bytes} are allowed: send it in parts"
        )
    return num_bytes


class Channel:
    """One direction of a mailbox. Every method may be called from any thread.

    ``name`` stands in error messages ("program 7 to its client").
    """

    __slots__ = (
        "_closed", "_limits", "_lock", "_messages", "_name", "_num_bytes", "_on_fewer", "_on_news",
        "_readers", "_writers",
    )  # fmt: skip

    def __init__(self, name: str, limits: MailboxLimits) -> None:
        self._name = name
        self._limits = limits
        self._lock = threading.Lock()
        self._messages: deque[tuple[str, int]] = deque()
        self._num_bytes = 0
        self._readers = Waiters()
        self._writers = Waiters()
        self._on_news: Callable[[], object] | None = None
        self._on_fewer: tuple[int, Callable[[], object]] | None = None
        self._closed: str | None = None

    def __len__(self) -> int:
        return len(self._messages)

    def send(self, message: str) -> Sent:
        """Put ``message`` in; await the result to respect the reader's pace.

        Raises:
            MailboxFull: ``limit`` messages or ``max_bytes`` wait.
            MailboxClosed: one side has closed the channel.
            InvalidArgument: not a ``str``, or too long.
        """
        limits = self._limits
        num_bytes = check_message(message, self._name, limits)
        with self._lock:
            if self._closed is not None:
                raise MailboxClosed(f"{self._name}: {self._closed}; nothing more can be sent")
            is_full = len(self._messages) >= limits.limit
            if is_full or self._num_bytes + num_bytes > limits.max_bytes:
                raise MailboxFull(
                    f"{self._name}: {len(self._messages)} messages ({self._num_bytes} bytes) wait "
                    "and nobody reads: await send() to keep the reader's pace",
                    limit=limits.limit,
                    max_bytes=limits.max_bytes,
                )
            self._messages.append((message, num_bytes))
            self._num_bytes += num_bytes
            self._readers.wake()
            on_news = self._on_news if len(self._messages) == 1 else None
        if on_news is not None:
            on_news()
        return Sent(self._wait_for_room)

    def when_fewer(self, num_messages: int, callback: Callable[[], object]) -> None:
        """For a writer that does not wait: call ``callback`` once, in the reader's thread, when
        fewer than so many messages are left in it, or none will be read any more; now if that is
        so. There is one such callback at a time."""
        with self._lock:
            if self._closed is None and len(self._messages) >= num_messages:
                self._on_fewer = num_messages, callback
                return
        callback()

    def _wait_for_room(self) -> Generator[Any, None, None]:
        while True:
            with self._lock:
                if self._closed is not None or len(self._messages) < self._limits.capacity:
                    return
                future = self._writers.add()
            yield from future

    async def receive(self) -> str:
        """The next message; messages sent before ``close`` are still delivered.

        Raises:
            MailboxClosed: the channel is closed and empty.
        """
        while True:
            with self._lock:
                if self._messages:
                    message, on_fewer = self._popped()
                    break
                if self._closed is not None:
                    raise MailboxClosed(f"{self._name}: {self._closed}; no further message comes")
                future = self._readers.add()
            await future
        if on_fewer is not None:
            on_fewer()
        return message

    def listen(self, on_news: Callable[[], object]) -> None:
        """For a reader that does not ``receive`` but ``take``s: call ``on_news``, in the writer's
        thread, whenever there is a message again, or no further one comes; now if that is so."""
        with self._lock:
            if self._closed is None:
                self._on_news = on_news
            has_news = bool(self._messages) or self._closed is not None
        if has_news:
            on_news()

    def take(self) -> str | None:
        """The next message; ``None``: there is none now."""
        with self._lock:
            if not self._messages:
                return None
            message, on_fewer = self._popped()
        if on_fewer is not None:
            on_fewer()
        return message

    @property
    def is_over(self) -> bool:
        """Closed, and all was read."""
        return self._closed is not None and not self._messages

    def _popped(self) -> tuple[str, Callable[[], object] | None]:
        """The first message, and whom to tell that there are fewer now; holding the lock."""
        message, num_bytes = self._messages.popleft()
        self._num_bytes -= num_bytes
        if len(self._messages) < self._limits.capacity:
            self._writers.wake()
        if self._on_fewer is None or len(self._messages) >= self._on_fewer[0]:
            return message, None
        (_, callback), self._on_fewer = self._on_fewer, None
        return message, callback

    async def __aiter__(self) -> AsyncIterator[str]:
        while True:
            try:
                message = await self.receive()
            except MailboxClosed:
                return
            yield message

    def close(self, reason: str) -> None:
        """No further message goes in. Idempotent; the first reason stays."""
        with self._lock:
            if self._closed is None:
                self._closed = reason
            self._readers.wake()
            self._writers.wake()
            on_news, self._on_news = self._on_news, None
            on_fewer, self._on_fewer = self._on_fewer, None
        if on_news is not None:
            on_news()
        if on_fewer is not None:
            on_fewer[1]()


class Mailbox:
    """Both directions between one program and its client."""

    __slots__ = ("to_client", "to_program")

    def __init__(self, program_name: str, limits: MailboxLimits | None = None) -> None:
        limits = limits or _DEFAULT_LIMITS
        self.to_client = Channel(f"messages of {program_name!r} to its client", limits)
        self.to_program = Channel(f"messages of the client to {program_name!r}", limits)

    def close(self, reason: str) -> None:
        self.to_client.close(reason)
        self.to_program.close(reason)
