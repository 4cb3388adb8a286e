"""Which launches the router follows instead of waiting with their node."""

from __future__ import annotations

import msgspec
import pytest

from quire.cluster.passing.awaited_launches import awaiting
from quire.cluster.requests.request import Request


def launch(body: bytes, method: str = "POST", path: str = "/v1/programs") -> Request:
    return Request(method, path, [(b"content-type", b"application/json")], body, "r")


def test_a_launch_that_waits_asks_for_the_programs_messages() -> None:
    request = launch(b'{"program": "p", "args": ["a"], "wait": true}')
    sent = awaiting(request)
    assert sent.awaits_program
    assert msgspec.json.decode(sent.body) == {
        "program": "p",
        "args": ["a"],
        "wait": False,
        "stream": True,
    }
    assert (sent.method, sent.target, sent.headers) == ("POST", "/v1/programs", request.headers)
    assert sent.request_id == "r"


@pytest.mark.parametrize(
    "request_",
    [
        launch(b'{"program": "p"}'),
        launch(b'{"program": "p", "wait": false}'),
        launch(b'{"program": "p", "wait": false, "stream": true}'),
        launch(b'{"program": "p", "wait": null}'),
        launch(b'{"program": "p", "wait": 1}'),
        launch(b'{"program": "p", "wait": true, "stream": true}'),
        launch(b'["wait"]'),
        launch(b'{"wait": true'),
        launch(b'{"wait": true}', method="PUT"),
        launch(b'{"wait": true}', path="/v1/programs/p"),
    ],
    ids=lambda request: f"{request.method} {request.target} {request.body.decode()}",
)
def test_any_other_request_is_sent_as_it_is(request_: Request) -> None:
    assert awaiting(request_) is request_
    assert not request_.awaits_program
