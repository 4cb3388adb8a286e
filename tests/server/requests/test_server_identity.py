"""The order of identity sources, and the sign of priority."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from quire.core.errors import InvalidArgument
from quire.server.requests.identity import CallIdentity, identify
from quire.server.schemas.generation import IdentityFields

IN_ORDER = [
    ("x-quire-program-id", "quire"),
    ("session_id", "body"),
    ("x-session-id", "plain"),
    ("x-dynamo-session-id", "dynamo"),
    ("x-claude-code-session-id", "claude"),
    ("session-id", "codex"),
    ("x-litellm-session-id", "litellm"),
]


def read(headers: dict[str, str], **body: object) -> CallIdentity:
    return identify(Headers(headers), IdentityFields.model_validate(body))


@pytest.mark.parametrize("first", range(len(IN_ORDER)))
def test_the_first_source_in_order_names_the_session(first: int) -> None:
    sources = dict(IN_ORDER[first:])
    session_id = sources.pop("session_id", None)
    assert read(sources, session_id=session_id).client_id == IN_ORDER[first][1]


def test_without_any_source_the_session_is_inferred() -> None:
    assert read({}) == CallIdentity()


@pytest.mark.parametrize("header", ["x-llm-d-inference-fairness-id", None])
def test_hints_are_recorded_and_make_no_session(header: str | None) -> None:
    found = read({header: "h"}) if header else read({}, prompt_cache_key="h")
    assert found == CallIdentity(hint="h")


def test_quire_headers_carry_thread_parent_and_final() -> None:
    found = read(
        {
            "X-Quire-Program-ID": "p",
            "X-Quire-Thread-ID": "t",
            "X-Quire-Parent-Thread-ID": "s",
            "X-Quire-Parent-ID": "up",
            "X-Quire-Final": "true",
        }
    )
    assert found == CallIdentity(
        client_id="p", thread="t", parent="up", parent_thread="s", final=True
    )


def test_dynamo_headers_carry_parent_and_final() -> None:
    found = read(
        {
            "x-dynamo-session-id": "s",
            "x-dynamo-parent-session-id": "up",
            "x-dynamo-session-final": "1",
        }
    )
    assert found == CallIdentity(client_id="s", parent="up", final=True)


def test_claude_code_agents_are_threads_of_their_session() -> None:
    found = read(
        {
            "x-claude-code-session-id": "s",
            "x-claude-code-agent-id": "a",
            "x-claude-code-parent-agent-id": "b",
        }
    )
    assert found == CallIdentity(client_id="s", thread="a", parent_thread="b")


def test_opencode_names_a_parent() -> None:
    found = read({"x-session-id": "s", "x-parent-session-id": "up"})
    assert found == CallIdentity(client_id="s", parent="up")


@pytest.mark.parametrize(
    ("body", "priority"),
    [
        ({}, 0),
        ({"priority": 5}, -5),
        ({"priority": -5}, 5),
        ({"nvext": {"agent_hints": {"priority": 7}}}, 7),
        ({"priority": 5, "nvext": {"agent_hints": {"priority": 7}}}, 7),
        ({"priority": 5, "nvext": {"other": 1}}, -5),
    ],
)
def test_higher_priority_runs_first_inside(body: dict[str, object], priority: int) -> None:
    assert read({}, **body).priority == priority


@pytest.mark.parametrize("value", ["x" * 257, "caf\xe9", "a\tb"])
def test_a_bad_name_is_refused_by_header(value: str) -> None:
    with pytest.raises(InvalidArgument, match="x-session-id"):
        read({"x-session-id": value})


def test_a_bad_flag_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="x-quire-final"):
        read({"x-quire-final": "maybe"})
