"""However chunks are cut, a response is the sum of its events, and its numbers have no gap."""

from __future__ import annotations

import json
from typing import Any

from cut_answers import CUTS, TEXTS, feed_in_parts
from hypothesis import given, settings

from quire.core.errors import EngineLost
from quire.programs.builtin import ChoiceChunk
from quire.server.answers.frame import Frame
from quire.server.answers.generation import PromptChunk
from quire.server.chat.parsing import Reading
from quire.server.responses.creation import base_response
from quire.server.responses.format import ResponseFormatter, ResponseOptions
from quire.server.schemas.responses import ResponsesRequest
from quire.testing import FakeTokenizer


def formatter(**fields: Any) -> ResponseFormatter:
    body = ResponsesRequest.model_validate({"input": "x", **fields})
    frame = Frame(key="k", created_unix_s=1, model="m", fingerprint="f")
    options = ResponseOptions(num_prompt_tokens=5, page_size=4)
    return ResponseFormatter(
        base_response(body, frame), FakeTokenizer(), options, Reading(max_calls=None)
    )


def chunk(text: str, **fields: Any) -> PromptChunk:
    return PromptChunk(0, ChoiceChunk(index=0, text=text, token_ids=(1,), **fields))


def payloads(events: list[bytes]) -> list[dict[str, Any]]:
    """The JSON of framed events, whose names are their types."""
    found = []
    for event in events:
        name, data, *rest = event.decode().split("\n")
        payload = json.loads(data.removeprefix("data: "))
        assert name == f"event: {payload['type']}"
        assert rest == ["", ""]
        found.append(payload)
    return found


def rebuilt(events: list[dict[str, Any]]) -> list[Any]:
    """The items that a client makes of the deltas alone: kind, text, name."""
    items: list[list[Any]] = []
    for event in events:
        if event["type"] == "response.output_item.added":
            assert event["output_index"] == len(items)
            items.append([event["item"]["type"], "", event["item"].get("name")])
        elif event["type"].endswith(".delta"):
            items[event["output_index"]][1] += event["delta"]
    return items


def shown(response: dict[str, Any]) -> list[Any]:
    found = []
    for item in response["output"]:
        text = item.get("arguments")
        if text is None:
            text = "".join(part["text"] for part in item["content"])
        found.append([item["type"], text, item.get("name")])
    return found


@settings(deadline=None)
@given(text=TEXTS, cuts=CUTS)
def test_any_cut_gives_the_same_response(text: str, cuts: list[int]) -> None:
    at_once, in_parts = formatter(), formatter()
    at_once.feed(chunk(text, finish_reason="stop"))
    events = feed_in_parts(in_parts, chunk, text, cuts)
    found = payloads([*events, *in_parts.last_events()])
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    whole = json.loads(in_parts.whole())
    assert found[-1] == {
        "type": "response.completed",
        "sequence_number": len(found) - 1,
        "response": whole,
    }
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert done == whole["output"]
    assert rebuilt(found) == shown(whole) == shown(json.loads(at_once.whole()))


def test_a_call_cut_by_the_length_is_incomplete() -> None:
    form = formatter()
    form.feed(chunk('<tool_call>{"name": "f", "arguments": {"a": ', finish_reason="length"))
    whole = json.loads(form.whole())
    (item,) = whole["output"]
    assert (whole["status"], item["status"], item["arguments"]) == (
        "incomplete",
        "incomplete",
        '{"a": ',
    )
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_failure_closes_what_is_open() -> None:
    form = formatter()
    events = form.feed(chunk("half a sen"))
    events += form.failed(EngineLost("the engine has gone: try again"))
    found = payloads(events)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"] for event in found[-3:]] == [
        "response.output_item.done",
        "error",
        "response.failed",
    ]
    assert found[-2]["message"] == "the engine has gone: try again"
    response = found[-1]["response"]
    assert response["status"] == "failed"
    assert response["error"]["code"] == "server_error"
    assert response["output"][0]["status"] == "incomplete"


def test_usage_counts_what_was_cached_and_what_will_be() -> None:
    form = formatter()
    form.feed(chunk("a", num_cached_tokens=3, finish_reason="stop"))
    usage = json.loads(form.whole())["usage"]
    assert usage == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 1},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 6,
    }
