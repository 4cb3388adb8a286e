"""One generation sent to its client: what is told of its end. The client is a function here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from quire.core.errors import EngineLost, QuireError
from quire.server.delivery import GenerationResponse, SlowReader, WriteLimit

LOST = EngineLost("the engine is gone: retry")


class Generation:
    """Says ``num_chunks`` things and then fails."""

    def __init__(self, num_chunks: int) -> None:
        self._num_chunks = num_chunks
        self.reasons: list[str] = []

    async def __aiter__(self) -> AsyncIterator[Any]:
        for number in range(self._num_chunks):
            yield SimpleNamespace(chunk=number)
        raise LOST

    def cancel(self, reason: str) -> None:
        self.reasons.append(reason)


class Formatter:
    def feed(self, item: Any) -> Sequence[bytes]:
        return [b"%d" % item.chunk]

    def last_events(self) -> Sequence[bytes]:
        return []

    def whole(self) -> bytes:
        return b"{}"


class Observer:
    """Keeps the first end, as the real one does."""

    def __init__(self) -> None:
        self.ended: tuple[Any, ...] | None = None

    def on_chunk(self, chunk: Any) -> None:
        pass

    def end(self, outcome: str, error: QuireError | None = None, reason: str = "") -> None:
        self.ended = self.ended or (outcome, error, reason)


async def delivered(num_chunks: int, *, stream: bool) -> tuple[bytes, Observer]:
    """The body, and what the observer was told."""
    observer, sent = Observer(), []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> Any:
        return await asyncio.Event().wait()  # the client stays

    response = GenerationResponse(
        Generation(num_chunks),  # type: ignore[arg-type]
        Formatter(),
        observer,  # type: ignore[arg-type]
        stream=stream,
        write_timeout_s=600.0,
        on_finished=lambda: pytest.fail("it has failed"),
        headers={},
    )
    with nullcontext() if stream and num_chunks else pytest.raises(EngineLost):
        await response({"type": "http"}, receive, send)
    return b"".join(sent), observer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_chunks", [0, 2])
async def test_a_failure_is_told_to_who_watches_with_its_error(
    num_chunks: int, stream: bool
) -> None:
    body, observer = await delivered(num_chunks, stream=stream)
    assert observer.ended == ("failed", LOST, "")
    if not (stream and num_chunks):
        assert body == b"", "the request has a status of its own"
    else:
        assert LOST.message.encode() in body


async def test_who_is_cancelled_while_it_writes_was_not_slow() -> None:
    limit, writing = WriteLimit(600.0), asyncio.Event()

    async def write() -> None:
        with limit:
            writing.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    limit.watch(task)
    await writing.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    limit.stop()


async def test_a_write_that_nobody_takes_ends_as_slow() -> None:
    limit = WriteLimit(0.001)

    async def write() -> None:
        with limit:
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    limit.watch(task)
    with pytest.raises(SlowReader, match=r"read nothing for 0\.001 s"):
        await task
