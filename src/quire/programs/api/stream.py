"""The replies to a decode: its chunks as they arrive, or the whole result.

Owns the received chunks (at most the tokens of one decode) and reports written positions to the
pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from quire.core.actions import ReplyValue
from quire.core.decoding import DecodeChunk, FinishReason, TokenLogprobs
from quire.core.errors import ErrorRecord
from quire.core.ids import CommandId
from quire.programs.api.handles import KvPage
from quire.programs.api.queue_state import QueueState
from quire.programs.api.reply import CommandFuture, CommandOwner


@dataclass(frozen=True, slots=True)
class Decoded:
    """A complete decode. Fields as in ``DecodeChunk``."""

    token_ids: list[int]
    finish_reason: FinishReason
    matched: int | bytes | None
    num_cached_tokens: int
    seed: int | None
    logprobs: list[TokenLogprobs] | None
    prompt_logprobs: list[TokenLogprobs] | None


class DecodeStream(CommandFuture):
    """``async for chunk in stream`` or ``await stream``; ``cancel()`` ends the decode early.

    Leaving the loop (``break``, an exception, cancellation) does not cancel the decode; ``async
    with stream`` does.
    """

    __slots__ = (
        "_at_end", "_chunks", "_listener", "_num_noted", "_num_read", "_num_sampled", "_output",
        "_page", "_position",
    )  # fmt: skip

    def __init__(
        self,
        owner: CommandOwner,
        queue_state: QueueState,
        command: CommandId,
        output: Sequence[KvPage],
        position: int,
    ) -> None:
        super().__init__(owner, queue_state, command)
        self._chunks: list[DecodeChunk] = []
        self._num_read = 0
        self._at_end: tuple[asyncio.Future[None], ...] = ()
        self._output = list(output)
        self._page = 0
        self._position = position
        self._num_sampled = self._num_noted = 0
        self._listener: Callable[[], None] | None = None
        for page in self._output:
            page.decode_started(self)

    def __await__(self) -> Generator[Any, None, Decoded]:
        """Wait for the end; return all chunks as one ``Decoded``, whether they were read or
        not."""
        while not self._done:
            yield from self._end()
        self.raise_failure()
        return self._whole()

    async def __aenter__(self) -> DecodeStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def __aiter__(self) -> AsyncIterator[DecodeChunk]:
        return self

    async def __anext__(self) -> DecodeChunk:
        while (chunk := self._next()) is None and not self._done:
            await self._news()
        if chunk is not None:
            return chunk
        self.raise_failure()
        raise StopAsyncIteration

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever ``take`` has something new."""
        self._owner.flush()
        self._listener = listener

    def take(self) -> DecodeChunk | None:
        """The next chunk that has arrived, ``None`` if there is none now; raises the decode's
        failure."""
        chunk = self._next()
        if chunk is None:
            self.raise_failure()
        return chunk

    def _next(self) -> DecodeChunk | None:
        """The next chunk that was not read."""
        chunks, index = self._chunks, self._num_read
        if index == len(chunks):
            return None
        self._num_read = index + 1
        return chunks[index]

    def take_all(self) -> list[DecodeChunk]:
        """The chunks that have arrived and were not read."""
        chunks = self._chunks[self._num_read :]
        self._num_read = len(self._chunks)
        return chunks

    def _end(self) -> asyncio.Future[None]:
        """A future for the end alone: chunks do not wake its waiters."""
        future = self._sent()
        self._at_end = (*(other for other in self._at_end if not other.done()), future)
        return future

    def on_reply(self, reply: ReplyValue, last: bool) -> None:
        chunk = cast(DecodeChunk, reply)
        self._chunks.append(chunk)
        self._num_sampled += len(chunk.token_ids)
        if last:
            self.note_written()
            self._finish()
        else:
            self._wake()

    def on_failure(self, error: ErrorRecord) -> None:
        for page in self._output:
            page.lose_track()
        super().on_failure(error)

    def _finish(self) -> None:
        for page in self._output:
            page.decode_ended(self)
        self._waiters += self._at_end
        self._at_end = ()
        super()._finish()

    def _wake(self) -> None:
        if self._listener is not None:
            self._listener()
        super()._wake()

    def note_written(self) -> None:
        """Note the written slots in the pages, which call this: every sampled token but the last
        has been run."""
        num_written = max(self._num_sampled - 1, 0) - self._num_noted
        self._num_noted += num_written
        while num_written > 0 and self._page < len(self._output):
            num_here = self._output[self._page].append_from(self._position, num_written)
            if num_here is None:
                break
            if not num_here:
                self._page += 1  # stays full: the pages of a running decode are not truncated
            self._position += num_here
            num_written -= num_here

    def _whole(self) -> Decoded:
        chunks = self._chunks
        first, last = chunks[0], chunks[-1]
        logprobs = [entry for chunk in chunks for entry in chunk.logprobs or ()]
        assert last.finish_reason is not None, "the last chunk has no finish reason"
        return Decoded(
            token_ids=[token for chunk in chunks for token in chunk.token_ids],
            finish_reason=last.finish_reason,
            matched=last.matched,
            num_cached_tokens=first.num_cached_tokens,
            seed=next((chunk.seed for chunk in chunks if chunk.seed is not None), None),
            logprobs=logprobs if any(chunk.logprobs is not None for chunk in chunks) else None,
            prompt_logprobs=first.prompt_logprobs,
        )
