"""Events made by filling a text in equal what the schema gives for that text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.programs.builtin import ChoiceChunk
from quire.server.answers.frame import Frame
from quire.server.answers.generation import PromptChunk
from quire.server.answers.text_event import TextEvent
from quire.server.completions.format import CompletionsFormatter, CompletionsOptions, EchoedPrompt
from quire.testing import FakeTokenizer

FRAME = Frame(key="k", created_unix_s=1, model='a "model"', fingerprint="fp")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_the_text_and_nothing_else_changes(text: str) -> None:
    event = TextEvent(lambda text: json.dumps({"a": [1, {"text": text}], "b": "text-"}).encode())
    assert json.loads(event.fill(text)) == {"a": [1, {"text": text}], "b": "text-"}


def test_it_is_rendered_once() -> None:
    rendered = []

    def render(text: str) -> bytes:
        rendered.append(text)
        return json.dumps(text).encode()

    event = TextEvent(render)
    assert [event.fill("x"), event.fill("y")] == [b'"x"', b'"y"']
    assert len(rendered) == 1


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_filled_event_has_what_an_event_of_the_schema_has(include_usage: bool) -> None:
    """The first chunk is filled in, the last one goes through the schema."""
    options = CompletionsOptions(num_choices=2, include_usage=include_usage)
    prompts = [EchoedPrompt("p", (1,)), EchoedPrompt("q", (2,))]
    formatter = CompletionsFormatter(FRAME, FakeTokenizer(), prompts, options)
    plain = ChoiceChunk(index=1, text='é"\n', token_ids=(5,))
    last = ChoiceChunk(index=1, text='é"\n', token_ids=(5,), finish_reason="length")
    (filled,) = formatter.feed(PromptChunk(1, plain))
    (whole,) = formatter.feed(PromptChunk(1, last))
    expected = json.loads(whole)
    expected["choices"][0].pop("stop_reason", None)
    expected["choices"][0]["finish_reason"] = None
    assert json.loads(filled) == expected
    assert expected["choices"][0]["index"] == 3
    assert ("usage" in expected) == include_usage


def test_the_texts_of_filled_events_are_in_the_whole_answer() -> None:
    formatter = CompletionsFormatter(
        FRAME, FakeTokenizer(), [EchoedPrompt("p", (1,))], CompletionsOptions()
    )
    for text, reason in (("a", None), ("b", None), ("c", "stop")):
        chunk = ChoiceChunk(index=0, text=text, token_ids=(5,), finish_reason=reason)  # type: ignore[arg-type]
        formatter.feed(PromptChunk(0, chunk))
    whole = json.loads(formatter.whole())
    assert whole["choices"][0]["text"] == "abc"
    assert whole["usage"]["completion_tokens"] == 3
