"""Text completions through the openai package."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types import Completion
from scripted_server import MODEL


def complete(client: openai.OpenAI, prompt: Any, **fields: Any) -> Completion:
    found = client.completions.create(model=MODEL, prompt=prompt, **fields)
    assert isinstance(found, Completion)
    return found


def test_a_text(client: openai.OpenAI) -> None:
    found = complete(client, "say hello")
    assert found.choices[0].text == "hello"
    assert found.choices[0].finish_reason == "stop"
    assert found.object == "text_completion"
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (9, 6)


def test_sixteen_tokens_by_default(client: openai.OpenAI) -> None:
    found = complete(client, "say " + "a" * 40)
    assert found.choices[0].text == "a" * 16
    assert found.choices[0].finish_reason == "length"


def test_token_ids(client: openai.OpenAI) -> None:
    assert complete(client, list(b"say ids")).choices[0].text == "ids"


@pytest.mark.parametrize("as_ids", [False, True])
def test_several_prompts_are_numbered_through(client: openai.OpenAI, as_ids: bool) -> None:
    texts = ["say one", "say two", "say three"]
    prompts = [list(text.encode()) for text in texts] if as_ids else texts
    found = complete(client, prompts, n=2)
    assert [choice.index for choice in found.choices] == list(range(6))
    expected = ["one", "one", "two", "two", "three", "three"]
    assert [choice.text for choice in found.choices] == expected
    assert found.usage is not None
    assert found.usage.prompt_tokens == sum(map(len, texts))


def test_a_stream_says_the_same(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"n": 2, "logprobs": 2, "echo": True, "max_tokens": 5}
    whole = complete(client, ["say abc", "say defghij"], **fields)
    chunks = list(
        client.completions.create(
            model=MODEL, prompt=["say abc", "say defghij"], stream=True, **fields
        )
    )
    for expected in whole.choices:
        parts = [c for chunk in chunks for c in chunk.choices if c.index == expected.index]
        assert "".join(part.text for part in parts) == expected.text
        assert parts[-1].finish_reason == expected.finish_reason
        assert expected.logprobs is not None
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [x for part in parts for x in getattr(part.logprobs, name)]
            assert joined == getattr(expected.logprobs, name), name


def test_echo_with_logprobs_scores_the_prompt(client: openai.OpenAI) -> None:
    found = complete(client, "say é", echo=True, logprobs=1, max_tokens=0)
    (choice,) = found.choices
    assert choice.text == "say é"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.top_logprobs is not None
    assert choice.logprobs.tokens[:4] == ["s", "a", "y", " "]
    assert choice.logprobs.text_offset == [0, 1, 2, 3, 4, 4]
    assert choice.logprobs.token_logprobs[0] is None
    assert choice.logprobs.top_logprobs[0] is None
    assert len(choice.logprobs.token_logprobs) == 6
    assert all(value is not None and value <= 0 for value in choice.logprobs.token_logprobs[1:])
    assert found.usage is not None
    assert found.usage.completion_tokens == 0


def test_echo_without_logprobs(client: openai.OpenAI) -> None:
    assert complete(client, "say x", echo=True).choices[0].text == "say xx"


def test_logprobs_zero_has_the_tokens_alone(client: openai.OpenAI) -> None:
    logprobs = complete(client, "say ab", logprobs=0).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.tokens[:2] == ["a", "b"]
    assert logprobs.top_logprobs is not None
    assert [len(best or {}) for best in logprobs.top_logprobs] == [1, 1, 1]


def test_return_token_ids(client: openai.OpenAI) -> None:
    (choice,) = complete(client, "say ab", extra_body={"return_token_ids": True}).choices
    assert choice.model_extra is not None
    assert choice.model_extra["prompt_token_ids"] == list(b"say ab")
    assert choice.model_extra["token_ids"][:2] == [ord("a"), ord("b")]


def test_stop_strings_and_their_inclusion(client: openai.OpenAI) -> None:
    assert complete(client, "say a;b", stop=";").choices[0].text == "a"
    included = complete(
        client, "say a;b", stop=";", extra_body={"include_stop_str_in_output": True}
    )
    assert included.choices[0].text == "a;"


def test_a_regex_binds(client: openai.OpenAI) -> None:
    extra = {"structured_outputs": {"regex": "[0-9]{3}"}}
    assert complete(client, "say abc", extra_body=extra).choices[0].text.isdigit()
    assert complete(client, "say 123", extra_body=extra).choices[0].text == "123"


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"prompt": ""}, "empty"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1 << 20]}, "token 1048576"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": ["x"] * 200, "n": 100}, "choices"),
        ({"prompt": "x" * 2000}, "2000 tokens, but the context of 'scripted' holds 1024"),
        ({"prompt": "x" * 1000, "max_tokens": 25}, "1000 tokens and max_tokens asks for 25"),
    ],
)
def test_bad_requests_say_why(client: openai.OpenAI, fields: dict[str, Any], part: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, **fields)
    assert part in caught.value.message
