"""HTTP answers as they come: bytes, lines, server-sent events; and their limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs_port import Connected

from quire.core.errors import Forbidden, InvalidArgument, ProgramError, QuotaExceeded
from quire.programs.api import Api
from quire.programs.services.network import Network, NetworkPolicy
from quire.programs.services.server_sent_events import (
    MAX_EVENT_CHARS,
    EventParser,
    ServerSentEvent,
)


class Body(httpx.AsyncByteStream):
    """A body in pieces; ``closed`` once it is let go of."""

    def __init__(self, pieces: Sequence[bytes], *, endless: bool = False) -> None:
        self.pieces = pieces
        self.endless = endless
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece
        if self.endless:
            await asyncio.Event().wait()

    async def aclose(self) -> None:
        self.closed = True


Handler = Callable[[httpx.Request], httpx.Response]


def api_over(connected: Connected, handler: Handler, policy: NetworkPolicy | None = None) -> Api:
    client = httpx.AsyncClient(transport=httpx.MockTransport(handler))

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    return connected(Network(client, policy, resolve))


async def test_bytes_come_in_their_pieces(connected: Connected) -> None:
    body = Body([b"one", b"two"])

    def handler(request: httpx.Request) -> httpx.Response:
        said = {"x-method": request.method, "x-body": request.content.decode()}
        return httpx.Response(201, stream=body, headers=said)

    api = api_over(connected, handler)
    async with api.http_stream("http://host/", method="POST", body="hi") as reply:
        assert (reply.status, reply.ok) == (201, True)
        assert (reply.headers["x-method"], reply.headers["x-body"]) == ("POST", "hi")
        assert [part async for part in reply] == [b"one", b"two"]
    assert body.closed


async def test_lines_and_events(connected: Connected) -> None:
    lines = Body([b"a\r\nb", b"c\nd\xc3", b"\xa9"])
    api = api_over(connected, lambda _: httpx.Response(200, stream=lines))
    async with api.http_stream("http://host/") as reply:
        assert [line async for line in reply.lines()] == ["a", "bc", "d\u00e9"]
    events = Body([b"data: 1\n", b"\nevent: end\ndata:2\n\n"])
    api = api_over(connected, lambda _: httpx.Response(200, stream=events))
    async with api.http_stream("http://host/") as reply:
        found = [(event.event, event.data) async for event in reply.events()]
    assert found == [("message", "1"), ("end", "2")]


async def test_leaving_early_closes_the_answer(connected: Connected) -> None:
    body = Body([b"first"], endless=True)
    api = api_over(connected, lambda _: httpx.Response(200, stream=body))
    async with api.http_stream("http://host/") as reply:
        async for part in reply:
            assert part == b"first"
            break
    assert body.closed
    with pytest.raises(InvalidArgument, match="use `async with"):
        _ = api.http_stream("http://host/").status


async def test_limits_of_bytes_and_time(connected: Connected) -> None:
    def over(body: Body, policy: NetworkPolicy) -> Api:
        return api_over(connected, lambda _: httpx.Response(200, stream=body), policy)

    async def read_all(api: Api) -> None:
        async with api.http_stream("http://host/") as reply:
            async for _ in reply:
                pass

    large = Body([b"123", b"456"])
    with pytest.raises(QuotaExceeded, match="more than 5 bytes"):
        await read_all(over(large, NetworkPolicy(max_stream_bytes=5)))
    assert large.closed
    silent = Body([b"1"], endless=True)
    with pytest.raises(ProgramError, match=r"no response within 0\.001 s"):
        await read_all(over(silent, NetworkPolicy(timeout_s=0.001)))
    assert silent.closed
    long = Body([b"1", b"2"])
    with pytest.raises(QuotaExceeded, match="takes more than 0 s"):
        await read_all(over(long, NetworkPolicy(max_stream_s=0)))


async def test_the_policy_holds_for_streams_and_their_redirects(connected: Connected) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(302, headers={"location": "http://elsewhere/"})

    api = api_over(connected, handler, NetworkPolicy(hosts=("host",)))
    with pytest.raises(Forbidden, match="'elsewhere' is not allowed"):
        async with api.http_stream("http://host/"):
            pass
    private = api_over(connected, handler, NetworkPolicy(hosts=("host",), allow_private=False))
    with pytest.raises(Forbidden, match="private addresses are refused"):
        async with private.http_stream("http://host/"):
            pass


SOURCE = (
    "\ufeff: a comment\nid: 1\nretry: 250\ndata: first\ndata:  second\n\n"
    "event: kind\r\ndata\r\n\r\ndata: \u00e9\U0001f600\r\rid\ndata: no id\n\n"
    "unknown: field\nretry: soon\n\ndata: never sent"
)
EVENTS = [
    ServerSentEvent("first\n second", "message", "1", 250),
    ServerSentEvent("", "kind", "1", 250),
    ServerSentEvent("\u00e9\U0001f600", "message", "1", 250),
    ServerSentEvent("no id", "message", "", 250),
]


@given(st.lists(st.integers(0, len(SOURCE.encode())), max_size=12))
def test_events_do_not_depend_on_how_their_bytes_come(cuts: list[int]) -> None:
    content, parser = SOURCE.encode(), EventParser()
    bounds = [0, *sorted(cuts), len(content)]
    found: list[ServerSentEvent] = []
    for start, end in pairwise(bounds):
        found += parser.feed(content[start:end])
    assert found == EVENTS


def test_an_endless_event_is_refused() -> None:
    parser = EventParser()
    parser.feed(b"data: " + b"x" * (MAX_EVENT_CHARS - 10) + b"\n")
    with pytest.raises(InvalidArgument, match="one server-sent event"):
        parser.feed(b"data: more\n")
