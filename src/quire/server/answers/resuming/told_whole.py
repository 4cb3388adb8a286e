"""Answers that are not streamed and outlive their node: how they end.

Such an answer is sent as an event stream of comments (``going_on``), which contain its tokens while
they are generated. One more comment follows, with the status and headers for the client, and then
the body, byte for byte as a client would receive it from the node.
"""

from __future__ import annotations

import msgspec
from starlette.types import Message, Receive, Scope

from quire.core.errors import QuireError
from quire.server.anthropic.errors import AnthropicErrors
from quire.server.errors.errors import response_of

WHOLE = b": quire-answer "
_ELSEWHERE = ("content-length", "content-type", "request-id", "x-request-id")


class WholeHead(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of the last comment. ``code``: the code of the error, if the answer is one."""

    length: int
    status: int = 200
    headers: dict[str, str] = {}
    code: str | None = None


def told_whole(body: bytes) -> bytes:
    """Return the end of an answer."""
    return _end(WholeHead(len(body)), body)


async def told_failure(error: QuireError, scope: Scope, receive: Receive) -> bytes:
    """Return the end of an answer that has failed: ``error`` in the form of the API in use."""
    answer, response = _Kept(), response_of(error)
    response.headers["x-request-id"] = scope["state"]["request_id"]
    await AnthropicErrors(response)(scope, receive, answer.send)
    return _end(WholeHead(len(answer.body), answer.status, answer.headers, error.code), answer.body)


def _end(head: WholeHead, body: bytes) -> bytes:
    return WHOLE + msgspec.json.encode(head) + b"\n\n" + body


class _Kept:
    """A response. ``headers`` without those that the head of the comments has, or that follow from
    the body."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            pairs = {name.decode(): value.decode() for name, value in message["headers"]}
            self.headers = {name: pairs[name] for name in pairs if name not in _ELSEWHERE}
        else:
            self.body += message.get("body", b"")
