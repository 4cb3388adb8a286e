"""A streamed chat whose node is lost goes on at another one: nothing is missing, nothing is told
twice."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest
from router_world import World, until, world
from stand_in_node import continuation

from quire.cluster.nodes.connection import AnswerHead, Sink
from quire.cluster.passing.resuming import resumable
from quire.cluster.passing.retelling import RetoldAnswer, retold
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import Request
from quire.server.answers.resuming.told_tokens import (
    COMMENT,
    MAX_TOKENS,
    TELLS_HEADER,
    PartialAnswer,
    ToldChunk,
    ToldTokens,
)
from quire.server.requests.strict_json import MAX_GENERATED_BYTES


class Pieces:
    """An answer that is told piece by piece."""

    engine = "a"
    head = AnswerHead(200, [(b"content-type", b"text/event-stream")])

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def read(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    def pass_to(self, sink: Sink) -> None: ...

    def close(self) -> None: ...


async def nobody(request: Request) -> RoutedAnswer:
    raise AssertionError("nothing was lost")


MESSAGES = [{"role": "user", "content": "Once upon a time"}]
PROMPT = "<user>Once upon a time<assistant>"
NUM_TOKENS = 12
PATHS = ["/v1/chat/completions", "/v1/messages", "/v1/responses"]


async def chat(w: World, path: str = PATHS[0], **fields: object) -> str:
    said = {"messages": MESSAGES} if path != PATHS[2] else {"input": MESSAGES[0]["content"]}
    body = {**said, "stream": True, "max_tokens": NUM_TOKENS, **fields}
    answer = await w.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert TELLS_HEADER not in answer.headers
    assert COMMENT.decode() not in answer.text
    return answer.text


def expected(key: str) -> list[dict[str, str]]:
    told = []
    for token in continuation(PROMPT, NUM_TOKENS):
        told += [{"id": key, "of": token}, {"id": key, "text": token}]
    return told


def events(text: str) -> list[dict[str, str]]:
    """All but their numbers."""
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    told = [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
    return [{k: str(v) for k, v in one.items() if k != "sequence_number"} for one in told]


NUMBERS = re.compile(r'"sequence_number":(\d+)')


@pytest.mark.parametrize("num_before", [1, 5, NUM_TOKENS - 1])
@pytest.mark.parametrize("loses_engine", [False, True], ids=["node lost", "engine lost"])
@pytest.mark.parametrize("path", PATHS)
async def test_the_client_sees_one_stream(path: str, loses_engine: bool, num_before: int) -> None:
    async with world(3, resumes=True) as w:
        w.nodes[0].cut_after, w.nodes[0].loses_engine = num_before, loses_engine
        told = events(await chat(w, path))
        assert told == expected(told[0]["id"])
        begun = [node.begun_behind for node in w.nodes if node.begun_behind]
        assert begun == [[""], [continuation(PROMPT, num_before)]]
        await until(lambda: not any(node.num_outstanding for node in w.router.nodes))
        await until(lambda: w.router.nodes[1].pool.num_busy == 0)


async def test_the_events_of_a_response_are_numbered_through() -> None:
    async with world(3, resumes=True) as w:
        for node, after in zip(w.nodes, (2, 3), strict=False):
            node.cut_after = after
        told = await chat(w, "/v1/responses")
        assert list(map(int, NUMBERS.findall(told))) == list(range(2 * NUM_TOKENS))
        assert told.endswith("event: response.completed\n\n")


async def test_it_goes_on_as_often_as_needed() -> None:
    async with world(4, resumes=True) as w:
        for node, after in zip(w.nodes, (2, 3, 4), strict=False):
            node.cut_after = after
        told = events(await chat(w))
        assert told == expected(told[0]["id"])


async def test_what_breaks_before_its_first_token_is_tried_anew() -> None:
    async with world(2, resumes=True) as w:
        w.nodes[0].cut_after = 0
        told = events(await chat(w))
        assert told == expected(told[0]["id"])
        assert w.nodes[1].begun_behind == [""]


async def test_a_sessions_chat_goes_on_too() -> None:
    async with world(2, resumes=True) as w:
        for node in w.nodes:
            node.cut_after = 3
        task = asyncio.create_task(chat(w, session_id="mine"))
        await until(lambda: any(node.num_streams for node in w.nodes))
        for node in w.nodes:
            node.cut_after = node.cut_after if node.num_streams else None
        told = events(await task)
        assert told == expected(told[0]["id"])


async def test_without_another_engine_the_error_is_the_end() -> None:
    async with world(1, resumes=True) as w:
        w.nodes[0].cut_after = 4
        text = await chat(w)
        assert [event.get("text") for event in events(text)[1:8:2]] == list(continuation(PROMPT, 4))
        assert "engine_lost" in text


async def test_without_resume_nothing_is_asked_for() -> None:
    async with world(1) as w:
        await chat(w)
        assert TELLS_HEADER not in w.nodes[0].asked[-1].headers


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"background": True}),
        ("/v1/responses", {"background": True, "previous_response_id": "resp_1"}),
        ("/v1/embeddings", {}),
    ],
)
def test_what_cannot_go_on_is_left_as_it_is(path: str, fields: dict[str, object]) -> None:
    body = msgspec.json.encode({"messages": MESSAGES, "stream": True, **fields})
    request = Request("POST", path, [], body, "r")
    assert retold(request, "key") is request


def test_a_client_cannot_say_what_was_generated() -> None:
    body = msgspec.json.encode({"messages": MESSAGES, "stream": True})
    headers = [(b"x-quire-generated", b"mine"), (b"x-quire-cluster-key", b"guessed"), (b"a", b"b")]
    asked = retold(Request("POST", PATHS[0], headers, body, "r"), "key")
    assert dict(asked.headers) == {
        b"a": b"b",
        b"x-quire-tells": b"1",
        b"x-quire-cluster-key": b"key",
    }


def test_a_long_answer_goes_on_and_memory_is_bounded() -> None:
    told = ToldTokens()
    assert told.packed() is None
    for _ in range(8):
        told.add(ToldChunk("k", 1, 2, [7 * at % 100_003 for at in range(MAX_TOKENS // 8)]))
    packed = told.packed()
    assert packed is not None
    assert len(packed) < MAX_GENERATED_BYTES
    assert list(map(len, told.running())) == [MAX_TOKENS]
    told.add(ToldChunk("k", 1, 2, [1]))
    assert told.packed() is None
    assert list(map(len, told.running())) == [MAX_TOKENS], "and nothing more is kept"


async def test_what_can_move_is_known_from_the_first_token_to_the_end() -> None:
    request = Request("POST", PATHS[0], [], b"{}", "r")
    pieces = [
        b'data: {"id":"k","text":"x"}\n\n',
        COMMENT + msgspec.json.encode(ToldChunk("k", 1, 2, [5, 6], prompt=[1, 2])) + b"\n\n",
        b"data: [DONE]\n\n",
    ]
    answer = RetoldAnswer(Pieces(pieces), request, nobody)
    assert (answer.prompt, answer.generated) == (None, None)
    await answer.read()
    assert answer.prompt == [1, 2]
    assert [list(one) for one in answer.generated or ()] == [[5, 6]]
    while await answer.read():
        pass
    assert answer.generated is None


def test_of_choices_that_have_ended_nothing_moves() -> None:
    told = ToldTokens()
    told.add(ToldChunk("k", 1, 2, [5], index=2))
    told.add(ToldChunk("k", 1, 2, [6], finish_reason="stop", stop_reason=6))
    assert list(map(list, told.running())) == [[], [5]]
    generated = msgspec.msgpack.decode(told.packed() or b"", type=PartialAnswer)
    assert [choice.finish_reason for choice in generated.choices] == ["stop", None, None]
    assert generated.choices[0].stop_reason == 6


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"echo": True},
        {"prompt": ["one"], "n": 3},
        {"prompt": [1, 2], "n": 3},
        {"prompt": ["one", "two"]},
        {"prompt": [[1], [2]], "n": 2},
        {"n": 2, "logprobs": 1},
        {"n": 2, "stream": False},
        {"stream": False},
    ],
)
def test_all_completions_are_told(fields: dict[str, object]) -> None:
    body = msgspec.json.encode({"prompt": "one", "stream": True, **fields})
    request = Request("POST", "/v1/completions", [], body, "r")
    assert retold(resumable(request), "key").is_resumable
