"""Anthropic's /v1/messages through the anthropic package: whole, streamed, with tools; errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from pydantic import TypeAdapter
from scripted_server import MODEL, RunningServer, running_server

from quire.core.config import ServerConfig, TenantConfig
from quire.core.ids import TenantId
from quire.server.anthropic.translation import messages_of
from quire.server.schemas.anthropic import MessagesRequest
from quire.server.schemas.messages import AssistantMessage

ADD: Any = {
    "name": "add",
    "description": "Add two numbers",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["a"],
        "additionalProperties": False,
    },
}
NOOP: Any = {"name": "noop", "input_schema": {"type": "object", "properties": {}}}
THINKING = "say <think>let me see</think>done"
MESSAGE: TypeAdapter[Any] = TypeAdapter(Message)


@pytest.fixture
def claude(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def user(text: Any) -> Any:
    return {"role": "user", "content": text}


def ask(client: anthropic.Anthropic, *messages: Any, **fields: Any) -> Message:
    fields.setdefault("max_tokens", 100)
    found = client.messages.create(model=MODEL, messages=list(messages), **fields)
    assert isinstance(found, Message)
    MESSAGE.validate_python(found.model_dump(warnings=False))
    return found


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_an_answer_with_its_frame(claude: anthropic.Anthropic) -> None:
    found = ask(claude, user("say Grüße!"), system="Be brief")
    assert text_of(found) == "Grüße!"
    assert (found.type, found.role, found.model) == ("message", "assistant", MODEL)
    assert found.id.startswith("msg_")
    assert (found.stop_reason, found.stop_sequence) == ("end_turn", None)
    assert found.usage.output_tokens == len("Grüße!".encode()) + 1
    assert found._request_id is not None


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        ("say hello", {}),
        ("say hello", {"max_tokens": 3}),
        ("say hello", {"stop_sequences": ["l"]}),
        (THINKING, {}),
        ('call add {"a": 3}', {"tools": [ADD]}),
        ('call add {"a": 3}', {"tools": [ADD], "max_tokens": 41}),
        ("say ", {}),
    ],
)
def test_a_stream_tells_what_a_whole_message_says(
    claude: anthropic.Anthropic, said: str, fields: dict[str, Any]
) -> None:
    whole = ask(claude, user(said), **fields)
    fields = {"max_tokens": 100, **fields}
    with claude.messages.stream(model=MODEL, messages=[user(said)], **fields) as stream:
        for _ in stream:
            pass
        final = stream.get_final_message()
    assert without_ids(final) == without_ids(whole)


def without_ids(message: Message) -> Any:
    shown = message.model_dump(exclude={"id"}, warnings=False)
    # what is cached depends on the calls before, and thinking is counted by the chunk
    for name in ("cache_read_input_tokens", "input_tokens", "output_tokens_details"):
        shown["usage"].pop(name)
    for block in shown["content"]:
        block.pop("id", None)
        block.pop("parsed_output", None)
    return shown


def test_the_events_come_in_their_order(http: httpx.Client) -> None:
    body = {"model": MODEL, "max_tokens": 100, "stream": True, "messages": [user(THINKING)]}
    answer = http.post("/v1/messages", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.split("\n") if line]
    names = [line.removeprefix("event: ") for line in lines[::2]]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [event["type"] for event in events] == names
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert [event["content_block"]["type"] for event in starts] == ["thinking", "text"]
    assert [event["index"] for event in starts] == [0, 1]
    assert events[0]["message"]["usage"]["input_tokens"] > 0


def test_a_cached_prompt_is_counted_apart(claude: anthropic.Anthropic) -> None:
    said = user("say cached for messages " + "x" * 64)
    first, second = ask(claude, said).usage, ask(claude, said).usage
    assert first.cache_read_input_tokens == 0
    assert (second.cache_read_input_tokens or 0) >= 64
    assert second.input_tokens + (second.cache_read_input_tokens or 0) == first.input_tokens


def test_stop_sequences_are_named(claude: anthropic.Anthropic) -> None:
    found = ask(claude, user("say one two"), stop_sequences=["two", "three"])
    assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", "two")
    assert text_of(found) == "one "
    cut = ask(claude, user("say one two"), max_tokens=2)
    assert cut.stop_reason == "max_tokens"


def test_thinking_is_a_block_of_its_own(claude: anthropic.Anthropic) -> None:
    found = ask(claude, user(THINKING), thinking={"type": "enabled", "budget_tokens": 1024})
    thinking, text = found.content
    assert thinking.type == "thinking"
    assert thinking.thinking == "let me see"
    assert text.type == "text"
    details = found.usage.output_tokens_details
    assert details is not None
    assert details.thinking_tokens > 0
    again = ask(
        claude, user(THINKING), {"role": "assistant", "content": found.content}, user("say on")
    )
    assert text_of(again) == "on"


def test_a_tool_loop(claude: anthropic.Anthropic) -> None:
    asked = user('call add {"a": 3}')
    found = ask(claude, asked, tools=[ADD])
    (use,) = found.content
    assert use.type == "tool_use"
    assert (use.name, use.input) == ("add", {"a": 3})
    assert found.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "12", "is_error": False}
    answer = {"role": "assistant", "content": found.content}
    again = ask(claude, asked, answer, user([result]), tools=[ADD])
    assert text_of(again) == "The tool said 12."
    blocks = [{"type": "text", "text": "12"}]
    again = ask(claude, asked, answer, user([{**result, "content": blocks}]), tools=[ADD])
    assert text_of(again) == "The tool said 12."
    more = ask(
        claude, asked, answer, user([result, {"type": "text", "text": "say and"}]), tools=[ADD]
    )
    assert text_of(more) == "and"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
def test_a_forced_call_fits_its_schema(claude: anthropic.Anthropic, choice: Any) -> None:
    tools = [ADD] if choice["type"] == "any" else [NOOP, ADD]
    found = ask(claude, user("say no"), tools=tools, tool_choice=choice)
    use = found.content[0]
    assert use.type == "tool_use"
    assert use.name == "add"
    value = use.input["a"]
    assert isinstance(value, int)
    assert 0 <= value <= 9


def test_calls_can_be_ruled_out_or_kept_to_one(claude: anthropic.Anthropic) -> None:
    none = ask(claude, user('call add {"a": 3}'), tools=[ADD], tool_choice={"type": "none"})
    assert (none.content, none.stop_reason) == ([], "end_turn")
    two = 'say <tool_call>{"name": "noop", "arguments": {}}</tool_call>' * 2
    said = user("say " + two.replace("say ", ""))
    both = ask(claude, said, tools=[NOOP], max_tokens=200)
    assert [block.type for block in both.content] == ["tool_use"] * 2
    choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
    one = ask(claude, said, tools=[NOOP], max_tokens=200, tool_choice=choice)
    assert [block.type for block in one.content] == ["tool_use"]


def test_a_schema_constrains_the_answer(claude: anthropic.Anthropic) -> None:
    schema = {
        "type": "object",
        "properties": {"good": {"type": "boolean"}},
        "required": ["good"],
        "additionalProperties": False,
    }
    config: Any = {"format": {"type": "json_schema", "schema": schema}}
    found = ask(claude, user("say whatever"), output_config=config)
    assert set(json.loads(text_of(found))) == {"good"}


def test_an_unfinished_answer_is_continued(http: httpx.Client) -> None:
    """The prompt ends with the text itself, as counting its tokens shows."""
    begun = [user("say hello"), {"role": "assistant", "content": "hel"}]

    def count(messages: list[Any]) -> int:
        answer = http.post("/v1/messages/count_tokens", json={"messages": messages})
        return int(answer.json()["input_tokens"])

    assert count(begun) == count(begun[:1]) + len("hel")
    answer = http.post("/v1/messages", json={"messages": begun, "max_tokens": 5})
    assert answer.status_code == 200, answer.text


def test_tokens_are_counted_as_the_answer_counts_them(claude: anthropic.Anthropic) -> None:
    said = [user("say a"), {"role": "assistant", "content": "a"}, user("say b")]
    counted = claude.messages.count_tokens(model=MODEL, messages=said, tools=[ADD], system="be")
    usage = ask(claude, *said, tools=[ADD], system="be").usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    bare = claude.messages.count_tokens(model=MODEL, messages=said)
    assert bare.input_tokens < counted.input_tokens


def test_calls_of_a_coding_agent_are_one_session(server: RunningServer) -> None:
    headers = {"x-claude-code-session-id": "claude-code-1", "anthropic-version": "2023-06-01"}
    body = {"max_tokens": 9, "messages": [user("say x")], "metadata": {"user_id": "u"}}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as http:
        programs = {
            http.post("/v1/messages?beta=true", json=body).headers["x-quire-program-id"]
            for _ in range(2)
        }
    assert len(programs) == 1


@pytest.mark.parametrize(
    ("source", "read"),
    [
        ({"type": "text", "media_type": "text/plain", "data": "It rained."}, "It rained."),
        ({"type": "content", "content": "It rained."}, "It rained."),
        ({"type": "content", "content": [{"type": "text", "text": one} for one in "ab"]}, "a\nb"),
    ],
)
def test_a_document_is_read_as_its_text(http: httpx.Client, source: Any, read: str) -> None:
    def count(*blocks: Any) -> Any:
        return http.post("/v1/messages/count_tokens", json={"messages": [user(list(blocks))]})

    document = {"type": "document", "title": "Log", "context": "of May", "source": source}
    text = {"type": "text", "text": f"Log\nof May\n{read}"}
    question = {"type": "text", "text": "Did it rain?"}
    found = count(document, question)
    assert found.status_code == 200, found.text
    assert found.json() == count(text, question).json()


def test_an_answer_may_fill_the_context(claude: anthropic.Anthropic, http: httpx.Client) -> None:
    """Clients that do not know the model's context ask for as much as another model has."""
    length = http.get("/v1/models").json()["data"][0]["max_model_len"]
    found = ask(claude, user("say " + "x" * (length * 2 // 3)), max_tokens=8192)
    assert found.stop_reason == "model_context_window_exceeded"
    assert found.usage.input_tokens + found.usage.output_tokens in (length, length + 1)
    assert ask(claude, user("say x"), max_tokens=8192).stop_reason == "end_turn"


# -- what cannot be served -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": [user("x" * 5000)]}, "context"),
        ({"mcp_servers": [{"type": "url", "url": "https://x"}]}, "send their tools as tools"),
        (
            {"messages": [user([{"type": "document", "source": {"type": "base64"}}])]},
            "a document of kind 'base64' cannot be read here: send its text",
        ),
        (
            {"messages": [user([{"type": "document", "source": {"type": "text"}}])]},
            "needs data",
        ),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [user([{"type": "server_tool_use"}])]}, "messages[0].content[0]"),
        (
            {"messages": [user([{"type": "image", "source": {"type": "base64"}}])]},
            "messages[0].content[0].source",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [NOOP, NOOP]}, "same name"),
        ({"tool_choice": {"type": "any"}}, "no tools"),
        ({"tools": [NOOP], "tool_choice": {"type": "tool", "name": "x"}}, "not in tools"),
        ({"temprature": 1}, "temprature"),
    ],
)
def test_bad_requests_are_errors_of_anthropics_shape(
    http: httpx.Client, fields: dict[str, Any], word: str
) -> None:
    body = {"max_tokens": 9, "messages": [user("say x")], **fields}
    body = {name: value for name, value in body.items() if value is not None}
    answer = http.post("/v1/messages", json=body)
    assert answer.status_code == 400, answer.text
    found = answer.json()
    assert (found["type"], found["error"]["type"]) == ("error", "invalid_request_error")
    assert word in found["error"]["message"]
    assert found["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]


def test_a_tool_of_another_service_is_one_problem(http: httpx.Client) -> None:
    """It has no schema because the other service knows it."""
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    body = {"max_tokens": 9, "messages": [user("say x")], "tools": tools}
    found = http.post("/v1/messages", json=body).json()["error"]["message"]
    assert found.endswith("run its calls yourself")


def test_an_image_is_refused_by_a_model_that_reads_text(http: httpx.Client) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    body = {"max_tokens": 9, "messages": [user([{"type": "image", "source": source}])]}
    answer = http.post("/v1/messages", json=body)
    assert answer.status_code == 400
    assert "text only" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "kind"),
    [
        ("POST", "/v1/messages", {"content": b"{"}, 400, "invalid_request_error"),
        ("GET", "/v1/messages", {}, 405, "invalid_request_error"),
        ("POST", "/v1/messages/nothing", {"json": {}}, 404, "not_found_error"),
        (
            "POST",
            "/v1/messages",
            {"json": {}, "headers": {"host": "evil.example"}},
            403,
            "permission_error",
        ),
        (
            "POST",
            "/v1/messages",
            {"json": {}, "headers": {"origin": "https://evil.example"}},
            403,
            "permission_error",
        ),
        (
            "POST",
            "/v1/messages",
            {"content": b"x" * (5 << 20)},
            413,
            "request_too_large",
        ),
        (
            "POST",
            "/v1/messages/count_tokens",
            {"json": {"messages": [user("x")], "model": "none"}},
            404,
            "not_found_error",
        ),
        (
            "POST",
            "/v1/messages/count_tokens",
            {"json": {"messages": [user("x")]}, "headers": {"anthropic-version": "new"}},
            400,
            "invalid_request_error",
        ),
    ],
)
def test_every_layers_errors_have_anthropics_shape(
    http: httpx.Client, method: str, path: str, options: Any, status: int, kind: str
) -> None:
    answer = http.request(method, path, **options)
    assert answer.status_code == status, answer.text
    found = answer.json()
    assert found.keys() == {"type", "error", "request_id"}
    assert (found["type"], found["error"]["type"]) == ("error", kind)
    assert int(answer.headers["content-length"]) == len(answer.content)


