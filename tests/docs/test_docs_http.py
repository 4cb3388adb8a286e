"""docs/reference/http.md against the application: every route and request field stands there."""

from __future__ import annotations

import re

import pytest
from docs_markdown import ROOT
from fastapi.routing import APIRoute, APIWebSocketRoute

from quire.server.routes import ROUTERS
from quire.server.schemas.anthropic import MessagesRequest
from quire.server.schemas.base import RequestModel
from quire.server.schemas.chat import ChatCompletionRequest
from quire.server.schemas.completions import CompletionsRequest
from quire.server.schemas.encoding import EmbeddingsRequest, RerankRequest, ScoreRequest
from quire.server.schemas.programs import LaunchRequest
from quire.server.schemas.responses import ResponsesRequest
from quire.server.schemas.sessions import SessionRequest
from quire.server.schemas.workflows import QueryRequest

PAGE = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
CODE = set(re.findall(r"`([^`\n]+)`", PAGE))


def test_every_route_is_documented_and_no_other() -> None:
    served = set()
    for router in ROUTERS:
        for route in router.routes:
            path = re.sub(r":path\}", "}", getattr(route, "path", ""))
            if isinstance(route, APIRoute):
                # the others: HEAD, and other servers' names of a route
                methods = (route.methods or ()) if route.include_in_schema else ()
                served |= {f"{method} {path}" for method in methods}
            elif isinstance(route, APIWebSocketRoute):
                served.add(f"WS {path}")
    documented = {text for text in CODE if re.match(r"(GET|POST|DELETE|WS) /", text)}
    assert documented == served


@pytest.mark.parametrize(
    "body",
    [
        ChatCompletionRequest,
        CompletionsRequest,
        EmbeddingsRequest,
        LaunchRequest,
        MessagesRequest,
        QueryRequest,
        RerankRequest,
        ResponsesRequest,
        ScoreRequest,
        SessionRequest,
    ],
)
def test_every_field_of_a_request_is_documented(body: type[RequestModel]) -> None:
    names = {field.alias or name for name, field in body.model_fields.items()}
    assert names - CODE == set()
