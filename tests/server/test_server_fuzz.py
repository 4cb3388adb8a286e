"""Whatever JSON comes, the answer is a result or a 4xx in the one shape, never a 500."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_server import RunningServer, running_server


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """Not the one of all tests, where stored responses of others may keep pages."""
    with running_server() as running:
        yield running


TEXT = st.text(max_size=30)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**31, 2**63, -(2**63), 10**400])
    | st.floats(allow_nan=False)
    | TEXT
)
JSON = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=4) | st.dictionaries(TEXT, v, max_size=4), max_leaves=8
)
GOOD_CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "say fuzz"}],
    "max_tokens": 4,
    "n": 1,
    "stop": ["x"],
    "temperature": 0.5,
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "logit_bias": {"65": 1},
    "stream_options": {"include_usage": True},
}
CHAT_FIELDS = (*GOOD_CHAT, "logprobs", "seed", "top_k", "chat_template_kwargs", "priority")
GOOD_COMPLETION: dict[str, Any] = {"prompt": "say fuzz", "max_tokens": 4, "echo": True}
COMPLETION_FIELDS = (*GOOD_COMPLETION, "logprobs", "n", "stop", "structured_outputs")

GOOD_RESPONSE: dict[str, Any] = {
    "input": [{"role": "user", "content": "say fuzz"}],
    "max_output_tokens": 4,
    "store": False,
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": "low"},
}
RESPONSE_FIELDS = (*GOOD_RESPONSE, "tools", "tool_choice", "include", "previous_response_id")
GOOD_MESSAGES: dict[str, Any] = {
    "messages": [{"role": "user", "content": "say fuzz"}],
    "max_tokens": 4,
    "system": "Be brief",
}
ERROR_FIELDS = {"message", "type", "param", "code"}
MESSAGES_FIELDS = (*GOOD_MESSAGES, "tools", "tool_choice", "thinking", "output_config", "metadata")


def mutated(good: dict[str, Any], fields: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """A good body with some fields replaced by anything."""
    return st.dictionaries(st.sampled_from(fields), JSON, min_size=1, max_size=3).map(
        lambda changes: {**good, **changes}
    )


CASES = st.one_of(
    st.tuples(st.just("/v1/responses"), mutated(GOOD_RESPONSE, RESPONSE_FIELDS)),
    st.tuples(st.just("/v1/messages"), mutated(GOOD_MESSAGES, MESSAGES_FIELDS)),
    st.tuples(st.just("/v1/chat/completions"), JSON | mutated(GOOD_CHAT, CHAT_FIELDS)),
    st.tuples(st.just("/v1/completions"), JSON | mutated(GOOD_COMPLETION, COMPLETION_FIELDS)),
    st.tuples(st.just("/tokenize"), JSON | mutated({"prompt": "x"}, ("prompt", "messages"))),
    st.tuples(st.just("/detokenize"), JSON | mutated({"tokens": [65]}, ("tokens", "model"))),
    st.tuples(
        st.just("/v1/programs"), JSON | mutated({"program": "none"}, ("program", "args", "source"))
    ),
)


@pytest.fixture(scope="module")
def fuzzed(server: RunningServer) -> Any:
    with httpx.Client(base_url=server.url, timeout=60) as http:
        yield http


@settings(
    max_examples=80,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(case=CASES)
def test_no_body_is_a_500(fuzzed: httpx.Client, case: tuple[str, Any]) -> None:
    path, body = case
    raw = json.dumps(body, allow_nan=True).encode("utf-8", "surrogatepass")
    response = fuzzed.post(path, content=raw, headers={"content-type": "application/json"})
    assert response.status_code < 500, response.text
    if response.status_code >= 400:
        fields = {"message", "type"} if path == "/v1/messages" else ERROR_FIELDS
        assert set(response.json()["error"]) == fields


HEADERS = st.sampled_from(
    [
        "x-quire-program-id",
        "x-quire-thread-id",
        "x-quire-final",
        "x-session-id",
        "x-request-id",
        "authorization",
        "origin",
        "content-type",
        "accept",
    ]
)


@settings(max_examples=40, derandomize=True, database=None, deadline=None)
@given(
    headers=st.dictionaries(
        HEADERS, st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=30)
    )
)
def test_no_header_is_a_500(fuzzed: httpx.Client, headers: dict[str, str]) -> None:
    encoded = {name: value.strip().encode("latin-1") for name, value in headers.items()}
    response = fuzzed.post("/v1/completions", json={"prompt": "say x"}, headers=encoded)
    assert response.status_code < 500, response.text


def test_afterwards_nothing_is_held(fuzzed: httpx.Client, server: RunningServer) -> None:
    assert server.num_held_blocks() == 0