def test_keys_are_taken_from_either_header() -> None:
    tenants = [TenantConfig(TenantId("a"), api_keys=("secret",))]
    with running_server(tenants=tenants) as server:
        for client in (
            anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0),
            anthropic.Anthropic(
                base_url=server.url, api_key=None, auth_token="secret", max_retries=0
            ),
        ):
            with client:
                assert text_of(ask(client, user("say in"))) == "in"
        with (
            anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as client,
            pytest.raises(anthropic.AuthenticationError) as error,
        ):
            ask(client, user("say in"))
    body: Any = error.value.body
    assert body["error"]["type"] == "authentication_error"


def test_blocks_that_are_longer_together_than_one_may_be(server: RunningServer) -> None:
    """What is joined or written anew has been bounded as it came; the prompt's length decides."""
    long = "x" * (3 << 20)
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": "é" * (1 << 20)}}
    texts = [{"type": "text", "text": long}, {"type": "thinking", "thinking": long}] * 2
    for content in ([call], texts):
        earlier = {"role": "assistant", "content": content}
        body = {"messages": [user("say x"), earlier, user("say x")]}
        asked = MessagesRequest.model_validate({"max_tokens": 1, **body})
        (message,) = messages_of(asked)[1:2]
        assert isinstance(message, AssistantMessage)
    assert message.content == long * 2
    body = {"messages": [{"role": "assistant", "content": [call]}, user("say x")]}
    answer = httpx.post(f"{server.url}/v1/messages", json={"max_tokens": 1, **body}, timeout=60)
    assert answer.status_code == 400, answer.text
    assert "holds 1024" in answer.text


