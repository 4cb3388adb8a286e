"""Chat completions through the openai package: whole, streamed, async, parsed, with tools."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel
from scripted_server import MODEL, RunningServer

SUM_TOOL: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "minimum": 0, "maximum": 9},
                "b": {"$ref": "#/$defs/small"},
            },
            "required": ["a", "b"],
            "additionalProperties": False,
            "$defs": {"small": {"enum": [1, 2, 3]}},
        },
    },
}
NOOP_TOOL: Any = {"type": "function", "function": {"name": "noop"}}


def ask(client: openai.OpenAI, text: str, **fields: Any) -> ChatCompletion:
    fields.setdefault("model", MODEL)
    found = client.chat.completions.create(messages=[{"role": "user", "content": text}], **fields)
    assert isinstance(found, ChatCompletion)
    return found


def stream(client: openai.OpenAI, text: str, **fields: Any) -> list[ChatCompletionChunk]:
    return list(
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": text}], stream=True, **fields
        )
    )


def text_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    return "".join(
        choice.delta.content or ""
        for chunk in chunks
        for choice in chunk.choices
        if choice.index == index
    )


def test_an_answer_with_its_frame(client: openai.OpenAI) -> None:
    found = ask(client, "say Grüße, \N{GRINNING FACE}!")
    (choice,) = found.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == "Grüße, \N{GRINNING FACE}!"
    assert choice.finish_reason == "stop"
    assert (found.object, found.model) == ("chat.completion", MODEL)
    assert found.id.startswith("chatcmpl-")
    usage = found.usage
    assert usage is not None
    assert usage.prompt_tokens == len("say Grüße, \N{GRINNING FACE}!".encode()) + 4
    assert usage.completion_tokens == len("Grüße, \N{GRINNING FACE}!".encode()) + 1
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details is not None


def test_without_a_model_the_default_one_answers(client: openai.OpenAI) -> None:
    found = ask(client, "say hi", model=openai.omit)
    assert found.model == MODEL


def test_a_repeated_prompt_reports_cached_tokens(client: openai.OpenAI) -> None:
    text = "say cached " + "x" * 64
    ask(client, text)
    usage = ask(client, text).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 64


def test_a_salted_prompt_neither_finds_nor_leaves_anything(client: openai.OpenAI) -> None:
    text = "say salted " + "x" * 64
    for _ in range(2):
        usage = ask(client, text, extra_body={"cache_salt": "s"}).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize("path", ["chat/completions", "completions", "messages", "responses"])
def test_proxies_pass_the_events_on_at_once(http: httpx.Client, path: str) -> None:
    """nginx collects what it is not told to pass on."""
    ask: dict[str, Any] = {"messages": [{"role": "user", "content": "say hi"}], "max_tokens": 9}
    ask = {"completions": {"prompt": "say hi"}, "responses": {"input": "say hi"}}.get(path, ask)
    whole = http.post(f"/v1/{path}", json=ask)
    streamed = http.post(f"/v1/{path}", json={**ask, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.headers["x-accel-buffering"] == "no"
    assert streamed.headers["cache-control"] == "no-cache"
    assert whole.headers["content-type"] == "application/json"
    assert "x-accel-buffering" not in whole.headers


def test_the_order_of_a_stream(client: openai.OpenAI) -> None:
    chunks = stream(client, "say one two", stream_options={"include_usage": True})
    first, *middle, last, usage = chunks
    assert first.choices[0].delta.role == "assistant"
    assert first.choices[0].delta.content == ""
    assert all(chunk.choices[0].finish_reason is None for chunk in (first, *middle))
    assert last.choices[0].finish_reason == "stop"
    assert last.choices[0].delta.content is None
    assert text_of(chunks) == "one two"
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == len("one two") + 1
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_without_include_usage_no_chunk_has_it(client: openai.OpenAI) -> None:
    assert all("usage" not in chunk.model_fields_set for chunk in stream(client, "say one"))


def test_several_choices_are_whole_in_both_forms(client: openai.OpenAI) -> None:
    whole = ask(client, "say same", n=3)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert {choice.message.content for choice in whole.choices} == {"same"}
    chunks = stream(client, "say same", n=3)
    assert [text_of(chunks, index) for index in range(3)] == ["same"] * 3


@pytest.mark.parametrize("stop", ["END", ["zzz", "END"]])
def test_stop_strings_end_before_themselves(client: openai.OpenAI, stop: str | list[str]) -> None:
    whole = ask(client, "say before END after", stop=stop)
    assert whole.choices[0].message.content == "before "
    assert whole.choices[0].finish_reason == "stop"
    assert text_of(stream(client, "say before END after", stop=stop)) == "before "


def test_a_part_of_a_stop_string_is_text_after_all(client: openai.OpenAI) -> None:
    assert text_of(stream(client, "say a EN", stop="END")) == "a EN"


def test_max_tokens_of_either_name(client: openai.OpenAI) -> None:
    for fields in ({"max_tokens": 3}, {"max_completion_tokens": 3}):
        (choice,) = ask(client, "say abcdef", **fields).choices
        assert (choice.message.content, choice.finish_reason) == ("abc", "length")


def test_min_tokens_and_ignore_eos(client: openai.OpenAI) -> None:
    found = ask(client, "say ab", max_tokens=6, extra_body={"ignore_eos": True})
    assert found.usage is not None
    assert found.usage.completion_tokens == 6
    found = ask(client, "say ab", max_tokens=6, extra_body={"min_tokens": 5})
    assert found.usage is not None
    assert found.usage.completion_tokens >= 5


def test_stop_token_ids(client: openai.OpenAI) -> None:
    found = ask(client, "say abXcd", extra_body={"stop_token_ids": [ord("X")]})
    assert found.choices[0].message.content == "ab"
    assert found.choices[0].model_extra is not None
    assert found.choices[0].model_extra["stop_reason"] == ord("X")


def test_logit_bias_forbids_a_token(client: openai.OpenAI) -> None:
    found = ask(client, "say aaa", logit_bias={str(ord("a")): -100}, max_tokens=3, temperature=0)
    assert "a" not in (found.choices[0].message.content or "")


def test_a_seed_repeats_a_draw(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "seed": 7,
        "temperature": 2,
        "max_tokens": 8,
        "extra_body": {"ignore_eos": True, "return_token_ids": True},
    }
    one, two = (ask(client, "say x", **fields).choices[0] for _ in range(2))
    assert one.model_extra == two.model_extra


def test_logprobs_have_one_entry_per_token(client: openai.OpenAI) -> None:
    whole = ask(client, "say é!", logprobs=True, top_logprobs=3)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.bytes for entry in logprobs.content[:3]] == [[0xC3], [0xA9], [ord("!")]]
    assert all(len(entry.top_logprobs) == 3 for entry in logprobs.content)
    assert all(entry.logprob <= 0 for entry in logprobs.content)
    streamed = [
        entry
        for chunk in stream(client, "say é!", logprobs=True, top_logprobs=3)
        for choice in chunk.choices
        if choice.logprobs is not None
        for entry in choice.logprobs.content or ()
    ]
    assert streamed == logprobs.content


def test_return_token_ids(client: openai.OpenAI) -> None:
    whole = ask(client, "say hi", extra_body={"return_token_ids": True})
    assert whole.model_extra is not None
    assert whole.choices[0].model_extra is not None
    assert whole.choices[0].model_extra["token_ids"][:2] == [ord("h"), ord("i")]
    assert len(whole.model_extra["prompt_token_ids"]) == whole.usage.prompt_tokens  # type: ignore[union-attr]
    chunks = stream(client, "say hi", extra_body={"return_token_ids": True})
    streamed = [
        token
        for chunk in chunks
        for choice in chunk.choices
        for token in (choice.model_extra or {}).get("token_ids", ())
    ]
    assert streamed == whole.choices[0].model_extra["token_ids"]


def test_reasoning_under_both_names(client: openai.OpenAI) -> None:
    whole = ask(client, "say <think>why</think>because")
    message = whole.choices[0].message
    assert message.content == "because"
    assert message.model_extra is not None
    assert message.model_extra["reasoning"] == message.model_extra["reasoning_content"] == "why"
    chunks = stream(client, "say <think>why</think>because")
    extras = [chunk.choices[0].delta.model_extra or {} for chunk in chunks]
    assert "".join(extra.get("reasoning", "") for extra in extras) == "why"
    assert "".join(extra.get("reasoning_content", "") for extra in extras) == "why"


# -- tools -----------------------------------------------------------------------------------------


def test_auto_tool_call_and_its_answer(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": 'call add {"a": 1, "b": 2}'}]
    found = client.chat.completions.create(model=MODEL, messages=messages, tools=[SUM_TOOL])
    (choice,) = found.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "add"
    assert json.loads(call.function.arguments) == {"a": 1, "b": 2}
    messages += [
        choice.message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": "3"},
    ]
    found = client.chat.completions.create(model=MODEL, messages=messages, tools=[SUM_TOOL])
    assert found.choices[0].message.content == "The tool said 3."


def test_auto_may_answer_in_words(client: openai.OpenAI) -> None:
    (choice,) = ask(client, "say no call", tools=[SUM_TOOL]).choices
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"


def test_none_leaks_no_call(client: openai.OpenAI) -> None:
    """A model may call although it was not told of the tools; nobody is shown a word of it."""
    said = 'say Well. <tool_call>{"name": "add", "arguments": {}}</tool_call>'
    (choice,) = ask(client, said, tools=[SUM_TOOL], tool_choice="none").choices
    assert choice.message.tool_calls is None
    assert (choice.message.content or "").strip() == "Well."
    assert choice.finish_reason == "stop"


def test_a_call_is_text_where_there_are_no_tools(client: openai.OpenAI) -> None:
    (choice,) = ask(client, "call add {}").choices
    assert choice.message.tool_calls is None
    assert "<tool_call>" in (choice.message.content or "")


def test_a_forced_call_comes_before_a_schema(client: openai.OpenAI) -> None:
    """openai-agents and instructor send both: the schema is that of a later text."""
    schema = {"name": "n", "schema": {"type": "object"}}
    form: Any = {"type": "json_schema", "json_schema": schema}
    found = ask(client, "say x", tools=[SUM_TOOL], tool_choice="required", response_format=form)
    calls = found.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].type == "function"
    assert calls[0].function.name == "add"


NAMED: Any = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("text", ["say I would rather talk", 'call add {"a": 1, "b": 2}'])
def test_forced_calls_always_parse(client: openai.OpenAI, choice: Any, text: str) -> None:
    found = ask(client, text, tools=[SUM_TOOL], tool_choice=choice, parallel_tool_calls=False)
    calls = found.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].type == "function"
    assert calls[0].function.name == "add"
    arguments = json.loads(calls[0].function.arguments)
    assert set(arguments) == {"a", "b"}
    assert arguments["b"] in (1, 2, 3)


def test_a_named_choice_calls_that_tool_alone(client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "noop"}}
    found = ask(client, 'call add {"a": 1, "b": 2}', tools=[SUM_TOOL, NOOP_TOOL], tool_choice=named)
    calls = found.choices[0].message.tool_calls
    assert calls is not None
    assert [call.function.name for call in calls if call.type == "function"] == ["noop"]
    assert calls[0].type == "function"
    assert json.loads(calls[0].function.arguments) == {}


TWO_CALLS = (
    'say Both: <tool_call>{"name": "add", "arguments": {"a": 1, "b": 1}}</tool_call>\n'
    '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>'
)


@pytest.mark.parametrize(("parallel", "num_calls"), [(True, 2), (False, 1)])
def test_parallel_calls_stream_by_index(
    client: openai.OpenAI, parallel: bool, num_calls: int
) -> None:
    fields: dict[str, Any] = {"tools": [SUM_TOOL], "parallel_tool_calls": parallel}
    whole = ask(client, TWO_CALLS, **fields).choices[0].message
    assert whole.content == "Both:"
    assert whole.tool_calls is not None
    assert len(whole.tool_calls) == num_calls
    calls: dict[int, dict[str, str]] = {}
    chunks = stream(client, TWO_CALLS, **fields)
    for chunk in chunks:
        for delta in chunk.choices[0].delta.tool_calls or ():
            call = calls.setdefault(delta.index, {"name": "", "arguments": ""})
            assert delta.function is not None
            call["name"] += delta.function.name or ""
            call["arguments"] += delta.function.arguments or ""
    assert [calls[index] for index in sorted(calls)] == [
        {"name": call.function.name, "arguments": call.function.arguments}
        for call in whole.tool_calls
        if call.type == "function"
    ]
    assert text_of(chunks) == "Both:"
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


# -- formats ---------------------------------------------------------------------------------------


class Verdict(BaseModel):
    good: bool
    score: int


def test_parse_gives_the_pydantic_model(client: openai.OpenAI) -> None:
    found = client.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": 'say {"good": true, "score": 3}'}],
        response_format=Verdict,
    )
    assert found.choices[0].message.parsed == Verdict(good=True, score=3)


def test_a_schema_binds_a_model_that_would_say_something_else(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}
    found = ask(
        client,
        "say words",
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {**schema, "additionalProperties": False}},
        },
    )
    assert json.loads(found.choices[0].message.content or "")["x"] in (1, 2)


def test_json_object_is_an_object(client: openai.OpenAI) -> None:
    found = ask(client, 'say {"a": [1, 2]}', response_format={"type": "json_object"})
    assert json.loads(found.choices[0].message.content or "") == {"a": [1, 2]}


def test_structured_outputs_choice(client: openai.OpenAI) -> None:
    extra = {"structured_outputs": {"choice": ["red", "blue"]}}
    assert ask(client, "say red", extra_body=extra).choices[0].message.content == "red"
    assert ask(client, "say ???", extra_body=extra).choices[0].message.content in ("red", "blue")


# -- the prompt ------------------------------------------------------------------------------------


def test_continue_final_message(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "say the rest"},
        ],
        extra_body={"continue_final_message": True},
    )
    assert found.choices[0].message.content == "the rest"


def test_content_parts_are_joined(client: openai.OpenAI) -> None:
    found = client.chat.completions.create(
        model=MODEL,
        messages=[
            {
                "role": "user",
                "content": [{"type": "text", "text": "say one"}, {"type": "text", "text": "two"}],
            }
        ],
    )
    assert found.choices[0].message.content == "one\ntwo"


def test_accepted_fields_change_nothing(client: openai.OpenAI) -> None:
    found = ask(
        client,
        "say fine",
        user="u",
        store=False,
        metadata={"a": "b"},
        service_tier="auto",
        prompt_cache_key="k",
        safety_identifier="s",
        reasoning_effort="low",
        extra_body={"prompt_cache_retention": "24h", "top_k": 5, "min_p": 0.1, "priority": 3},
    )
    assert found.choices[0].message.content == "fine"


# -- async and raw ---------------------------------------------------------------------------------


async def test_async_streams_run_side_by_side(server: RunningServer) -> None:
    import asyncio

    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0
    ) as client:

        async def one(number: int) -> str:
            chunks = await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": f"say number {number}"}],
                stream=True,
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

        answers = await asyncio.gather(*(one(number) for number in range(8)))
    assert answers == [f"number {number}" for number in range(8)]


def test_raw_response_has_ids(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[{"role": "user", "content": "say x"}],
        extra_headers={"x-request-id": "mine-1", "x-quire-program-id": "conversation"},
    )
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.headers["x-quire-program-id"].startswith("prog-")
    assert raw.parse().choices[0].message.content == "x"


def test_the_stream_helper_agrees(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": "say streamed"}]
    ) as events:
        final = events.get_final_completion()
    assert final.choices[0].message.content == "streamed"


@pytest.mark.parametrize(
    ("fields", "param", "remedy"),
    [
        ({"modalities": ["text", "audio"]}, "modalities[1]", "answers are text"),
        (
            {"tools": [{"type": "custom", "custom": {"name": "code"}}]},
            "tools[0].type",
            "send a function",
        ),
    ],
)
def test_what_other_models_answer_with_is_refused_with_the_reason(
    client: openai.OpenAI, fields: dict[str, Any], param: str, remedy: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=remedy) as caught:
        ask(client, "say x", **fields)
    assert caught.value.param == param
