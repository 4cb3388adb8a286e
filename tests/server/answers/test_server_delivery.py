"""One generation sent to its client: what is told of its end. The client is a function here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

from quire.core.errors import EngineLost, QuireError
from quire.programs.builtin import ChoiceChunk
from quire.server.answers.delivery import GenerationResponse
from quire.server.answers.frame import Frame
from quire.server.answers.generation import PromptChunk
from quire.server.answers.resuming.going_on import ResumableAnswer
from quire.server.answers.resuming.told_tokens import ENGINE_LOST
from quire.server.answers.resuming.told_whole import WHOLE, WholeHead
from quire.server.answers.write_limit import SlowReader, WriteLimit

LOST = EngineLost("the engine is gone: retry")


class Generation:
    """Says ``num_chunks`` things and then fails."""

    num_choices = 1

    def __init__(self, num_chunks: int) -> None:
        self._num_chunks = num_chunks
        self.reasons: list[str] = []

    async def __aiter__(self) -> AsyncIterator[Any]:
        for number in range(self._num_chunks):
            yield PromptChunk(0, ChoiceChunk(0, str(number), (number,)))
        raise LOST

    def cancel(self, reason: str) -> None:
        self.reasons.append(reason)


class Formatter:
    def feed(self, item: Any) -> Sequence[bytes]:
        return [item.chunk.text.encode()]

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

    def end(
        self, outcome: str, error: QuireError | None = None, reason: str = "", **_: bool
    ) -> None:
        self.ended = self.ended or (outcome, error, reason)


async def delivered(
    num_chunks: int,
    *,
    stream: bool,
    telling: ResumableAnswer | None = None,
    path: str = "/v1/completions",
) -> tuple[bytes, Observer]:
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
        telling=telling,
    )
    has_begun = num_chunks and (stream or telling is not None)
    with nullcontext() if has_begun else pytest.raises(EngineLost):
        scope = {"type": "http", "path": path, "state": {"request_id": "req-1"}}
        await response(scope, receive, send)
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


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/v1/chat/completions", "service_unavailable_error"), ("/v1/messages", "overloaded_error")],
)
async def test_a_told_answer_that_fails_ends_with_the_error_that_a_client_would_get(
    path: str, kind: str
) -> None:
    telling = ResumableAnswer(Frame("key", 1, "model", "print"), seed=3)
    body, observer = await delivered(2, stream=False, telling=telling, path=path)
    assert observer.ended == ("failed", LOST, "")
    first, second, head, answer = body.split(b"\n\n")
    assert b'"tokens":[0]' in first
    assert b'"tokens":[1]' in second
    said = msgspec.json.decode(head.removeprefix(WHOLE), type=WholeHead)
    assert said == WholeHead(len(answer), 503, {"retry-after": "1"}, "engine_lost")
    error = msgspec.json.decode(answer)
    assert error["error"]["type"] == kind
    assert error["error"]["message"] == LOST.message
    assert error.get("request_id", "req-1") == "req-1"


async def test_a_stream_that_may_outlive_its_node_says_that_the_engine_is_lost() -> None:
    telling = ResumableAnswer(Frame("key", 1, "model", "print"), seed=3)
    told, _ = await delivered(2, stream=True, telling=telling)
    plain, _ = await delivered(2, stream=True)
    assert told.split(b"\n\n")[4] == ENGINE_LOST
    assert LOST.message.encode() in told.split(b"\n\n")[5]
    assert ENGINE_LOST not in plain


async def test_a_told_answer_that_fails_before_its_first_chunk_has_a_status_of_its_own() -> None:
    telling = ResumableAnswer(Frame("key", 1, "model", "print"), seed=3)
    body, observer = await delivered(0, stream=False, telling=telling)
    assert body == b""
    assert observer.ended == ("failed", LOST, "")


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