def test_a_refused_preflight_is_told_in_the_same_shape() -> None:
    """Its answer is a line of plain text, made by a layer that knows no dialect."""
    origin = "http://pages.example"
    with running_server(ServerConfig(cors_origins=(origin,))) as server:
        headers = {"origin": origin, "access-control-request-method": "PUT"}
        answer = httpx.options(f"{server.url}/v1/messages", headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "type": "invalid_request_error",
        "message": "Disallowed CORS method",
    }


def test_every_field_of_the_package_is_accepted_or_refused_on_purpose(
    claude: anthropic.Anthropic,
) -> None:
    """A field that a release of the package brings must be decided on."""
    known = set(MessagesRequest.model_fields)
    sent = set(MessageCreateParamsNonStreaming.__annotations__)
    for base in MessageCreateParamsNonStreaming.__orig_bases__:  # type: ignore[attr-defined]
        sent |= set(base.__annotations__)
    headers = {"workspace_id"}
    assert sent - known == headers
    found = ask(claude, user("say x"), diagnostics={}, container="c", inference_geo="eu")
    assert text_of(found) == "x"


# -- what newer packages send ----------------------------------------------------------------------


def test_a_text_has_no_citations_rather_than_null(http: httpx.Client) -> None:
    """Vercel's client takes a list or nothing, and throws a whole answer away for a null."""
    body = {"max_tokens": 9, "messages": [user("say x")]}
    answer = http.post("/v1/messages", json=body).json()
    assert answer["content"] == [{"type": "text", "text": "x"}]
    sent = http.post("/v1/messages", json={**body, "stream": True}).text
    assert "citations" not in sent


