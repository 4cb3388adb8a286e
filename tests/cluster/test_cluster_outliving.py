"""A stream that can go on elsewhere is passed on as it arrives, without waking its reader."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import pytest

from quire.cluster.nodes.connection import AnswerHead, Sink
from quire.cluster.passing.following import FollowedAnswer, _first_place
from quire.cluster.passing.resuming import ResumingAnswer, resumable
from quire.cluster.requests.request import Request
from quire.core.errors import EngineLost
from quire.server.events import DATA_EVENTS

DONE = b"data: [DONE]\n\n"
(LOSS,) = DATA_EVENTS.errors(EngineLost("gone"))


def event(token: int, prompt: bytes = b"") -> bytes:
    """As a node tells it."""
    tokens = b',"token_ids":[%d]' % token + prompt
    return b'data: {"id":"a","choices":[{"index":0,"text":"%d"%b}]}\n\n' % (token, tokens)


def shown(token: int) -> bytes:
    """As its client sees it."""
    return b'data: {"id":"a","choices":[{"index":0,"text":"%d"}]}\n\n' % token


class FeltAnswer:
    """An answer whose pieces the test gives, to the sink or to who reads."""

    head = AnswerHead(200, [])

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.sink: Sink = lambda piece: False
        self.pieces: asyncio.Queue[bytes] = asyncio.Queue()

    async def read(self) -> bytes:
        return await self.pieces.get()

    def pass_to(self, sink: Sink) -> None:
        self.sink = sink

    def arrive(self, piece: bytes) -> bool:
        """Whether the sink has taken it."""
        if self.sink(piece):
            return True
        self.pieces.put_nowait(piece)
        return False

    def close(self) -> None:
        """Nothing is held."""


class Client:
    """``seen`` is what it has taken; it takes nothing while it ``is_slow``."""

    def __init__(self) -> None:
        self.seen = b""
        self.is_slow = False

    def take(self, piece: bytes) -> bool:
        if self.is_slow:
            return False
        self.seen += piece
        return True


def stream(*answers: FeltAnswer) -> tuple[ResumingAnswer, Client]:
    """The first of ``answers``, behind which the others follow."""
    following = iter(answers[1:])

    async def go_on(request: Request, prompt: list[int], num_generated: int) -> FeltAnswer:
        return next(following)

    body = b'{"prompt": "x", "stream": true}'
    request = resumable(Request("POST", "/v1/completions", [], body, "r"))
    found, client = ResumingAnswer(answers[0], request, go_on), Client()
    found.pass_to(client.take)
    return found, client


async def test_events_pass_as_they_arrive_without_their_tokens() -> None:
    answer = FeltAnswer("a")
    found, client = stream(answer)
    reading = asyncio.create_task(found.read())
    first = event(1, b',"prompt_token_ids":[7,8]')
    assert answer.arrive(first[:20])
    assert client.seen == b""  # no whole event
    assert answer.arrive(first[20:] + event(2))
    assert client.seen == shown(1) + shown(2)
    assert answer.arrive(DONE)
    assert client.seen.endswith(DONE)
    answer.pieces.put_nowait(b"")
    assert await reading == b""
    assert found.generated is None


async def test_what_a_slow_client_does_not_take_is_read_once() -> None:
    answer = FeltAnswer("a")
    found, client = stream(answer)
    client.is_slow = True
    assert not answer.arrive(event(1, b',"prompt_token_ids":[7]'))
    assert found.generated is not None
    assert list(map(list, found.generated)) == [[]]
    assert await found.read() == shown(1)
    assert list(map(list, found.generated or ())) == [[1]]


async def test_a_loss_is_left_to_the_reader_and_what_follows_passes_as_well() -> None:
    answer, next_answer = FeltAnswer("a"), FeltAnswer("b")
    found, client = stream(answer, next_answer)
    reading = asyncio.create_task(found.read())
    assert answer.arrive(event(1, b',"prompt_token_ids":[7]'))
    assert answer.arrive(LOSS[:40])
    assert not answer.arrive(LOSS[40:])
    for _ in range(10):
        await asyncio.sleep(0)
    assert found.at == "b"
    assert list(map(list, found.generated or ())) == [[1]]
    assert next_answer.arrive(event(2))
    assert next_answer.arrive(DONE)
    next_answer.pieces.put_nowait(b"")
    assert await reading == b""
    told = client.seen.split(b"\n\n")
    assert [b'"text":"1"' in told[0], b'"text":"2"' in told[1]] == [True, True]
    assert told[2:] == [b"data: [DONE]", b""]


async def test_what_came_with_a_loss_is_passed_on_and_what_follows_it_is_not() -> None:
    answer, next_answer = FeltAnswer("a"), FeltAnswer("b")
    found, client = stream(answer, next_answer)
    assert answer.arrive(event(1, b',"prompt_token_ids":[7]'))
    assert not answer.arrive(event(2) + LOSS)
    assert await found.read() == shown(2)
    assert not answer.arrive(DONE), "the end of the stream that was lost"
    reading = asyncio.create_task(found.read())
    for _ in range(10):
        await asyncio.sleep(0)
    assert found.at == "b"
    assert list(map(list, found.generated or ())) == [[1, 2]]
    assert next_answer.arrive(DONE)
    next_answer.pieces.put_nowait(b"")
    assert await reading == b""
    assert client.seen == shown(1) + DONE


async def test_a_stream_that_ends_before_its_end_is_lost() -> None:
    answer = FeltAnswer("a")
    found, _ = stream(answer)
    answer.pieces.put_nowait(b"")
    with pytest.raises(EngineLost, match="node a has ended a stream before its end"):
        await found.read()  # nothing was told before: it cannot go on


async def test_the_loss_of_a_programs_node_is_left_to_the_reader_too() -> None:
    answer, next_answer = FeltAnswer("a"), FeltAnswer("b")

    async def follow(request: Request, program: str) -> FeltAnswer:
        return next_answer

    request = Request("GET", "/v1/programs/prog-1/events", [], b"", "r")
    found, client = FollowedAnswer(answer, request, follow), Client()
    found.pass_to(client.take)
    reading = asyncio.create_task(found.read())
    said = b'id: 1\ndata: {"type": "message", "text": "an \\"engine_lost\\""}\n\n'
    assert answer.arrive(said)
    last = b'id: 2\ndata: {"type": "message", "text": "x"}\n\n'
    assert not answer.arrive(last + b'data: {"type": "error", "code": "engine_lost"}\n\n')
    assert await reading == last
    reading = asyncio.create_task(found.read())
    for _ in range(10):
        await asyncio.sleep(0)
    assert found.at == "b"
    assert next_answer.arrive(DONE)
    next_answer.pieces.put_nowait(b"")
    assert await reading == b""
    assert client.seen == said + DONE


def test_the_place_that_a_client_names_may_be_any_text() -> None:
    for text, place in [("12", 12), ("", 0), ("x", 0), ("²", 0), ("1" * 5000, 0)]:
        headers = [(b"last-event-id", text.encode("latin-1"))]
        assert _first_place(Request("POST", "/v1/programs", headers, b"", "r")) == place
        target = f"/v1/programs/p/events?after={quote(text)}"
        assert _first_place(Request("GET", target, [], b"", "r")) == place
