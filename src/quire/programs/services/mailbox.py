"""Messages between a program and the client that launched it: two bounded channels.

The two ends of a channel may live on different event loops and threads. Owns the bound: a writer is
made to wait when the reader falls behind, and gets an error if it does not wait. A reader or writer
waits as a task or, if it serves many channels, registers a callback. Must not know what the
messages mean.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol

from quire.core.errors import ConfigError, InvalidArgument, MailboxClosed, MailboxFull
from quire.programs.services.waiting import Waiters


@dataclass(frozen=True, slots=True)
class MailboxLimits:
    """Bounds of one direction.

    Awaiting a ``send`` returns once fewer than ``capacity`` messages wait. A writer that does not
    await is refused at ``limit`` messages, or at ``max_bytes``. ``max_message_bytes``: the size of
    one message. Bytes are those of the text's UTF-8.
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


class SentMessage:
    """The result of ``send``: the message is already sent; awaiting waits until there is room."""

    __slots__ = ("_wait",)

    def __init__(self, wait: Callable[[], Generator[Any, None, None]]) -> None:
        self._wait = wait

    @classmethod
    def without_waiting(cls) -> SentMessage:
        """Return the result of a ``send`` that found room."""
        return cls(_no_wait)

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait()


def _no_wait() -> Generator[Any, None, None]:
    yield from ()


def check_message(message: str, name: str, limits: MailboxLimits) -> int:
    """The size of the message in bytes.

    Raises:
        InvalidArgument: not a ``str``, or too long for the channel ``name``.
    """
    if not isinstance(message, str):
        raise InvalidArgument(
            f"{name}: a message must be a str, not {type(message).__name__}: "
            "encode it, e.g. with json.dumps"
        )
    num_bytes = len(message.encode("utf-8", "surrogatepass"))
    if num_bytes > limits.max_message_bytes:
        raise InvalidArgument(
            f"{name}: a message of {num_bytes} bytes, at most "
            f"{limits.max_message_bytes} are allowed: send it in parts"
        )
    return num_bytes


class MailboxChannel:
    """One direction of a mailbox. Every method may be called from any thread.

    ``name`` is used in error messages ("program 7 to its client").
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

    def send(self, message: str) -> SentMessage:
        """Append ``message``; awaiting the result limits the writer to the reader's pace.

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
                    "for the reader: await send() to keep its pace",
                    limit=limits.limit,
                    max_bytes=limits.max_bytes,
                )
            self._messages.append((message, num_bytes))
            self._num_bytes += num_bytes
            self._readers.wake()
            on_news = self._on_news if len(self._messages) == 1 else None
        if on_news is not None:
            on_news()
        return SentMessage(self._wait_for_room)

    def when_fewer(self, num_messages: int, callback: Callable[[], object]) -> None:
        """For a writer that does not wait: call ``callback`` once, on the reader's thread, when
        fewer than ``num_messages`` are left or the channel is closed; at once if that is so now. A
        later call replaces the callback."""
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
                    raise MailboxClosed(f"{self._name}: {self._closed}; there are no more messages")
                future = self._readers.add()
            await future
        if on_fewer is not None:
            on_fewer()
        return message

    def listen(self, on_news: Callable[[], object]) -> None:
        """For a reader that uses ``take`` instead of ``receive``: call ``on_news``, on the writer's
        thread, whenever there is a message again or the channel is closed; at once if that is so
        now."""
        with self._lock:
            if self._closed is None:
                self._on_news = on_news
            has_news = bool(self._messages) or self._closed is not None
        if has_news:
            on_news()

    def take(self) -> str | None:
        """The next message; ``None`` if there is none now."""
        with self._lock:
            if not self._messages:
                return None
            message, on_fewer = self._popped()
        if on_fewer is not None:
            on_fewer()
        return message

    @property
    def is_over(self) -> bool:
        """Whether the channel is closed and all messages were read."""
        return self._closed is not None and not self._messages

    def _popped(self) -> tuple[str, Callable[[], object] | None]:
        """The first message, and the callback to call if fewer messages wait now. The lock is
        held."""
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
        """Accept no further messages. Idempotent; the first reason is kept."""
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


class InputReader(Protocol):
    """Where a program reads the messages of its client."""

    async def receive(self) -> str:
        """See ``MailboxChannel.receive``."""
        ...


class ProgramMailbox(Protocol):
    """The mailbox of a program, as the program uses it."""

    @property
    def to_client(self) -> MailboxChannel: ...
    @property
    def to_program(self) -> InputReader: ...


class Mailbox:
    """Both directions between one program and its client."""

    __slots__ = ("to_client", "to_program")

    def __init__(self, program_name: str, limits: MailboxLimits | None = None) -> None:
        limits = limits or _DEFAULT_LIMITS
        self.to_client = MailboxChannel(f"messages of {program_name!r} to its client", limits)
        self.to_program = MailboxChannel(f"messages of the client to {program_name!r}", limits)

    def close(self, reason: str) -> None:
        self.to_client.close(reason)
        self.to_program.close(reason)
