"""Streams over one connection: what a router gets is what the node said, in order, or lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import pytest
from channelled_node import ChannelledNode, channelled
from router_world import World, until, world
from test_cluster_connection import CHUNKED, WrittenTo, chunk, whole

from quire.cluster.nodes.channel import NodeChannel
from quire.cluster.nodes.connection import MAX_WAITING_BYTES, AnswerHead, NodeConnection, Sink
from quire.cluster.nodes.lane import Lane
from quire.core.errors import EngineLost
from quire.server.microserving.channel_frames import FRAME, HEARTBEAT, MAX_PIECE_BYTES

OVER_CHANNEL = CHUNKED[:-2] + b"x-quire-channel: 1\r\n\r\n"
END = b"0\r\n\r\n"


class Conversation:
    """A channel whose node the test plays."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[bytes] = asyncio.Queue()
        self.asked: list[tuple[str, bytes]] = []
        self.status = 200
        self.channel = NodeChannel("n", self._ask, {})  # type: ignore[arg-type]

    async def _ask(
        self, method: str, target: str, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> Conversation:
        self.asked.append((target, body))
        return self

    async def head(self) -> AnswerHead:
        return AnswerHead(self.status, [])

    async def read(self) -> bytes:
        return await self.said.get()

    def pass_to(self, sink: Sink) -> None:
        self.sink = sink

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *exc: object) -> None: ...

    async def opened(self) -> asyncio.Task[None]:
        following = asyncio.create_task(self.channel.follow())
        await until(lambda: self.channel.lane() is not None)
        return following

    async def exchange(self) -> tuple[NodeConnection, WrittenTo, Lane]:
        """A request that names a lane, and is written."""
        lane = self.channel.lane()
        assert lane is not None
        connection, transport = NodeConnection("n"), WrittenTo()
        connection.connection_made(transport)
        await connection.send(b"GET / HTTP/1.1\r\n\r\n", b"", lane=lane)
        return connection, transport, lane


def frame(lane: Lane, piece: bytes) -> bytes:
    return FRAME.pack(lane.number, len(piece)) + piece


async def test_frames_in_any_division_go_to_their_streams() -> None:
    for size in range(1, 60):
        talk = Conversation()
        await talk.opened()
        (one, _, a), (other, _, b) = await talk.exchange(), await talk.exchange()
        text = frame(a, b"one ") + HEARTBEAT + frame(b, b"other") + frame(a, b"two")
        text += FRAME.pack(999, 3) + b"???" + frame(a, b"") + frame(b, b"")
        for connection in (one, other):
            connection.data_received(OVER_CHANNEL)
        for start in range(0, len(text), size):
            assert talk.sink(text[start : start + size])
        for connection in (one, other):
            connection.data_received(END)
        assert (await whole(one), await whole(other)) == (b"one two", b"other")
        assert one.is_reusable


@pytest.mark.parametrize("order", ["head last", "head first", "end first", "between"])
async def test_own_bytes_are_behind_those_of_the_lane(order: str) -> None:
    """Which of two connections is read first is not known."""
    talk = Conversation()
    await talk.opened()
    connection, _, lane = await talk.exchange()
    own = [OVER_CHANNEL, chunk(b"last") + END]
    lane_s = [frame(lane, b"first "), frame(lane, b"second "), frame(lane, b"")]
    parts = {
        "head last": [*lane_s, *own],
        "head first": [own[0], *lane_s, own[1]],
        "end first": [*own, *lane_s],
        "between": [lane_s[0], own[0], lane_s[1], own[1], lane_s[2]],
    }[order]
    for part in parts:
        if part in own:
            connection.data_received(part)
        else:
            talk.sink(part)
    assert await whole(connection) == b"first second last"
    assert connection.is_reusable


async def test_an_answer_that_does_not_come_over_it_needs_no_lane() -> None:
    talk = Conversation()
    following = await talk.opened()
    connection, _, _ = await talk.exchange()
    connection.data_received(CHUNKED + chunk(b"all"))
    talk.said.put_nowait(b"")
    await following
    connection.data_received(END)
    assert await whole(connection) == b"all"


async def test_streams_of_a_lost_channel_are_lost_and_no_others() -> None:
    talk = Conversation()
    following = await talk.opened()
    (begun, transport, lane), (late, _, _), (own, _, _) = [await talk.exchange() for _ in range(3)]
    begun.data_received(OVER_CHANNEL)
    talk.sink(frame(lane, b"a part"))
    talk.said.put_nowait(b"")
    await following
    assert talk.channel.lane() is None
    late.data_received(OVER_CHANNEL)  # the node has not noticed yet
    own.data_received(CHUNKED + chunk(b"all") + END)
    assert await begun.read() == b"a part"
    for connection in (begun, late):
        with pytest.raises(EngineLost, match="has ended the connection of its streams"):
            await whole(connection)
    assert await whole(own) == b"all"
    assert transport.is_closing()