def test_a_thread_of_the_package_holds_its_conversation_itself(claude: anthropic.Anthropic) -> None:
    thread = claude.beta.messages.thread(model=MODEL, max_tokens=100)
    said = []
    for turn in ("say one", "say two", "say three"):
        said += [block.text for block in thread.send(user(turn)).content if block.type == "text"]
    assert said == ["one", "two", "three"]
    assert len(thread.messages) == 6


def test_the_packages_tool_runner_ends_though_no_thread_is_kept(
    claude: anthropic.Anthropic,
) -> None:
    calls = []

    @anthropic.beta_tool
    def add(a: int) -> str:
        """Add.

        Args:
            a: A number.
        """
        calls.append(a)
        return str(a + 1)

    said: Any = [user('call add {"a": 3}')]
    runner = claude.beta.messages.tool_runner(
        model=MODEL, max_tokens=100, messages=said, tools=[add]
    )
    last = runner.until_done()
    assert [block.text for block in last.content if block.type == "text"] == ["The tool said 4."]
    assert calls == [3]


def test_a_thread_to_continue_is_not_found(http: httpx.Client) -> None:
    thread = {"type": "continue", "previous_message_id": "msg_1"}
    body = {"max_tokens": 9, "messages": [user("say x")], "thread": thread}
    answer = http.post("/v1/messages", json=body)
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["details"] == {"error_code": "thread_not_found"}
    assert "whole conversation" in error["message"]


def test_a_forced_call_comes_before_a_schema(claude: anthropic.Anthropic) -> None:
    config: Any = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    found = ask(claude, user("say x"), tools=[ADD], tool_choice=choice, output_config=config)
    assert [block.type for block in found.content] == ["tool_use"]
