"""Which requests have their tokens told one by one: those of which somebody sees a part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from scripted_server import RunningServer, running_server

from quire.core.config import ServerConfig
from quire.programs.builtin import CompletionRequest, complete
from quire.server.answers import generation
from quire.server.answers.resuming.told_tokens import TELLS_HEADER

KEY = "0123456789abcdef"
CONFIG = ServerConfig(drain_timeout_s=1.0, sandbox_upload=False, cluster_key=KEY)
MESSAGES = [{"role": "user", "content": "say Größe, naïve, and 再见."}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "n": 2},
    "/v1/completions": {"prompt": ["say one", "say two"]},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 50},
    "/v1/responses": {"input": "say something"},
}


@pytest.fixture(scope="module")
def node() -> Iterator[RunningServer]:
    with running_server(CONFIG) as server:
        yield server


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[CompletionRequest]:
    """What the built-in program was asked for."""
    found: list[CompletionRequest] = []

    def noted(api: Any, request: CompletionRequest, **options: Any) -> Any:
        found.append(request)
        return complete(api, request, **options)

    monkeypatch.setattr(generation, "complete", noted)
    return found


def post(node: RunningServer, path: str, **fields: Any) -> httpx.Response:
    headers = fields.pop("headers", {})
    body = {"model": "scripted", **BODIES[path], **fields}
    answer = httpx.post(node.url + path, json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [True, False, None])
def test_a_whole_answer_is_told_at_once(
    node: RunningServer, asked: list[CompletionRequest], path: str, stream: bool | None
) -> None:
    post(node, path, **({} if stream is None else {"stream": stream}))
    assert asked
    assert all(request.stream == bool(stream) for request in asked)


def test_one_that_may_go_on_elsewhere_is_told_as_it_comes(
    node: RunningServer, asked: list[CompletionRequest]
) -> None:
    headers = {"x-quire-cluster-key": KEY, TELLS_HEADER: "1"}
    post(node, "/v1/chat/completions", n=1, headers=headers)
    assert [request.stream for request in asked] == [True]


def test_a_whole_answer_says_what_a_stream_says(node: RunningServer) -> None:
    whole = post(node, "/v1/chat/completions", n=1, logprobs=True, top_logprobs=2).json()
    (choice,) = whole["choices"]
    assert choice["message"]["content"] == "Größe, naïve, and 再见."
    assert len(choice["logprobs"]["content"]) == whole["usage"]["completion_tokens"]
