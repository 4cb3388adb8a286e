"""However chunks are cut, Anthropic's events add up to the whole message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cut_answers import CUTS, TEXTS, feed_in_parts
from hypothesis import given, settings

from quire.core.errors import EngineLost
from quire.programs.builtin import ChoiceChunk
from quire.server.answers.frame import Frame
from quire.server.answers.generation import PromptChunk
from quire.server.anthropic.errors import error_events
from quire.server.anthropic.format import MessageFormatter, tool_input
from quire.server.chat.parsing import Reading
from quire.server.schemas.anthropic import AnswerText


def formatter() -> MessageFormatter:
    frame = Frame(key="k", created_unix_s=1, model="m", fingerprint="f")
    return MessageFormatter(frame, 5, Reading(max_calls=None))


def chunk(text: str, **fields: Any) -> PromptChunk:
    return PromptChunk(0, ChoiceChunk(index=0, text=text, token_ids=(1,), **fields))


def test_the_text_of_a_block_is_put_together_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding each piece to it would copy all that is there."""
    texts: list[str] = []
    set_field = AnswerText.__setattr__

    def noted(block: AnswerText, name: str, value: Any) -> None:
        texts.append(value)
        set_field(block, name, value)

    monkeypatch.setattr(AnswerText, "__setattr__", noted)
    one = formatter()
    for word in ("a ", "b ", "c "):
        one.feed(chunk(word))
    one.feed(chunk("d", finish_reason="stop"))
    assert json.loads(one.whole())["content"] == [{"type": "text", "text": "a b c d"}]
    assert texts == ["a b c d"]


def payload(event: bytes) -> dict[str, Any]:
    name, data, *rest = event.decode().split("\n")
    found: dict[str, Any] = json.loads(data.removeprefix("data: "))
    assert name == f"event: {found['type']}"
    assert rest == ["", ""]
    return found


def rebuilt(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of the events."""
    message: dict[str, Any] = events[0]["message"]
    assert events[0]["type"] == "message_start"
    inputs: dict[int, str] = {}
    is_open = False
    for event in events[1:]:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(message["content"])
                assert not is_open
                is_open = True
                message["content"].append(event["content_block"])
            case "content_block_delta":
                assert event["index"] == len(message["content"]) - 1
                assert is_open
                delta, block = event["delta"], message["content"][-1]
                if delta["type"] == "input_json_delta":
                    text = inputs.get(event["index"], "") + delta["partial_json"]
                    inputs[event["index"]] = text
                else:
                    field = delta["type"].removesuffix("_delta")
                    block[field] += delta[field]
            case "content_block_stop":
                is_open = False
            case "message_delta":
                message |= event["delta"]
                message["usage"] = event["usage"]
            case other:
                assert other in ("ping", "message_stop")
    for index, text in inputs.items():
        message["content"][index]["input"] = tool_input(text)
    return message


def without_call_ids(message: dict[str, Any]) -> dict[str, Any]:
    for block in message["content"]:
        block.pop("id", None)
    return {**message, "usage": None}


@settings(deadline=None)
@given(text=TEXTS, cuts=CUTS)
def test_any_cut_gives_the_same_message(text: str, cuts: list[int]) -> None:
    at_once, in_parts = formatter(), formatter()
    at_once.feed(chunk(text, finish_reason="stop"))
    events = feed_in_parts(in_parts, chunk, text, cuts)
    found = list(map(payload, [*events, *in_parts.last_events()]))
    whole = json.loads(in_parts.whole())
    assert rebuilt(found) == whole
    assert without_call_ids(whole) == without_call_ids(json.loads(at_once.whole()))


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('{"a": [1, 2', {"a": [1, 2]}),
        ("", {}),
        ('"text"', {"arguments": "text"}),
        ("nonsense", {"arguments": "nonsense"}),
    ],
)
def test_the_input_of_a_tool_is_an_object(arguments: str, value: dict[str, Any]) -> None:
    assert tool_input(arguments) == value


def test_an_error_in_a_stream_has_anthropics_shape() -> None:
    (event,) = error_events(EngineLost("the engine has gone"))
    assert payload(event) == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "the engine has gone"},
    }


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ('<tool_call>{"name": "f", "arguments": {"a": ', ("stop_sequence", "END")),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}}', ("tool_use", None)),
    ],
)
def test_a_call_cut_by_a_stop_sequence_is_not_asked_for(text: str, stop: tuple[str, str]) -> None:
    form = formatter()
    form.feed(chunk(text, finish_reason="stop", stop_reason="END"))
    message = json.loads(form.whole())
    assert (message["stop_reason"], message["stop_sequence"]) == stop
