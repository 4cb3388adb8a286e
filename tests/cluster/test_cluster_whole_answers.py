"""An answer that is not streamed goes on at another node when its own is lost: nothing of it is
generated again."""

from __future__ import annotations

import asyncio

import httpx
import msgspec
import pytest
from router_world import ADMIN_HEADERS, World, num_told, until, world
from stand_in_node import continuation

from quire.cluster.nodes.connection import AnswerHead, Sink
from quire.cluster.passing.opened import MAX_WHOLE_BYTES
from quire.cluster.passing.whole_answers import WholeAnswer
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import Request
from quire.core.errors import EngineLost
from quire.server.answers.resuming.told_tokens import COMMENT, ToldChunk
from quire.server.answers.resuming.told_whole import WHOLE, WholeHead

NUM_TOKENS = 12
TEXT = "Once upon a time"
PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"]
_BODIES = {
    "/v1/completions": {"prompt": TEXT},
    "/v1/responses": {"input": TEXT},
}


def prompt_of(path: str) -> str:
    return TEXT if path == "/v1/completions" else f"<user>{TEXT}<assistant>"


async def asked(w: World, path: str = PATHS[1], **fields: object) -> dict[str, str]:
    body = _BODIES.get(path, {"messages": [{"role": "user", "content": TEXT}]})
    answer = await w.http.post(path, json={**body, "max_tokens": NUM_TOKENS, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert not {"x-quire-tells", "cache-control", "x-accel-buffering"} & set(answer.headers)
    said: dict[str, str] = answer.json()
    assert said["text"] == continuation(prompt_of(path), NUM_TOKENS)
    return {**said, "node": answer.headers["x-quire-node"]}


@pytest.mark.parametrize("num_before", [1, 5, NUM_TOKENS - 1, NUM_TOKENS])
@pytest.mark.parametrize("path", PATHS)
async def test_it_goes_on_behind_the_last_token_that_was_told(path: str, num_before: int) -> None:
    async with world(3, resumes=True) as w:
        w.nodes[0].cut_after = num_before
        said = await asked(w, path)
        assert said["node"] == "node-1"
        begun = [node.begun_behind for node in w.nodes if node.begun_behind]
        num_known = min(num_before, NUM_TOKENS - 1)  # the last one comes with the answer
        assert begun == [[""], [continuation(prompt_of(path), num_known)]]
        await until(lambda: not any(node.num_outstanding for node in w.router.nodes))
        await until(lambda: w.router.nodes[1].pool.num_busy == 0)


async def test_it_goes_on_as_often_as_needed() -> None:
    async with world(4, resumes=True) as w:
        for node, after in zip(w.nodes, (2, 3, 4), strict=False):
            node.cut_after = after
        await asked(w)
        assert [len(one) for node in w.nodes for one in node.begun_behind] == [0, 2, 5, 9]


async def test_what_has_told_nothing_is_asked_anew() -> None:
    async with world(2, resumes=True) as w:
        w.nodes[0].cut_after = 0
        await asked(w)
        assert w.nodes[1].begun_behind == [""]


async def test_a_node_that_has_lost_its_engine_says_so_in_the_answers_place() -> None:
    async with world(2, resumes=True) as w:
        w.nodes[0].failure = (503, "engine_lost")
        await asked(w)
        assert [len(one) for one in w.nodes[1].begun_behind] == [NUM_TOKENS - 1]


async def test_another_failure_is_the_answer() -> None:
    async with world(2, resumes=True) as w:
        w.nodes[0].failure = (409, "program_cancelled")
        body = {"messages": [{"role": "user", "content": TEXT}]}
        answer = await w.http.post(PATHS[1], json=body)
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "program_cancelled"
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["content-length"] == str(len(answer.content))
        assert not w.nodes[1].begun_behind


async def test_where_nobody_is_left_the_client_hears_of_it() -> None:
    async with world(1, resumes=True) as w:
        w.nodes[0].cut_after = 4
        answer = await w.http.post(PATHS[0], json={"prompt": TEXT, "max_tokens": NUM_TOKENS})
        assert answer.status_code == 503
        assert "no engine takes this request now" in answer.json()["error"]["message"]


async def test_one_that_is_asked_of_a_certain_node_goes_on_too() -> None:
    async with world(3, resumes=True) as w:
        w.nodes[2].cut_after = 4
        body = {"prompt": TEXT, "max_tokens": NUM_TOKENS}
        answer = await w.http.post(PATHS[0], json=body, headers={"x-quire-node": "node-2"})
        assert answer.json()["text"] == continuation(TEXT, NUM_TOKENS)
        assert w.nodes[2].begun_behind == [""]


async def test_a_session_s_answer_goes_on_too() -> None:
    async with world(2, resumes=True) as w:
        for node in w.nodes:
            node.cut_after = 3
        task = asyncio.create_task(asked(w, session_id="mine"))
        await until(lambda: any(node.num_streams for node in w.nodes))
        for node in w.nodes:
            node.cut_after = node.cut_after if node.num_streams else None
        await task


async def test_a_drained_node_hands_it_over() -> None:
    async with world(2, resumes=True) as w:
        for node in w.nodes:
            node.whole_tokens = asyncio.Semaphore(5)
        task = asyncio.create_task(asked(w))
        running = w.router.moves._running
        await until(lambda: any(num_told(answer) == 5 for answer in running))
        (answer,) = running
        source = next(node for node in w.nodes if node.name == answer.at)
        drain = asyncio.create_task(
            w.http.post(f"/router/nodes/{source.name}/drain", headers=ADMIN_HEADERS)
        )
        await until(lambda: answer.at != source.name)
        for node in w.nodes:
            assert node.whole_tokens is not None
            for _ in range(NUM_TOKENS):
                node.whole_tokens.release()
        assert (await drain).json()["num_moved"] == 1
        assert (await task)["node"] != source.name


async def test_a_long_answer_is_passed_on_while_it_arrives() -> None:
    async with world(2, resumes=True) as w:
        for node in w.nodes:
            node.padding = "x" * (3 * MAX_WHOLE_BYTES)
        said = await asked(w)
        assert said["padding"] == w.nodes[0].padding


async def test_a_long_answer_that_breaks_off_behind_its_beginning_cuts_the_connection() -> None:
    async with world(2, resumes=True) as w:
        w.nodes[0].padding = "x" * (3 * MAX_WHOLE_BYTES)
        w.nodes[0].cut_after = NUM_TOKENS
        with pytest.raises(httpx.RemoteProtocolError):
            await asked(w)
        assert not w.nodes[1].begun_behind


async def test_a_client_that_leaves_ends_it_at_its_node() -> None:
    async with world(2, resumes=True) as w:
        for node in w.nodes:
            node.whole_tokens = asyncio.Semaphore(3)
        task = asyncio.create_task(asked(w))
        running = w.router.moves._running
        await until(lambda: any(num_told(answer) == 3 for answer in running))
        task.cancel()
        await w.nodes[0].peer.left.wait()
        await until(lambda: not any(node.num_outstanding for node in w.router.nodes))


async def test_without_resume_it_is_asked_anew() -> None:
    async with world(2) as w:
        w.nodes[0].cut_after = 3
        answer = await w.http.post(PATHS[0], json={"prompt": TEXT, "max_tokens": NUM_TOKENS})
        assert answer.json()["choices"][0]["text"] == continuation(TEXT, NUM_TOKENS)
        assert not any(node.begun_behind for node in w.nodes)


class Arriving:
    """An answer of a node in ``pieces``."""

    engine = "node-0"
    head = AnswerHead(200, [])

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    async def read(self) -> bytes:
        return self._pieces.pop(0)

    def pass_to(self, sink: Sink) -> None: ...

    def close(self) -> None: ...


async def test_one_whose_body_has_begun_does_not_move() -> None:
    told = COMMENT + msgspec.json.encode(ToldChunk("k", 1, 2, [5])) + b"\n\n"
    body = b"x" * (MAX_WHOLE_BYTES + 1)
    head = WHOLE + msgspec.json.encode(WholeHead(2 * len(body))) + b"\n\n"
    request = Request("POST", PATHS[1], [], b"{}", "r")

    async def send_on(again: Request) -> RoutedAnswer:
        raise AssertionError("nobody is asked")

    answer = WholeAnswer(Arriving(told, head, body, b""), request, send_on)
    answer._events(told)
    assert list(map(list, answer.generated or [])) == [[5]]
    answer = WholeAnswer(Arriving(told, head, body, b""), request, send_on)
    await answer.arrive()
    assert answer.generated is None
    assert await answer.read() == body
    with pytest.raises(EngineLost):
        await answer.read()
