"""The answer to one command: a small future that costs nothing while nobody waits for it.

Owns waiting and conversion. Failures that nobody awaits make no noise here: they stand in the
queue (``Lane``) and surface at the next await on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, Protocol, TypeVar

from quire.core import actions
from quire.core.errors import ErrorRecord, QueuePoisoned, QuireError, from_record
from quire.core.ids import CommandId
from quire.programs.api.lane import Lane

T = TypeVar("T")


class CommandOwner(Protocol):
    """What a reply needs of the issuer."""

    def flush(self) -> None:
        """Send what has been issued but not sent."""
        ...

    def cancel(self, command: CommandId) -> None: ...


class Answer:
    """What replies and decode streams share: the end of a command, and waiting for news of it."""

    __slots__ = ("_done", "_error", "_owner", "_waiters", "command", "lane")

    def __init__(self, owner: CommandOwner, lane: Lane, command: CommandId) -> None:
        self.command = command
        self.lane = lane
        self._owner = owner
        self._done = False
        self._error: ErrorRecord | None = None
        self._waiters: tuple[asyncio.Future[None], ...] = ()

    def done(self) -> bool:
        return self._done

    def cancel(self) -> None:
        """Cancel the command; its end arrives as ``ProgramCancelled``. No-op when it has ended."""
        if not self._done:
            self._owner.cancel(self.command)

    def failure(self) -> ErrorRecord | None:
        """The failure as it came, ``None`` if there is none (yet)."""
        return self._error

    def exception(self) -> QuireError | None:
        """The failure as an exception, with its cause. Looking at it counts as seeing it."""
        if self._error is None:
            return None
        error = from_record(self._error)
        failure = self.lane.failure
        if isinstance(error, QueuePoisoned) and failure is not None:
            error.__cause__ = from_record(failure)
        self.lane.failure_seen = True
        return error

    async def next_news(self) -> None:
        """Wait until something arrives; at once if the command has ended."""
        if not self._done:
            await self.news()

    async def ended(self) -> None:
        """Wait for the end, whatever it is; raises nothing of the command's own."""
        while not self._done:
            await self.end()

    def on_reply(self, reply: actions.Reply, last: bool) -> None:
        """For the issuer: a reply has arrived; ``last`` ends the command."""
        raise NotImplementedError

    def on_failure(self, error: ErrorRecord) -> None:
        """For the issuer: the command has failed or was cancelled."""
        self._error = error
        self._done = True
        self._wake()

    def news(self) -> asyncio.Future[None]:
        """Done when something arrives. Sends what has been issued: it may be what is awaited."""
        self._owner.flush()
        future = asyncio.get_running_loop().create_future()
        self._waiters += (future,)
        return future

    def end(self) -> asyncio.Future[None]:
        """As ``news``, for who waits for the command's end alone."""
        return self.news()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, ()
        for future in waiters:
            if not future.done():
                future.set_result(None)


class Reply(Answer, Generic[T]):
    """The future answer to one command. ``await`` it, any number of times, or leave it.

    Cancelling a task that awaits it leaves the command on its queue; ``cancel()`` takes it off.
    """

    __slots__ = ("_convert", "_result")

    def __init__(
        self,
        owner: CommandOwner,
        lane: Lane,
        command: CommandId,
        convert: Callable[[Any], T],
    ) -> None:
        super().__init__(owner, lane, command)
        self._convert = convert
        self._result: T

    def result(self) -> T:
        """The answer of a command that is ``done()``; raises its failure."""
        if not self._done:
            raise asyncio.InvalidStateError("the command has not ended: await its reply")
        error = self.exception()
        if error is not None:
            raise error
        return self._result

    def __await__(self) -> Generator[Any, None, T]:
        while not self._done:
            yield from self.news()
        return self.result()

    def on_reply(self, reply: actions.Reply, last: bool) -> None:
        self._result = self._convert(reply)
        self._done = True
        if self._waiters:
            self._wake()
