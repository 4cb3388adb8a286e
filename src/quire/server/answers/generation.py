"""The calls of one HTTP request, as one stream of chunks that can be cancelled at any time.

Owns starting the built-in program once per prompt, merging the streams with back-pressure, and
ending them all together. Must not know HTTP or how chunks are formatted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from quire.core.errors import NeverWithinQuota
from quire.node import SessionCall, SessionHandle
from quire.programs.builtin import ChoiceChunk, CompletionRequest, complete

MAX_MERGED_CHUNKS = 16
"""The most chunks that wait between the calls and a slow reader; beyond it the calls wait."""


class PromptChunk(msgspec.Struct, frozen=True):
    """A chunk of the call for prompt ``prompt`` (its index in the request)."""

    prompt: int
    chunk: ChoiceChunk


class GenerationStream:
    """Starts when it is iterated; iterate it once. ``cancel`` is idempotent and legal in any state.

    An error of a call ends the iteration as the call's ``QuireError``, after the other calls are
    cancelled. So does a cancelled call, with ``ProgramCancelled``: its output so far is not a
    complete answer. ``explained`` adds to the error of a spent quota how the client goes on.
    """

    def __init__(
        self,
        session: SessionHandle,
        requests: Sequence[CompletionRequest],
        *,
        thread: str | None,
        parent_thread: str | None,
        name: str,
        traceparent: str | None,
        explained: Callable[[NeverWithinQuota, SessionHandle], NeverWithinQuota],
    ) -> None:
        self.session = session
        self._explained = explained
        self._traceparent = traceparent
        self._requests = requests
        self._thread = thread
        self._parent_thread = parent_thread
        self._name = name
        self._calls: list[SessionCall[ChoiceChunk]] = []
        self._cancelled: str | None = None

    @property
    def num_choices(self) -> int:
        """Number of choices; each ends with a chunk that has a finish reason."""
        return sum(request.num_choices for request in self._requests)

    def __aiter__(self) -> AsyncGenerator[PromptChunk, None]:
        return self._chunks(0) if len(self._requests) == 1 else self._merged()

    def cancel(self, reason: str) -> None:
        if self._cancelled is None:
            self._cancelled = reason
            for call in self._calls:
                call.cancel(reason)

    def _start(self, request: CompletionRequest) -> SessionCall[ChoiceChunk]:
        call = self.session.call(
            complete,
            request,
            thread=self._thread,
            parent_thread=self._parent_thread,
            name=self._name,
            traceparent=self._traceparent,
        )
        self._calls.append(call)
        if self._cancelled is not None:
            call.cancel(self._cancelled)
        return call

    async def _chunks(self, index: int) -> AsyncGenerator[PromptChunk, None]:
        async with aclosing(self._start(self._requests[index])) as call:
            try:
                async for chunk in call:
                    yield PromptChunk(index, chunk)
            except NeverWithinQuota as exc:
                raise self._explained(exc, self.session) from exc

    async def _merged(self) -> AsyncGenerator[PromptChunk, None]:
        arrived: asyncio.Queue[PromptChunk | _End] = asyncio.Queue(MAX_MERGED_CHUNKS)
        pumps = [
            asyncio.create_task(_pump(self._chunks(index), arrived))
            for index in range(len(self._requests))
        ]
        num_running = len(pumps)
        try:
            while num_running:
                item = await arrived.get()
                if isinstance(item, PromptChunk):
                    yield item
                elif item.error is not None:
                    raise item.error
                else:
                    num_running -= 1
        finally:
            if num_running:
                self.cancel("another prompt of the request has failed")
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class _End:
    """The end of one call's chunks."""

    error: Exception | None


async def _pump(
    chunks: AsyncGenerator[PromptChunk, None], arrived: asyncio.Queue[PromptChunk | _End]
) -> None:
    error: Exception | None = None
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                await arrived.put(chunk)
    except Exception as exc:  # the reader of the stream raises it again
        error = exc
    await arrived.put(_End(error))
