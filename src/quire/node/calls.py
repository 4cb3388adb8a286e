"""One call of a session: a built-in program at work for one request of a client.

Joins two tasks: the program's own, and that of the one who reads its items. Owns the channel
between them and the end of the call, whichever side brings it about.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Generic, TypeVar

from quire.core.errors import MailboxFull, QuireError
from quire.node.channel import Channel
from quire.node.loops import call_on
from quire.programs.api import Api
from quire.programs.inferlet import Inferlet
from quire.programs.runtime.running import Connect, RunningProgram, Runtime

R = TypeVar("R")
T = TypeVar("T")

BuiltIn = Callable[[Api, R], AsyncGenerator[T, None]]
"""A built-in program: yields what its caller is to see, in order."""

_CAPACITY = 64
_STALL_S = 60.0
"""A client that takes nothing for so long, with the channel full, ends its call."""


class Call(Generic[T]):
    """Iterate it to its end, or ``cancel`` it. Belongs to the edge's loop, which creates it."""

    def __init__(self, name: str, on_closed: Callable[[Call[T]], None]) -> None:
        self.name = name
        self._loop = asyncio.get_running_loop()
        self._channel: Channel[T] = Channel(_CAPACITY)
        self._error: QuireError | None = None
        self._closed = asyncio.Event()
        self._on_closed = on_closed
        self._running: RunningProgram

    def begin(self, program: BuiltIn[R, T], request: R, runtime: Runtime, connect: Connect) -> None:
        """For the session: start ``program(api, request)`` on ``runtime``."""

        async def main(api: Api) -> None:
            try:
                await self._produce(program(api, request))
            except QuireError as exc:  # the caller's to see as it is, not as a failed program
                self._error = exc

        self._running = runtime.launch(Inferlet(self.name, main), (), connect)
        self._running.add_done_callback(self._ended)

    def __aiter__(self) -> AsyncIterator[T]:
        """Items until the call's end; then its error, if it has one."""
        return self._channel

    def cancel(self, reason: str = "cancelled by the client") -> None:
        """Stop the program, free what it holds, drop what it has yielded. Idempotent, in every
        state, and never waits."""
        self._channel.discard()
        self._running.cancel(reason)

    async def wait_closed(self) -> None:
        """Returns when the program has ended and has given back everything it held. What a message
        in flight still uses is free with that message's result."""
        await self._closed.wait()

    async def _produce(self, items: AsyncGenerator[T, None]) -> None:
        """In the program's task, at the pace of the reader."""
        async with aclosing(items):
            async for item in items:
                if not self._channel.put_now(item) and not await self._put(item):
                    return

    async def _put(self, item: T) -> bool:
        """Wait for room. False: nobody reads any more."""
        try:
            async with asyncio.timeout(_STALL_S):
                return await self._channel.put(item)
        except TimeoutError as exc:
            raise MailboxFull(
                f"the client has read nothing for {_STALL_S:g} s and {_CAPACITY} items "
                "wait for it: read faster"
            ) from exc

    def _ended(self, running: RunningProgram) -> None:
        """On the program's thread."""
        self._channel.close(self._error or running.error)
        call_on(self._loop, self._close)

    def _close(self) -> None:
        self._closed.set()
        self._on_closed(self)


__all__ = ["BuiltIn", "Call"]
