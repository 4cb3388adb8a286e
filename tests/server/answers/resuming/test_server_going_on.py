"""An answer that breaks off anywhere goes on, on another request, as if nothing had happened."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from scripted_server import RunningServer, running_server

from quire.core.config import ServerConfig
from quire.core.decoding import TokenLogprobs
from quire.server.answers.resuming.told_logprobs import MAX_LOGPROBS_BYTES, packed_logprobs
from quire.server.answers.resuming.told_tokens import COMMENT, TELLS_HEADER, ToldChunk, ToldTokens
from quire.server.answers.resuming.told_whole import WHOLE, WholeHead
from quire.server.requests.strict_json import GENERATED_HEADER, MAX_GENERATED_BYTES

KEY = "0123456789abcdef"
CONFIG = ServerConfig(drain_timeout_s=1.0, sandbox_upload=False, cluster_key=KEY)
CLUSTER = {"x-quire-cluster-key": KEY}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
]
CALLS = (
    'say Both: <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>\n'
    '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
)
CHATS: dict[str, dict[str, Any]] = {
    "text": {"said": "say Größe, naïve, and 再见."},
    "stop string": {
        "said": "say One two three, four five six, and so on. Two. Three.",
        "stop": [". Th"],
    },
    "limit": {"said": "say A long answer that is cut off.", "max_tokens": 9},
    "reasoning": {"said": "say <think>I wonder: 1 < 2.</think>Yes."},
    "calls": {"said": CALLS, "tools": TOOLS},
    "usage": {"said": "say Some.", "stream_options": {"include_usage": True}},
    "choices": {"said": "say A few words.", "n": 3, "temperature": 1.0, "max_tokens": 12},
    "logprobs": {
        "said": "say Größe.", "n": 2, "logprobs": True, "top_logprobs": 3, "temperature": 1.0
    },
    "schema": {
        "said": 'say {"a": 12, "b": "x"}',
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "ab",
                "schema": {
                    "type": "object",
                    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
                    "required": ["a", "b"],
                    "additionalProperties": False,
                },
            },
        },
    },
    "penalties": {
        "said": "say A few words.", "frequency_penalty": 0.7, "temperature": 1.0, "seed": 5,
        "max_tokens": 12,
    },
}  # fmt: skip
COMPLETIONS: dict[str, dict[str, Any]] = {
    "choices": {"prompt": "say A few words.", "n": 3},
    "echo": {"prompt": [40, 50, 60], "echo": True, "temperature": 1.0, "n": 2},
    "usage": {"prompt": "say Some.", "n": 2, "stream_options": {"include_usage": True}},
    "tokens": {"prompt": "say Some.", "n": 2, "return_token_ids": True},
    "logprobs": {"prompt": "say Größe.", "logprobs": 2, "temperature": 1.0},
    "echo with logprobs": {
        "prompt": [40, 50, 60], "echo": True, "logprobs": 1, "temperature": 1.0, "n": 2
    },
    "best of": {"prompt": "say A few words.", "n": 2, "best_of": 2, "stop": ["rd"]},
}  # fmt: skip


@pytest.fixture(scope="module")
def node() -> Iterator[RunningServer]:
    with running_server(CONFIG) as node:
        yield node


def body_of(name: str) -> dict[str, Any]:
    fields = dict(CHATS[name])
    said = fields.pop("said")
    return {"messages": [{"role": "user", "content": said}], "stream": True, **fields}


def response_of(body: dict[str, Any]) -> dict[str, Any]:
    """The chat ``body`` as a response."""
    asked = {"input": body["messages"][0]["content"], "stream": True, "store": True}
    if "max_tokens" in body:
        asked["max_output_tokens"] = body["max_tokens"]
    if "tools" in body:
        asked["tools"] = [{"type": "function", **tool["function"]} for tool in body["tools"]]
    if "top_logprobs" in body:
        asked["top_logprobs"] = body["top_logprobs"]
        asked["include"] = ["message.output_text.logprobs"]
    if "response_format" in body:
        form = body["response_format"]
        asked["text"] = {"format": {"type": form["type"], **form["json_schema"]}}
    return asked


def message_of(body: dict[str, Any]) -> dict[str, Any]:
    """The chat ``body`` as a message."""
    asked = {**body, "max_tokens": body.get("max_tokens", 500)}
    unknown = ("stream_options", "logprobs", "top_logprobs", "frequency_penalty", "seed")
    for name in unknown:
        asked.pop(name, None)
    if "stop" in body:
        asked["stop_sequences"] = asked.pop("stop")
    if "tools" in body:
        asked["tools"] = [{"name": "add", "input_schema": TOOLS[0]["function"]["parameters"]}]
    if "response_format" in body:
        schema = asked.pop("response_format")["json_schema"]["schema"]
        asked["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    return asked


def asked_of(path: str, name: str) -> dict[str, Any]:
    """The request of ``CHATS`` for ``path``."""
    body = body_of(name)
    if path != "/v1/chat/completions":
        body.pop("n", None)
    return (
        message_of(body)
        if path == "/v1/messages"
        else response_of(body)
        if path == "/v1/responses"
        else body
    )


def told_answer(
    node: RunningServer, path: str, body: dict[str, Any], generated: bytes = b""
) -> bytes:
    headers = {**CLUSTER, TELLS_HEADER: "1", "content-type": "application/json"}
    if generated:
        headers[GENERATED_HEADER] = str(len(generated))
    content = generated + msgspec.json.encode(body)
    answer = httpx.post(node.url + path, content=content, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.headers[TELLS_HEADER] == "1"
    assert answer.headers["content-type"].startswith("text/event-stream")
    return answer.content


def blocks_of(
    node: RunningServer, path: str, body: dict[str, Any], generated: bytes = b""
) -> list[bytes]:
    return [block for block in told_answer(node, path, body, generated).split(b"\n\n") if block]


def whole_of(
    node: RunningServer, path: str, body: dict[str, Any], generated: bytes = b""
) -> tuple[list[ToldChunk], WholeHead, Any]:
    """What is told of an answer that is not streamed, its head and its body."""
    said, _, end = told_answer(node, path, body, generated).partition(WHOLE)
    told = [
        msgspec.json.decode(block[len(COMMENT) :], type=ToldChunk)
        for block in said.split(b"\n\n")
        if block
    ]
    head, _, whole = end.partition(b"\n\n")
    read = msgspec.json.decode(head, type=WholeHead)
    assert read.length == len(whole)
    return told, read, msgspec.json.decode(whole)


def parts(blocks: list[bytes]) -> list[Any]:
    """What a client makes of events: texts of a kind that follow one another are one; the ids of
    calls, which are random, are left out."""
    found: list[Any] = []
    for block in blocks:
        for line in block.splitlines():
            if not line.startswith(b"data: ") or line == b"data: [DONE]":
                continue
            for part in _parts(msgspec.json.decode(line[6:])):
                if found and found[-1][0] == part[0] and isinstance(part[1], str):
                    found[-1] = (part[0], found[-1][1] + part[1])
                else:
                    found.append(part)
    return found


def _parts(event: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    if "sequence_number" in event:  # responses
        yield from _parts_of_response(event)
        return
    if "choices" not in event:  # messages
        event.pop("message", None)
        event.get("content_block", {}).pop("id", None)
        delta = event.get("delta", {})
        texts = [name for name in ("text", "thinking", "partial_json") if name in delta]
        if texts:
            yield (event["type"], event["index"], texts[0]), delta[texts[0]]
        else:
            num_tokens = event.get("usage", {}).get("output_tokens")
            yield (event["type"], str([event.get("index"), delta, num_tokens])), None
        return
    for name in ("id", "created"):
        yield (name, event[name]), None
    for choice in event["choices"]:
        number = choice["index"]
        for name, values in (choice.get("logprobs") or {}).items():
            for value in values or ():
                yield ("logprobs", number, name), msgspec.json.encode(value).decode() + "\n"
        if "text" in choice:
            yield ("text", number), choice["text"]
        for name in ("token_ids", "prompt_token_ids"):
            if name in choice:
                yield (name, number), "".join(map(chr, choice[name]))
        for name, value in choice.get("delta", {}).items():
            if name != "tool_calls":
                yield (name, number), value
            else:
                for call in value:
                    function = call["function"]
                    if "name" in function:
                        yield ("call", call["index"], function["name"]), None
                    yield ("arguments", call["index"]), function.get("arguments", "")
        if choice.get("finish_reason"):
            yield ("finish", number, choice["finish_reason"], choice.get("stop_reason")), None
    if event.get("usage"):
        usage = event["usage"] | {"prompt_tokens_details": None}  # caches differ
        yield ("usage", msgspec.json.encode(usage)), None


def _parts_of_response(event: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """With all ids: those of items and calls are the same in every event. Numbers are the
    router's."""
    event.pop("sequence_number")
    for one in event.get("logprobs", ()):
        yield (event["type"], "logprobs"), msgspec.json.encode(one).decode() + "\n"
    if "delta" in event:
        yield (event["type"], event["item_id"]), event["delta"]
        return
    for one in (event.get("response") or {}, *(event.get("response") or {}).get("output", ())):
        one.pop("completed_at", None)
    if usage := event.get("response", {}).get("usage"):
        # caches differ, and where a chunk ends decides what counts as reasoning
        usage["input_tokens_details"] = usage["output_tokens_details"] = None
    yield (event["type"], msgspec.json.encode(event)), None


