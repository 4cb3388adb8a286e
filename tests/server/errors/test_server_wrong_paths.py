"""Routes of other servers that clients try are answered with what there is here."""

from __future__ import annotations

import re

import pytest
from fastapi.routing import APIRoute

from quire.server.errors.wrong_paths import meant_by
from quire.server.routes import ROUTERS

ROUTES = [one for router in ROUTERS for one in router.routes if isinstance(one, APIRoute)]
PATHS = {one.path for one in ROUTES} | {"/openapi.json", "/v1"}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/api/chat", "/v1/chat/completions"),
        ("/api/tags", "/v1/models"),
        ("/completion", "/v1/completions"),
        ("/props", "/v1/models"),
        ("/slots/", "/v1/programs"),
        ("/generate", "/v1/completions"),
        ("/v1/messages/batches", "/v1/batches"),
        ("/v1/images/edits", "images"),
        ("/v1/audio/speech", "speech"),
        ("/v1/vector_stores/a/files", "workflows"),
        ("/v1/fine_tuning/jobs", "--adapter"),
        ("/v1/chat/completions/chatcmpl-1", "/v1/responses stores"),
    ],
)
def test_what_another_server_has_is_known(path: str, words: str) -> None:
    found = meant_by(ROUTES, path)
    assert found is not None
    assert words in found
    assert set(re.findall(r"(?:^| )(/[\w./{}-]*[\w}])", found)) <= PATHS


@pytest.mark.parametrize("path", ["/nowhere", "/v1/imageset", "/api", "/v1/chatter"])
def test_other_paths_are_not_guessed(path: str) -> None:
    assert meant_by(ROUTES, path) is None
