"""Hints out of range: the nearest value counts, and the answer's header says so."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from quire.server.requests.hints import CLIPPED_HEADER, deadline_in_range, priority_in_range

MOST = 2**31 - 1
DAYS_30_S = 30 * 86_400
CHAT = {"messages": [{"role": "user", "content": "say ab"}]}


def post(http: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response:
    response = http.post(path, json=body)
    assert response.status_code in (200, 201), response.text
    return response


@pytest.mark.parametrize("sent", [MOST, -MOST, 0, None])
def test_a_priority_in_range_counts_as_it_is(sent: int | None) -> None:
    assert priority_in_range(sent) == (sent or 0)


@pytest.mark.parametrize(("sent", "counts"), [(MOST + 1, MOST), (-(10**40), -MOST)])
def test_a_priority_out_of_range_is_clipped(sent: int, counts: int) -> None:
    assert priority_in_range(sent) == counts


@pytest.mark.parametrize(
    ("sent", "counts"), [(None, None), (5.0, 5.0), (-3.0, 0.0), (1e12, float(DAYS_30_S))]
)
def test_a_deadline_is_now_at_the_earliest_and_a_month_ahead_at_the_latest(
    sent: float | None, counts: float | None
) -> None:
    assert deadline_in_range(sent) == counts


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": "say ab"}),
        ("/v1/responses", {"input": "say ab", "store": False}),
    ],
)
def test_an_answer_tells_of_the_priority_that_counts(
    http: httpx.Client, path: str, body: dict[str, Any], stream: bool
) -> None:
    answered = post(http, path, body | {"stream": stream, "priority": -(10**12)})
    assert answered.headers[CLIPPED_HEADER] == f"priority=-{MOST}"


def test_dynamos_hint_is_clipped_too(http: httpx.Client) -> None:
    body = CHAT | {"nvext": {"agent_hints": {"priority": 10**12}}}
    answered = post(http, "/v1/chat/completions", body)
    assert answered.headers[CLIPPED_HEADER] == f"nvext.agent_hints.priority={MOST}"


def test_an_answer_tells_of_nothing_if_nothing_was_clipped(http: httpx.Client) -> None:
    body = CHAT | {"priority": MOST, "nvext": {"agent_hints": {"priority": -MOST}}}
    assert CLIPPED_HEADER not in post(http, "/v1/chat/completions", body).headers


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_in_the_background_tells_of_it(http: httpx.Client, stream: bool) -> None:
    body = {"input": "say ab", "background": True, "stream": stream, "priority": 10**12}
    assert post(http, "/v1/responses", body).headers[CLIPPED_HEADER] == f"priority={MOST}"


def test_a_session_shows_what_counts(http: httpx.Client) -> None:
    made = post(http, "/v1/sessions", {"id": "far", "priority": 10**12, "deadline_s": 1e12})
    assert made.headers[CLIPPED_HEADER] == f"priority={MOST}, deadline_s={DAYS_30_S}"
    session = made.json()
    assert (session["priority"], session["deadline_s"]) == (MOST, DAYS_30_S)
    late = post(http, "/v1/sessions", {"id": "late", "deadline_s": -4})
    assert late.headers[CLIPPED_HEADER] == "deadline_s=0"
    assert late.json()["deadline_s"] == 0


@pytest.mark.parametrize("answer", [{}, {"wait": True}, {"stream": True}], ids=json.dumps)
def test_a_launch_tells_of_it(http: httpx.Client, answer: dict[str, bool]) -> None:
    launch = {"program": "text_completion", "args": ["say ab"], "priority": 10**12}
    launched = post(http, "/v1/programs", launch | answer)
    assert launched.headers[CLIPPED_HEADER] == f"priority={MOST}"


@pytest.mark.parametrize("stream", [False, True])
def test_a_query_of_a_workflow_tells_of_it(http: httpx.Client, stream: bool) -> None:
    query = {"question": "Who?", "documents": [{"name": "a.md", "text": "Kabo is a baker."}]}
    body = {"query": query, "stream": stream, "priority": -(10**12)}
    answered = post(http, "/v1/workflows/naive-rag/query", body)
    assert answered.headers[CLIPPED_HEADER] == f"priority=-{MOST}"
