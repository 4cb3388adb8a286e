"""The reply to one command: a small future whose event loop future is created only when awaited.

Owns waiting and conversion. Failures that are not awaited are recorded in the queue
(``QueueState``); the next await on the queue raises them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, Protocol, TypeVar

from quire.core.actions import ReplyValue
from quire.core.errors import ErrorRecord, QueuePoisoned, QuireError, from_record
from quire.core.ids import CommandId
from quire.programs.api.queue_state import QueueState

T = TypeVar("T")


class CommandOwner(Protocol):
    """The part of the issuer that a reply needs."""

    def flush(self) -> None:
        """Send commands that are issued but not sent."""
        ...

    def cancel(self, command: CommandId) -> None: ...


class CommandFuture:
    """The common part of replies and decode streams: the end of a command, and waiting for its
    replies."""

    __slots__ = ("_done", "_error", "_owner", "_waiters", "command", "queue_state")

    def __init__(self, owner: CommandOwner, queue_state: QueueState, command: CommandId) -> None:
        self.command = command
        self.queue_state = queue_state
        self._owner = owner
        self._done = False
        self._error: ErrorRecord | None = None
        self._waiters: tuple[asyncio.Future[None], ...] = ()

    def done(self) -> bool:
        return self._done

    def cancel(self) -> None:
        """Cancel the command, which then ends with ``ProgramCancelled``. No effect if it has
        ended."""
        if not self._done:
            self._owner.cancel(self.command)

    def failure(self) -> ErrorRecord | None:
        """The failure as it was received, ``None`` if there is none (yet)."""
        return self._error

    def exception(self) -> QuireError | None:
        """The failure as an exception, with its cause. Marks the queue's failure as seen."""
        if self._error is None:
            return None
        error = from_record(self._error)
        failure = self.queue_state.failure
        if isinstance(error, QueuePoisoned) and failure is not None:
            error.__cause__ = from_record(failure)
        self.queue_state.failure_seen = True
        return error

    def raise_failure(self) -> None:
        """Raise the failure, if there is one (yet)."""
        error = self.exception()
        if error is not None:
            raise error

    async def next_news(self) -> None:
        """Wait until a reply arrives; return at once if the command has ended."""
        if not self._done:
            await self._news()

    async def ended(self) -> None:
        """Wait for the end; does not raise the command's failure."""
        while not self._done:
            await self._end()

    def on_reply(self, reply: ReplyValue, last: bool) -> None:
        """Called by the issuer: a reply has arrived; ``last`` ends the command."""
        raise NotImplementedError

    def on_failure(self, error: ErrorRecord) -> None:
        """Called by the issuer: the command has failed or was cancelled."""
        self._error = error
        self._finish()

    def _news(self) -> asyncio.Future[None]:
        """A future that is done when a reply arrives."""
        future = self._sent()
        self._waiters += (future,)
        return future

    def _end(self) -> asyncio.Future[None]:
        """A future that is done at the command's end, or already when a reply arrives."""
        return self._news()

    def _sent(self) -> asyncio.Future[None]:
        """A new future. Sends all issued commands, because the awaited one may be among them."""
        self._owner.flush()
        return asyncio.get_running_loop().create_future()

    def _finish(self) -> None:
        self._done = True
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, ()
        for future in waiters:
            if not future.done():
                future.set_result(None)


class Reply(CommandFuture, Generic[T]):
    """The future reply to one command. It may be awaited any number of times, or not at all.

    Cancelling a task that awaits it does not cancel the command; ``cancel()`` does.
    """

    __slots__ = ("_convert", "_result")

    def __init__(
        self,
        owner: CommandOwner,
        queue_state: QueueState,
        command: CommandId,
        convert: Callable[[Any], T],
    ) -> None:
        super().__init__(owner, queue_state, command)
        self._convert = convert
        self._result: T

    def result(self) -> T:
        """The result of a command that is ``done()``; raises its failure."""
        if not self._done:
            raise asyncio.InvalidStateError("the command has not ended: await its reply")
        self.raise_failure()
        return self._result

    def __await__(self) -> Generator[Any, None, T]:
        while not self._done:
            yield from self._end()
        return self.result()

    def on_reply(self, reply: ReplyValue, last: bool) -> None:
        self._result = self._convert(reply)
        self._finish()