async def test_a_request_that_names_an_earlier_channel_may_be_answered_by_itself() -> None:
    talk = Conversation()
    following = await talk.opened()
    lane = talk.channel.lane()
    assert lane is not None
    talk.said.put_nowait(b"")
    await following
    await talk.opened()
    for head, is_lost in ((CHUNKED, False), (OVER_CHANNEL, True)):
        connection = NodeConnection("n")
        connection.connection_made(WrittenTo())
        await connection.send(b"", b"", lane=lane)
        connection.data_received(head + chunk(b"all") + END)
        if is_lost:
            with pytest.raises(EngineLost):
                await whole(connection)
        else:
            assert await whole(connection) == b"all"


async def test_a_slow_stream_is_asked_to_leave_once_and_then_waits_by_itself() -> None:
    talk = Conversation()
    await talk.opened()
    connection, transport, lane = await talk.exchange()
    connection.data_received(OVER_CHANNEL)
    talk.status = 204
    piece = b"x" * MAX_PIECE_BYTES
    for _ in range(2 * MAX_WAITING_BYTES // MAX_PIECE_BYTES):
        talk.sink(frame(lane, piece))
    await until(lambda: len(talk.asked) > 1)
    assert [target for target, _ in talk.asked[1:]] == ["/v1/microserving/channel/leave"]
    assert transport.is_reading_now
    talk.sink(frame(lane, b""))
    connection.data_received(chunk(piece))
    assert not transport.is_reading_now
    assert len(await connection.read()) == 2 * MAX_WAITING_BYTES + len(piece)
    assert transport.is_reading_now


async def test_a_node_that_goes_on_with_a_slow_stream_loses_it() -> None:
    talk = Conversation()
    await talk.opened()
    talk.status = 204
    (slow, _, lane), (other, _, beside) = await talk.exchange(), await talk.exchange()
    for connection in (slow, other):
        connection.data_received(OVER_CHANNEL)
    piece = frame(lane, b"x" * MAX_PIECE_BYTES)
    for _ in range(4 * MAX_WAITING_BYTES // MAX_PIECE_BYTES + 1):
        talk.sink(piece)
    talk.sink(frame(beside, b"all") + frame(beside, b""))
    other.data_received(END)
    assert await whole(other) == b"all"
    await slow.read()
    with pytest.raises(EngineLost, match="does not hold back a slow stream"):
        await slow.read()


async def test_a_stream_that_may_not_leave_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    talk = Conversation()
    await talk.opened()
    connection, _, lane = await talk.exchange()
    connection.data_received(OVER_CHANNEL)
    talk.status = 404
    lane.leave()
    with pytest.raises(EngineLost):
        await whole(connection)
    assert "cannot hold back a slow stream: /v1/microserving/channel/leave is 404" in caplog.text


async def test_a_sink_that_fails_costs_its_own_stream_alone() -> None:
    talk = Conversation()
    await talk.opened()
    (bad, _, a), (good, _, b) = await talk.exchange(), await talk.exchange()
    for connection in (bad, good):
        connection.data_received(OVER_CHANNEL)

    def failing(piece: bytes) -> bool:
        raise ValueError("no JSON")

    bad.pass_to(failing)
    reading = asyncio.create_task(bad.read())
    await asyncio.sleep(0)
    talk.sink(frame(a, b"x") + frame(b, b"all") + frame(b, b""))
    good.data_received(END)
    assert await whole(good) == b"all"
    with pytest.raises(EngineLost, match="cannot be passed on"):
        await reading


async def test_an_answer_whose_rest_cannot_be_passed_on_is_not_complete() -> None:
    talk = Conversation()
    await talk.opened()
    connection, _, lane = await talk.exchange()
    connection.data_received(OVER_CHANNEL + chunk(b"rest") + END)

    def failing(piece: bytes) -> bool:
        raise ValueError("no JSON")

    connection.pass_to(failing)
    reading = asyncio.create_task(connection.read())
    await asyncio.sleep(0)
    talk.sink(frame(lane, b""))
    with pytest.raises(EngineLost, match="cannot be passed on"):
        await reading


async def test_what_comes_behind_the_lane_is_bounded() -> None:
    talk = Conversation()
    await talk.opened()
    connection, transport, lane = await talk.exchange()
    connection.data_received(OVER_CHANNEL)
    own = chunk(b"x" * 10_000)
    num_pieces = 0
    while transport.is_reading_now:
        connection.data_received(own)
        num_pieces += 1
    assert num_pieces == MAX_WAITING_BYTES // 10_000 + 1
    talk.sink(frame(lane, b"first"))
    assert await connection.read() == b"first"
    assert not transport.is_reading_now
    talk.sink(frame(lane, b""))
    assert len(await connection.read()) == num_pieces * 10_000
    assert transport.is_reading_now


async def test_a_frame_that_is_too_long_is_none() -> None:
    talk = Conversation()
    await talk.opened()
    with pytest.raises(EngineLost, match="a frame of 65537 bytes"):
        talk.sink(FRAME.pack(1, MAX_PIECE_BYTES + 1))


# -- with a router ---------------------------------------------------------------------------------


class Paced:
    """Streams whose events the test lets go."""

    def __init__(self) -> None:
        self.next = asyncio.Semaphore(0)

    async def __call__(self, prompt: str) -> AsyncIterator[bytes]:
        if prompt == "endless":
            while True:
                yield b"data: " + b"x" * 8192 + b"\n\n"
                for _ in range(20):  # a router that has nothing else to do takes it meanwhile
                    await asyncio.sleep(0)
        for number in range(int(prompt)):
            await self.next.acquire()
            yield b"data: %d\n\n" % number
        yield b"data: [DONE]\n\n"


async def begun(w: World) -> None:
    """Until its router has the node's channel."""
    channel = w.router.nodes[0].channel
    assert channel is not None
    await until(lambda: channel.lane() is not None)


async def complete(w: World, prompt: str) -> httpx.Response:
    return await w.http.post("/v1/completions", json={"prompt": prompt, "stream": True})


def num_over(node: ChannelledNode) -> int:
    """Streams that go over its channel now."""
    return sum(len(one.streams) for one in node.channels._open.values())


async def test_streams_of_a_router_go_over_one_connection() -> None:
    paced = Paced()
    async with channelled(paced) as node, world(nodes=[node]) as w:  # type: ignore[list-item]
        await begun(w)
        asking = [asyncio.create_task(complete(w, str(3 + number))) for number in range(5)]
        await until(lambda: num_over(node) == 5)
        for _ in range(3 + 4 + 5 + 6 + 7):
            paced.next.release()
        for number, answer in enumerate(await asyncio.gather(*asking)):
            events = [b"data: %d" % at for at in range(3 + number)] + [b"data: [DONE]"]
            assert answer.content == b"\n\n".join(events) + b"\n\n"
            assert "x-quire-channel" not in answer.headers
        assert num_over(node) == 0


async def test_a_client_cannot_name_a_channel() -> None:
    paced = Paced()
    async with channelled(paced) as node, world(nodes=[node]) as w:  # type: ignore[list-item]
        await begun(w)
        (name,) = node.channels._open
        paced.next.release()
        answer = await w.http.post(
            "/v1/completions",
            json={"prompt": "1", "stream": True},
            headers={"x-quire-channel": f"{name}.4000"},
        )
        assert answer.content == b"data: 0\n\ndata: [DONE]\n\n"


async def test_a_client_that_leaves_ends_its_stream_and_no_other() -> None:
    paced = Paced()
    async with channelled(paced) as node, world(nodes=[node]) as w:  # type: ignore[list-item]
        await begun(w)
        staying = asyncio.create_task(complete(w, "2"))
        async with httpx.AsyncClient(base_url=w.url) as other:
            body = {"prompt": "9", "stream": True}
            leaving = asyncio.create_task(other.post("/v1/completions", json=body))
            await until(lambda: num_over(node) == 2)
            leaving.cancel()
        await until(lambda: node.num_ended == 1)
        await until(lambda: num_over(node) == 1)
        for _ in range(3):
            paced.next.release()
        assert (await staying).content.endswith(b"[DONE]\n\n")


async def test_a_client_that_does_not_read_keeps_no_other_waiting() -> None:
    paced = Paced()
    async with channelled(paced) as node, world(nodes=[node]) as w:  # type: ignore[list-item]
        await begun(w)
        parts = urlsplit(w.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 16)
        body = b'{"prompt": "endless", "stream": true}'
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        await reader.readuntil(b"\r\n\r\n")
        await until(lambda: node.num_left == 1)
        await until(lambda: num_over(node) == 0)
        paced.next.release()
        assert (await complete(w, "1")).content == b"data: 0\n\ndata: [DONE]\n\n"
        received = 0
        while received < 4 << 20:  # it goes on over its own connection
            received += len(await reader.read(1 << 16))
        writer.close()
        await until(lambda: node.num_ended == 2)


async def test_a_channel_that_breaks_ends_its_streams_with_an_error_and_is_opened_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quire.cluster.nodes.channel.RETRY_S", 0.0)
    paced = Paced()
    async with channelled(paced) as node, world(nodes=[node]) as w:  # type: ignore[list-item]
        await begun(w)
        paced.next.release()
        asking = asyncio.create_task(complete(w, "2"))
        await until(lambda: num_over(node) == 1)
        await until(lambda: paced.next.locked())
        assert node.channel is not None
        node.channel.cancel()
        answer = await asking
        assert answer.content.startswith(b"data: 0\n\n")
        assert b'"code": "engine_lost"' in answer.content
        await until(lambda: node.num_ended == 1)
        await begun(w)
        paced.next.release()
        assert (await complete(w, "1")).content == b"data: 0\n\ndata: [DONE]\n\n"