def without_repeats(found: list[Any]) -> list[Any]:
    """Of ids and times, the first; of texts, those of a kind in one."""
    seen: dict[Any, str] = {}
    rest = []
    for kind, value in found:
        if isinstance(value, str):
            seen[kind] = seen.get(kind, "") + value
        elif (kind, value) not in rest:
            rest.append((kind, value))
    return [sorted(seen.items(), key=str), rest]


PATHS = ["/v1/chat/completions", "/v1/messages", "/v1/responses"]


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("path", PATHS)
def test_it_goes_on_behind_any_chunk(node: RunningServer, path: str, name: str) -> None:
    check_goes_on(node, path, asked_of(path, name))


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("path", PATHS)
def test_a_whole_answer_goes_on_behind_any_chunk(node: RunningServer, path: str, name: str) -> None:
    body = asked_of(path, name)
    body.pop("stream_options", None)
    check_whole_goes_on(node, path, body)


@pytest.mark.parametrize("name", COMPLETIONS)
def test_a_whole_completion_goes_on_behind_any_chunk(node: RunningServer, name: str) -> None:
    body = {**COMPLETIONS[name], "seed": 3}
    body.pop("stream_options", None)
    check_whole_goes_on(node, "/v1/completions", body)


def test_the_log_probabilities_of_a_chats_prompt_are_told_once(node: RunningServer) -> None:
    body = {**body_of("logprobs"), "prompt_logprobs": 1}
    check_whole_goes_on(node, "/v1/chat/completions", body)


