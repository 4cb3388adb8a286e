"""schemathesis reads /openapi.json and calls every operation with data that fits it, and does not.

The checks are all of schemathesis' own but one: ``positive_data_acceptance`` is left out, because
what fits a JSON schema can still contradict itself (``min_tokens`` above ``max_tokens``, an unknown
model, a regex that does not compile) and is a 400 or 404 here.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from scripted_server import RunningServer, scripted_node

from quire.core.config import ServerConfig
from quire.server.app import create_app

DOCUMENT = create_app(scripted_node()[0], ServerConfig()).openapi()
REFUSALS = ["400", "404", "405", "409", "413"]
CONFIG = schemathesis.Config.from_dict(
    {
        "checks": {
            "negative_data_rejection": {"expected-statuses": REFUSALS},
            "positive_data_acceptance": {"enabled": False},
        },
        # one case per keyword of the schema would be hundreds of requests to each of these, which
        # take messages or prompts; the fuzzing phase below and the tests of bad fields see to them
        "operations": [
            {
                "include-path": [
                    "/v1/chat/completions",
                    "/v1/completions",
                    "/v1/responses",
                    "/v1/responses/input_tokens",
                    "/v1/messages",
                    "/v1/messages/count_tokens",
                    "/v1/embeddings",
                    "/v1/rerank",
                    "/v1/score",
                    # as /v1/conversations, and as /v1/microserving/prep_recv
                    "/v1/conversations/{conversation}/items",
                    "/v1/microserving/pages",
                    "/v1/microserving/remote_send",
                    "/v1/microserving/start_generate",
                    "/tokenize",
                ],
                "phases": {"coverage": {"enabled": False}},
            }
        ],
    }
)
schema = schemathesis.openapi.from_dict(DOCUMENT, config=CONFIG)


@schema.parametrize()
@settings(
    max_examples=15,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_operation_keeps_its_promise(case: Any, server: RunningServer) -> None:
    case.call_and_validate(base_url=server.url, timeout=60)


def test_the_served_document_is_the_one_that_was_read(http: httpx.Client) -> None:
    assert http.get("/openapi.json").json() == DOCUMENT


def test_the_document_has_every_route() -> None:
    assert set(DOCUMENT["paths"]) == {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/responses/{response}",
        "/v1/responses/{response}/cancel",
        "/v1/responses/{response}/input_items",
        "/v1/conversations",
        "/v1/conversations/{conversation}",
        "/v1/conversations/{conversation}/items",
        "/v1/conversations/{conversation}/items/{item}",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
        "/v1/files",
        "/v1/files/{file}",
        "/v1/files/{file}/content",
        "/v1/batches",
        "/v1/batches/{batch}",
        "/v1/batches/{batch}/cancel",
        "/v1/models",
        "/v1/models/{model}",
        "/tokenize",
        "/detokenize",
        "/v1/programs",
        "/v1/programs/changes",
        "/v1/programs/library",
        "/v1/programs/uploads",
        "/v1/programs/uploads/{program}",
        "/v1/programs/{program}",
        "/v1/programs/{program}/events",
        "/v1/programs/{program}/logs",
        "/v1/programs/{program}/signal",
        "/v1/programs/{program}/trace",
        "/v1/workflows",
        "/v1/workflows/{workflow}/query",
        "/v1/workflows/{workflow}/queries/{query_id}",
        "/v1/sessions",
        "/v1/sessions/{session}",
        "/v1/microserving/items/{item}",
        "/v1/microserving/pin",
        "/v1/microserving/prep_recv",
        "/v1/microserving/remote_send",
        "/v1/microserving/start_generate",
        "/v1/microserving/leases",
        "/v1/microserving/leases/renew",
        "/v1/microserving/engines",
        "/v1/microserving/index",
        "/v1/microserving/channel",
        "/v1/microserving/channel/leave",
        "/v1/microserving/pages",
        "/v1/microserving/programs",
        "/v1/microserving/programs/{program}/hand_over",
        "/v1/microserving/programs/{program}/handed_over",
        "/v1/microserving/programs/{program}/texts",
        "/v1/microserving/programs/lost",
        "/v1/microserving/records",
        "/health",
        "/ping",
        "/ready",
        "/version",
        "/metrics",
        "/ui",
    }


def test_validation_is_400_in_the_document_too() -> None:
    for path in DOCUMENT["paths"].values():
        for operation in path.values():
            assert "422" not in operation["responses"]
            assert "400" in operation["responses"]


_ASKED: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello", "max_tokens": 4},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4},
    "/v1/responses": {"input": "hello"},
}


@pytest.mark.parametrize("path", _ASKED)
def test_streamed_events_are_as_documented(path: str, server: RunningServer) -> None:
    """The cases above stream only by chance."""
    body = {"model": "scripted", "stream": True, **_ASKED[path]}
    case = schema[path]["POST"].Case(body=body, media_type="application/json")
    answer = case.call(base_url=server.url, timeout=60)
    assert answer.headers["content-type"][0].startswith("text/event-stream")
    schema[path]["POST"].validate_response(answer)
