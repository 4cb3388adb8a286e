"""/v1/responses through the openai package: whole, streamed, with tools, stored, going on."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseFunctionToolCall, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter
from scripted_server import MODEL, RunningServer, running_server

from quire.core.config import TenantConfig
from quire.core.ids import TenantId

ADD: Any = {
    "type": "function",
    "name": "add",
    "description": "Add two numbers",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "strict": True,
}
NOOP: Any = {"type": "function", "name": "noop", "parameters": {}, "strict": None}
THINKING = "say <think>let me see</think>done"
ANY_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def ask(client: openai.OpenAI, said: Any, **fields: Any) -> Response:
    found = client.responses.create(model=MODEL, input=said, **fields)
    assert isinstance(found, Response)
    Response.model_validate(found.model_dump(warnings=False), strict=False)
    return found


def events_of(client: openai.OpenAI, said: Any, **fields: Any) -> list[Any]:
    return list(client.responses.create(model=MODEL, input=said, stream=True, **fields))


def without_ids(response: Response) -> Any:
    """What two runs of one request have in common."""
    shown = response.model_dump(exclude={"id", "created_at", "completed_at", "usage"})
    for item in shown["output"]:
        item["id"] = item["call_id"] = None
    return shown


def cached(response: Response) -> int:
    assert response.usage is not None
    return response.usage.input_tokens_details.cached_tokens


def test_an_answer_with_its_frame(client: openai.OpenAI) -> None:
    found = ask(client, "say Grüße!", instructions="Be brief", metadata={"a": "b"}, temperature=0.5)
    assert found.output_text == "Grüße!"
    assert (found.object, found.status, found.model) == ("response", "completed", MODEL)
    assert found.id.startswith("resp_")
    assert (found.instructions, found.metadata, found.temperature) == ("Be brief", {"a": "b"}, 0.5)
    assert (found.store, found.background, found.truncation) == (True, False, "disabled")
    usage = found.usage
    assert usage is not None
    assert usage.output_tokens == len("Grüße!".encode()) + 1
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("say hello", {}),
        ("say hello", {"max_output_tokens": 3}),
        (THINKING, {}),
        ('call add {"a": 3}', {"tools": [ADD]}),
        ("say ", {}),
        ("say hello", {"include": ["message.output_text.logprobs"], "top_logprobs": 2}),
    ],
)
def test_a_stream_tells_what_a_whole_response_says(
    client: openai.OpenAI, text: str, fields: dict[str, Any]
) -> None:
    whole = ask(client, text, **fields)
    events = events_of(client, text, **fields)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    for event in events:
        ANY_EVENT.validate_python(event.model_dump(warnings=False))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type == f"response.{whole.status}"
    final = events[-1].response
    assert without_ids(final) == without_ids(whole)
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == final.output
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == (
        final.output_text
    )


def test_the_helper_of_the_package_reads_the_events(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="say streamed") as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == "streamed"
    assert kinds.count("response.output_text.delta") > 1
    assert kinds[-1] == "response.completed"


def test_reasoning_is_an_item_of_its_own(client: openai.OpenAI) -> None:
    found = ask(client, THINKING)
    reasoning, message = found.output
    assert reasoning.type == "reasoning"
    assert reasoning.content is not None
    assert reasoning.content[0].text == "let me see"
    assert message.type == "message"
    assert found.output_text == "done"
    usage = found.usage
    assert usage is not None
    assert usage.output_tokens_details.reasoning_tokens > 0


def test_a_cut_answer_is_incomplete(client: openai.OpenAI) -> None:
    found = ask(client, "say hello", max_output_tokens=3)
    assert found.status == "incomplete"
    assert found.incomplete_details is not None
    assert found.incomplete_details.reason == "max_output_tokens"
    (item,) = found.output
    assert item.type == "message"
    assert item.status == "incomplete"


def test_log_probabilities_of_the_answers_tokens(client: openai.OpenAI) -> None:
    found = ask(client, "say abc", include=["message.output_text.logprobs"], top_logprobs=2)
    (item,) = found.output
    assert item.type == "message"
    (part,) = item.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert [one.token for one in part.logprobs][:3] == ["a", "b", "c"]
    assert all(len(one.top_logprobs) == 2 for one in part.logprobs)


# -- tools and formats -----------------------------------------------------------------------------


def test_a_tool_loop_with_items_sent_back(client: openai.OpenAI) -> None:
    asked: list[Any] = [{"role": "user", "content": 'call add {"a": 3}'}]
    found = ask(client, asked, tools=[ADD])
    (call,) = found.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, json.loads(call.arguments)) == ("add", {"a": 3})
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
    again = ask(client, [*asked, call.model_dump(exclude_none=True), output], tools=[ADD])
    assert again.output_text == "The tool said 12."


def test_a_tool_loop_by_previous_response(client: openai.OpenAI) -> None:
    found = ask(client, 'call add {"a": 3}', tools=[ADD])
    (call,) = found.output
    assert call.type == "function_call"
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "12"}]
    again = ask(client, output, tools=[ADD], previous_response_id=found.id)
    assert again.output_text == "The tool said 12."


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "add"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "add"}],
        },
    ],
)
def test_a_forced_call_fits_its_schema(client: openai.OpenAI, choice: Any) -> None:
    tools = [ADD] if choice == "required" else [NOOP, ADD]
    found = ask(client, "say no", tools=tools, tool_choice=choice)
    call = found.output[0]
    assert call.type == "function_call"
    assert call.name == "add"
    assert 0 <= json.loads(call.arguments)["a"] <= 9


def test_a_forced_call_comes_before_a_schema(client: openai.OpenAI) -> None:
    form: Any = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    found = client.responses.create(
        model=MODEL,
        input="say x",
        tools=[ADD],
        tool_choice="required",
        parallel_tool_calls=False,
        text={"format": form},
    )
    assert [item.type for item in found.output] == ["function_call"]


def test_no_tool_is_called_where_none_may_be(client: openai.OpenAI) -> None:
    found = ask(client, 'call add {"a": 3}', tools=[ADD], tool_choice="none")
    assert found.output[0].type == "message"


def test_parallel_calls_can_be_switched_off(client: openai.OpenAI) -> None:
    two = 'say <tool_call>{"name": "noop", "arguments": {}}</tool_call>' * 2
    two = two.replace("say ", "say ", 1).replace("say <", "<")
    both = ask(client, f"say {two}", tools=[NOOP])
    assert [item.type for item in both.output] == ["function_call"] * 2
    one = ask(client, f"say {two}", tools=[NOOP], parallel_tool_calls=False)
    assert [item.type for item in one.output] == ["function_call"]


class Verdict(BaseModel):
    good: bool


def test_a_schema_constrains_the_answer(client: openai.OpenAI) -> None:
    found = client.responses.parse(model=MODEL, input="say whatever", text_format=Verdict)
    assert isinstance(found.output_parsed, Verdict)


def test_a_json_object_is_one(client: openai.OpenAI) -> None:
    found = ask(client, "say no", text={"format": {"type": "json_object"}}, max_output_tokens=200)
    if found.status == "completed":
        assert isinstance(json.loads(found.output_text), dict)
    else:
        assert found.output_text.startswith("{")


# -- stored ----------------------------------------------------------------------------------------


def test_a_response_goes_on_from_another_with_its_pages(client: openai.OpenAI) -> None:
    first = ask(client, "say " + "first " * 20)
    second = ask(client, "say second", previous_response_id=first.id)
    assert first.usage is not None
    assert second.usage is not None
    assert second.output_text == "second"
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.total_tokens
    assert cached(second) >= first.usage.total_tokens - 16, "all but the last page"


@pytest.mark.parametrize("said", [None, []])
def test_a_response_goes_on_from_another_without_a_word(http: httpx.Client, said: Any) -> None:
    """LangGraph sends no input where there is nothing new: the model goes on by itself."""
    first = http.post("/v1/responses", json={"input": "say one"}).json()
    body = {"previous_response_id": first["id"], "input": said}
    second = http.post("/v1/responses", json=body)
    assert second.status_code == 200, second.text
    assert second.json()["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    items = http.get(f"/v1/responses/{second.json()['id']}/input_items").json()
    assert items["data"] == []


def test_instructions_are_those_of_the_request_alone(client: openai.OpenAI) -> None:
    first = ask(client, "say a", instructions="x" * 64)
    plain = ask(client, "say a")
    going_on = ask(client, "say b", previous_response_id=first.id)
    going_on_plain = ask(client, "say b", previous_response_id=plain.id)
    assert going_on.usage is not None
    assert going_on_plain.usage is not None
    assert going_on.usage.input_tokens == going_on_plain.usage.input_tokens


def test_a_conversation_can_branch(client: openai.OpenAI) -> None:
    root = ask(client, "say root")
    left, right = (ask(client, f"say {t}", previous_response_id=root.id) for t in ("l", "r"))
    for branch in (left, right):
        again = ask(client, "say x", previous_response_id=branch.id)
        assert again.output_text == "x"


def test_stored_responses_are_read_and_deleted(client: openai.OpenAI) -> None:
    made = ask(client, "say keep me", metadata={"k": "v"})
    assert client.responses.retrieve(made.id) == made
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError, match="previous_response_id") as error:
        ask(client, "say x", previous_response_id=made.id)
    assert error.value.code == "previous_response_not_found"


def test_what_is_not_to_be_stored_is_not(client: openai.OpenAI) -> None:
    made = ask(client, "say x", store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_a_streamed_response_is_stored_too(client: openai.OpenAI) -> None:
    final = events_of(client, "say x")[-1].response
    assert client.responses.retrieve(final.id) == final


def test_input_items_in_pages(client: openai.OpenAI) -> None:
    asked: list[Any] = [
        {"role": "user", "content": "say a"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "say b"}]},
    ]
    made = ask(client, asked)
    texts = [item.content[0].text for item in client.responses.input_items.list(made.id)]  # type: ignore[union-attr]
    assert texts == ["say b", "a", "say a"]
    page = client.responses.input_items.list(made.id, limit=2, order="asc")
    assert page.has_more
    rest = client.responses.input_items.list(made.id, order="asc", after=page.data[-1].id or "")
    assert [item.id for item in rest.data] == [
        item.id for item in client.responses.input_items.list(made.id, limit=1).data
    ]
    with pytest.raises(openai.BadRequestError, match="after"):
        client.responses.input_items.list(made.id, after="nothing")


def test_a_stored_item_is_referred_to_by_its_id(client: openai.OpenAI) -> None:
    made = ask(client, "say referred")
    asked: list[Any] = [
        {"role": "user", "content": "say referred"},
        {"type": "item_reference", "id": made.output[0].id},
        {"role": "user", "content": "say more"},
    ]
    assert ask(client, asked).output_text == "more"
    with pytest.raises(openai.BadRequestError, match="no stored item"):
        ask(client, [{"type": "item_reference", "id": "msg_0"}])


def test_one_tenant_does_not_see_anothers_responses() -> None:
    tenants = [TenantConfig(TenantId(name), api_keys=(f"key-{name}",)) for name in ("one", "two")]
    with running_server(tenants=tenants) as server:
        mine, other = (
            openai.OpenAI(base_url=f"{server.url}/v1", api_key=f"key-{name}", max_retries=0)
            for name in ("one", "two")
        )
        made = ask(mine, "say secret")
        assert mine.responses.retrieve(made.id).output_text == "secret"
        for use in (
            lambda: other.responses.retrieve(made.id),
            lambda: other.responses.delete(made.id),
            lambda: other.responses.cancel(made.id),
            lambda: other.responses.input_items.list(made.id),
        ):
            with pytest.raises(openai.NotFoundError):
                use()
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            ask(other, "say x", previous_response_id=made.id)
        with pytest.raises(openai.BadRequestError, match="no stored item"):
            ask(other, [{"type": "item_reference", "id": made.output[0].id}])
        assert mine.responses.retrieve(made.id).output_text == "secret"
        mine.close()
        other.close()


# -- what cannot be served -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, None),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, None),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [NOOP, NOOP]}, None),
        ({"tool_choice": "required"}, None),
        ({"tools": [NOOP], "tool_choice": {"type": "function", "name": "other"}}, None),
        ({"background": True, "store": False}, None),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"include": ["everything"]}, "include[0]"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x"}}},
            "text.format.schema",
        ),
        ({"conversation": "conv_1", "previous_response_id": "resp_0"}, None),
        ({"previous_response_id": "resp_0"}, "previous_response_id"),
    ],
)
def test_bad_requests_name_their_field(
    http: httpx.Client, fields: dict[str, Any], param: str | None
) -> None:
    answer = http.post("/v1/responses", json={"input": "say x", **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert (error["param"] or "").startswith(param), error


def test_a_prompt_that_is_too_long_is_refused_or_truncated(client: openai.OpenAI) -> None:
    turns: list[Any] = []
    for number in range(8):
        turns.append({"role": "user", "content": f"say {number} " + "x" * 200})
        turns.append({"role": "assistant", "content": "ok"})
    asked = [
        {"role": "developer", "content": "rules"},
        *turns,
        {"role": "user", "content": "say last"},
    ]
    with pytest.raises(openai.BadRequestError, match="context"):
        ask(client, asked, max_output_tokens=20)
    found = ask(client, asked, max_output_tokens=20, truncation="auto")
    assert found.output_text == "last"
    assert found.usage is not None
    assert 1024 - 20 - 220 < found.usage.input_tokens <= 1024 - 20, "no turn more than need be"
    with pytest.raises(openai.BadRequestError, match="context"):
        ask(client, "x" * 2000, truncation="auto")


def test_nothing_is_streamed_of_one_that_was_not_in_the_background(
    client: openai.OpenAI,
) -> None:
    made = ask(client, "say x")
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.retrieve(made.id, stream=True)
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(made.id)


def test_calls_of_a_coding_agent_are_one_session(server: RunningServer) -> None:
    headers = {"session-id": "codex-1"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as http:
        programs = {
            http.post("/v1/responses", json={"input": f"say {n}"}).headers["x-quire-program-id"]
            for n in range(2)
        }
    assert len(programs) == 1


def test_tokens_are_counted_as_the_response_counts_them(client: openai.OpenAI) -> None:
    """With tools and instructions, and after what is stored."""
    said: Any = {"input": "say a", "tools": [ADD], "instructions": "Be brief"}
    counted = client.responses.input_tokens.count(model=MODEL, **said)
    first = client.responses.create(model=MODEL, **said)
    assert first.usage is not None
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == first.usage.input_tokens
    bare = client.responses.input_tokens.count(model=MODEL, input="say a")
    assert bare.input_tokens < counted.input_tokens
    later: Any = {"input": "say b", "previous_response_id": first.id}
    counted = client.responses.input_tokens.count(model=MODEL, **later)
    second = client.responses.create(model=MODEL, **later)
    assert second.usage is not None
    assert counted.input_tokens == second.usage.input_tokens


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "x", "temperature": 1}, "temperature"),
        ({"input": "x", "personality": "friendly"}, "personality"),
        ({"input": []}, "input"),
        ({"input": "x", "previous_response_id": "resp_no"}, "previous_response_id"),
    ],
)
def test_what_cannot_be_counted_is_named(
    http: httpx.Client, body: dict[str, Any], param: str
) -> None:
    answer = http.post("/v1/responses/input_tokens", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_conversations_are_not_compacted(client: openai.OpenAI) -> None:
    """The path would be that of a stored response, which has other methods."""
    with pytest.raises(openai.NotFoundError, match="truncation"):
        client.responses.compact(model=MODEL, input="x")