def check_whole_goes_on(node: RunningServer, path: str, body: dict[str, Any]) -> None:
    """Behind every comment, the answer is the one that was never interrupted, which in turn is the
    one that nothing is told of."""
    body = {**body, "stream": False}
    told, head, whole = whole_of(node, path, body)
    assert told
    assert head == WholeHead(head.length)
    untold = httpx.post(node.url + path, json={**body, **seeded(path, told[0].seed)}, timeout=60)
    assert comparable(untold.json(), with_ids=False) == comparable(whole, with_ids=False)
    kept = ToldTokens()
    for at, one in enumerate(told):
        kept.add(one)
        if at % 3 and body.get("n"):  # many
            continue
        generated = kept.packed()
        assert generated is not None
        _, head, rest = whole_of(node, path, body, generated)
        assert comparable(rest) == comparable(whole)


def seeded(path: str, seed: int) -> dict[str, Any]:
    """Messages and responses have no seed; their scripts need none."""
    return {"seed": seed} if path.endswith("completions") else {}


def comparable(answer: Any, *, with_ids: bool = True) -> Any:
    """Without what may differ: ids of calls, which are random; times of ends; what of a prompt was
    cached; how many tokens count as reasoning, which the end of a chunk decides."""
    if isinstance(answer, list):
        return [comparable(one, with_ids=with_ids) for one in answer]
    if not isinstance(answer, dict):
        return answer
    left_out = {"completed_at", "input_tokens_details", "output_tokens_details"}
    left_out |= {"prompt_tokens_details", "completion_tokens_details", "call_id"}
    left_out |= {"cache_read_input_tokens", "input_tokens"}
    if not with_ids or answer.get("type") in ("function", "tool_use", "function_call", "message"):
        left_out |= {"id", "created", "created_at"}
    return {
        key: comparable(value, with_ids=with_ids)
        for key, value in answer.items()
        if key not in left_out
    }


@pytest.mark.parametrize("name", COMPLETIONS)
def test_completions_of_several_choices_go_on(node: RunningServer, name: str) -> None:
    check_goes_on(node, "/v1/completions", {**COMPLETIONS[name], "stream": True, "seed": 3})


def check_goes_on(node: RunningServer, path: str, body: dict[str, Any]) -> None:
    """Behind every comment, the rest of the stream is what follows there."""
    whole = blocks_of(node, path, body)
    comments = [at for at, block in enumerate(whole) if block.startswith(COMMENT)]
    assert comments
    told = ToldTokens()
    expected = without_repeats(parts(whole))
    for at in comments:
        told.add(msgspec.json.decode(whole[at][len(COMMENT) :], type=ToldChunk))
        if at % 3 and "n" in body:  # many
            continue
        generated = told.packed()
        assert generated is not None
        rest = blocks_of(node, path, body, generated)
        assert without_repeats(parts([*whole[: at + 1], *rest])) == expected


