"""Bounds of fields that all routes of generation share."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter, ValidationError
from scripted_server import RunningServer

from quire.core.decoding import SamplerSpec
from quire.core.interfaces import Tokenizer
from quire.server import planning
from quire.server.answers.generation import PromptChunk
from quire.server.answers.logprobs import spelled
from quire.server.completions.format import CompletionsFormatter
from quire.server.requests.sampling import sampler_of
from quire.server.routes import tokenize as tokenize_route
from quire.server.schemas.generation import MAX_STOPS, BadWord, Breaker, ChoiceText, StopString
from quire.server.schemas.generation import Stop as StopField


@pytest.mark.parametrize(
    ("kind", "longest"),
    [(StopString, 1024), (ChoiceText, 1024), (BadWord, 256), (Breaker, 64)],
    ids=["stop", "choice", "bad word", "breaker"],
)
def test_texts_have_one_character_at_least_and_a_longest_length(kind: object, longest: int) -> None:
    field = TypeAdapter[str](kind)
    for length in (1, longest):
        assert field.validate_python("x" * length) == "x" * length
    for length in (0, longest + 1):
        with pytest.raises(ValidationError):
            field.validate_python("x" * length)


def test_stops_are_bounded_in_number() -> None:
    field = TypeAdapter[object](StopField)
    assert field.validate_python(["x"] * MAX_STOPS) == ["x"] * MAX_STOPS
    with pytest.raises(ValidationError):
        field.validate_python(["x"] * (MAX_STOPS + 1))


def test_the_words_of_a_request_are_tokenised_once(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for each of its prompts: there may be 256 of them, and a thousand words."""
    made: list[SamplerSpec] = []

    def noted(*given: Any) -> SamplerSpec:
        made.append(sampler_of(*given))
        return made[-1]

    monkeypatch.setattr(planning, "sampler_of", noted)
    body = {"prompt": ["say a", "say b", "say c"], "bad_words": ["x", "y"], "max_tokens": 1}
    answer = http.post("/v1/completions", json=body)
    assert len(answer.json()["choices"]) == 3
    (spec,) = made
    assert [one.name for one in spec.processors][:1] == ["bad_words"]


def test_tokens_without_end_are_spelled_in_a_thread(
    http: httpx.Client, server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spelling takes a microsecond for each, and a body may have millions."""
    threads: set[int] = set()

    def noted(tokenizer: Tokenizer, token: int) -> tuple[str, bytes]:
        threads.add(threading.get_ident())
        return spelled(tokenizer, token)

    monkeypatch.setattr(tokenize_route, "spelled", noted)
    asked: Future[int] = asyncio.run_coroutine_threadsafe(_ident(), server.loop)
    for text, is_apart in (("a b", False), ("a b " * 5000, True)):
        threads.clear()
        found = http.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
        assert "".join(found["token_strs"]).endswith(text)
        assert (threads == {asked.result()}) is not is_apart


@pytest.mark.parametrize("stream", [False, True])
def test_figures_of_a_long_prompt_are_formatted_in_a_thread(
    http: httpx.Client, server: RunningServer, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    threads: list[int] = []
    feed, whole = CompletionsFormatter.feed, CompletionsFormatter.whole

    def noted_feed(formatter: CompletionsFormatter, item: PromptChunk) -> list[bytes]:
        threads.append(threading.get_ident())
        return feed(formatter, item)

    def noted_whole(formatter: CompletionsFormatter) -> bytes:
        threads.append(threading.get_ident())
        return whole(formatter)

    monkeypatch.setattr(CompletionsFormatter, "feed", noted_feed)
    monkeypatch.setattr(CompletionsFormatter, "whole", noted_whole)
    asked: Future[int] = asyncio.run_coroutine_threadsafe(_ident(), server.loop)
    for num, is_apart in ((100, False), (200, True)):
        threads.clear()
        body = {"prompt": [7] * num, "echo": True, "logprobs": 2, "max_tokens": 0}
        answer = http.post("/v1/completions", json={**body, "stream": stream})
        assert answer.status_code == 200, answer.text
        assert bool(set(threads) - {asked.result()}) is is_apart
        if is_apart and not stream:
            assert threads[-1] != asked.result(), "the whole answer as well"


async def _ident() -> int:
    return threading.get_ident()
