"""However chunks are cut, a stream adds up to the whole answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cut_answers import CUTS, TEXTS, feed_in_parts
from hypothesis import given, settings
from scripted_server import TOKENIZER

from quire.core.errors import ProgramCancelled
from quire.programs.builtin import ChoiceChunk
from quire.server.answers.frame import Frame
from quire.server.answers.generation import PromptChunk
from quire.server.chat.format import ChatFormatter, ChatOptions
from quire.server.chat.parsing import Reading

FRAME = Frame(key="k", created_unix_s=1, model="m", fingerprint="fp")


def formatter(num_choices: int = 1, reading: Reading | None = None) -> ChatFormatter:
    options = ChatOptions(num_choices=num_choices)
    return ChatFormatter(FRAME, TOKENIZER, [1, 2], options, reading or Reading(max_calls=None))


def chunk(text: str, index: int = 0, **fields: Any) -> PromptChunk:
    return PromptChunk(0, ChoiceChunk(index=index, text=text, token_ids=(1,), **fields))


def summed(events: list[bytes]) -> dict[str, Any]:
    """The message that a client makes of a stream's deltas."""
    message: dict[str, Any] = {"content": "", "calls": []}
    for event in events:
        (choice,) = json.loads(event)["choices"]
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning"] = message.get("reasoning", "") + delta.get("reasoning", "")
        assert delta.get("reasoning") == delta.get("reasoning_content")
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(message["calls"]):
                assert call["id"]
                assert call["type"] == "function"
                message["calls"].append([call["function"]["name"], ""])
            message["calls"][call["index"]][1] += call["function"]["arguments"]
        message["finish_reason"] = choice["finish_reason"]
    return message


def whole(form: ChatFormatter) -> dict[str, Any]:
    (choice,) = json.loads(form.whole())["choices"]
    message = choice["message"]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning", ""),
        "calls": [
            [call["function"]["name"], call["function"]["arguments"]]
            for call in message.get("tool_calls", ())
        ],
        "finish_reason": choice["finish_reason"],
    }


@settings(deadline=None)
@given(text=TEXTS, cuts=CUTS)
def test_any_cut_gives_the_same_message(text: str, cuts: list[int]) -> None:
    at_once, in_parts = formatter(), formatter()
    at_once.feed(chunk(text, finish_reason="stop"))
    events = feed_in_parts(in_parts, chunk, text, cuts)
    assert summed(events) == whole(in_parts) == whole(at_once)


def test_a_cancelled_choice_is_an_error() -> None:
    with pytest.raises(ProgramCancelled):
        formatter().feed(chunk("", finish_reason="cancelled"))


def test_choices_are_opened_once_each() -> None:
    form = formatter(num_choices=2)
    events = [
        *form.feed(chunk("a", index=1)),
        *form.feed(chunk("b", index=0)),
        *form.feed(chunk("c", index=1)),
    ]
    roles = [
        choice["index"]
        for event in events
        for choice in json.loads(event)["choices"]
        if "role" in choice["delta"]
    ]
    assert roles == [1, 0]


def test_a_call_cut_by_the_length_stays_a_length() -> None:
    form = formatter()
    form.feed(chunk('<tool_call>{"name": "f", "arguments": {"a": ', finish_reason="length"))
    assert whole(form) == {
        "content": "",
        "reasoning": "",
        "calls": [["f", '{"a": ']],
        "finish_reason": "length",
    }


CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}'


@pytest.mark.parametrize(
    ("text", "max_calls", "finish_reason"),
    [
        (CALL[:-2], None, "stop"),
        ('<tool_call>{"name": "f"', None, "stop"),
        (CALL + "}</tool_call>" + CALL[:-2], None, "stop"),
        (CALL + "}</tool_call>" + CALL[:-2], 1, "tool_calls"),
        (CALL, None, "tool_calls"),
        (CALL + "}", None, "tool_calls"),
    ],
)
def test_a_call_cut_by_a_stop_string_is_not_asked_for(
    text: str, max_calls: int | None, finish_reason: str
) -> None:
    """A client that reads ``tool_calls`` runs them all."""
    form = formatter(reading=Reading(max_calls=max_calls))
    events = form.feed(chunk(text, finish_reason="stop", stop_reason="stop here"))
    assert summed(events)["finish_reason"] == whole(form)["finish_reason"] == finish_reason