def test_seeds_are_told_and_kept(node: RunningServer) -> None:
    body = body_of("text")
    path = "/v1/chat/completions"
    told = [
        msgspec.json.decode(block[len(COMMENT) :], type=ToldChunk)
        for block in blocks_of(node, path, {**body, "seed": 7})
        if block.startswith(COMMENT)
    ]
    assert {one.seed for one in told} == {7}
    first = blocks_of(node, path, body)
    other = blocks_of(node, path, body)
    seeds = {
        msgspec.json.decode(block[len(COMMENT) :], type=ToldChunk).seed
        for block in (*first, *other)
        if block.startswith(COMMENT)
    }
    assert len(seeds) == 2


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({TELLS_HEADER: "1"}, 401),
        ({TELLS_HEADER: "1", "x-quire-cluster-key": "another"}, 403),
        ({**CLUSTER, GENERATED_HEADER: "none"}, 400),
        ({**CLUSTER, GENERATED_HEADER: "7"}, 400),
        ({GENERATED_HEADER: "0"}, 401),
        ({**CLUSTER, GENERATED_HEADER: str(MAX_GENERATED_BYTES)}, 400),
    ],
)
def test_only_the_cluster_goes_on_and_only_with_what_it_was_told(
    node: RunningServer, headers: dict[str, str], status: int
) -> None:
    body = {**body_of("text"), "max_tokens": 500}
    answer = httpx.post(f"{node.url}/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ([ToldChunk("k", 1, 2, [1 << 20])], "tokens that"),
        ([ToldChunk("k", 1, 2, [5] * 600)], "600 tokens were generated"),
        ([ToldChunk("k", 1, 2, [5], finish_reason="stop")], "nothing is left"),
        ([ToldChunk("k", 1, 2, [5], index=1)], "2 choices were generated"),
    ],
)
def test_what_cannot_have_been_generated_is_refused(
    node: RunningServer, told: list[ToldChunk], said: str
) -> None:
    kept = ToldTokens()
    for one in told:
        kept.add(one)
    packed = kept.packed() or b""
    answer = httpx.post(
        f"{node.url}/v1/chat/completions",
        content=packed + msgspec.json.encode({**body_of("text"), "max_tokens": 500}),
        headers={
            **CLUSTER, GENERATED_HEADER: str(len(packed)), "content-type": "application/json"
        },
    )  # fmt: skip
    assert answer.status_code == 400, answer.text
    assert said in answer.text


@pytest.mark.parametrize("stream", [True, False])
def test_choices_of_several_prompts_are_counted_on(node: RunningServer, stream: bool) -> None:
    answer = httpx.post(
        f"{node.url}/v1/completions",
        json={"prompt": ["say A.", "say B."], "n": 2, "stream": stream},
        headers={**CLUSTER, TELLS_HEADER: "1"},
    )
    assert answer.headers[TELLS_HEADER] == "1"
    blocks = answer.content.split(b"\n\n")
    told = [
        msgspec.json.decode(block[len(COMMENT) :], type=ToldChunk)
        for block in blocks
        if block.startswith(COMMENT)
    ]
    assert {one.index for one in told} == {0, 1, 2, 3}
    assert {one.prompt for one in told} == {()}


def test_log_probabilities_that_are_missing_are_refused(node: RunningServer) -> None:
    kept = ToldTokens()
    kept.add(ToldChunk("k", 1, 2, [5, 6]))
    packed = kept.packed() or b""
    answer = httpx.post(
        f"{node.url}/v1/chat/completions",
        content=packed + msgspec.json.encode(body_of("logprobs")),
        headers={
            **CLUSTER, GENERATED_HEADER: str(len(packed)), "content-type": "application/json"
        },
    )  # fmt: skip
    assert answer.status_code == 400
    assert "0 log probabilities of choice 0, which needs 2" in answer.text


def test_of_too_many_log_probabilities_nobody_goes_on() -> None:
    kept = ToldTokens()
    many = packed_logprobs([TokenLogprobs(n, -0.5, [n] * 20, [-0.25] * 20) for n in range(2000)])
    most = MAX_LOGPROBS_BYTES // len(many)
    for _ in range(most):
        kept.add(ToldChunk("k", 1, 2, list(range(2000)), logprobs=many))
    assert kept.packed() is not None
    kept.add(ToldChunk("k", 1, 2, list(range(2000)), logprobs=many))
    assert kept.packed() is None


def test_a_prompts_log_probabilities_may_come_before_any_token(node: RunningServer) -> None:
    body = {**COMPLETIONS["echo with logprobs"], "seed": 3}
    told, _, whole = whole_of(node, "/v1/completions", body)
    first = next(one for one in told if one.index == 0)
    kept = ToldTokens()
    kept.add(ToldChunk(first.key, first.created, 3, [], prompt_logprobs=first.prompt_logprobs))
    _, _, rest = whole_of(node, "/v1/completions", body, kept.packed() or b"")
    assert comparable(rest) == comparable(whole)
