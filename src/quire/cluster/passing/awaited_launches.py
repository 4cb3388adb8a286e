"""Launches that wait for the end of their program, and outlive its node. The router follows the
program's messages, wherever the program goes on, and answers with its record at the end.

Owns the request that is sent in place of such a launch, and the answer to it. As at a node, a
client that leaves ends the program.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec

from quire.cluster.nodes.connection import AnswerHead
from quire.cluster.passing.following import FollowedAnswer
from quire.cluster.requests.request import Request
from quire.core.errors import EngineLost
from quire.server.errors.errors import HttpError
from quire.server.events import EVENT_HEADERS
from quire.server.requests.strict_json import strict_loads

_LAUNCH = "/v1/programs"
_DATA = b"data: "
_OF_EVENTS = frozenset(name.encode() for name in (*EVENT_HEADERS, "content-type"))


class _Frame(msgspec.Struct):
    type: str = ""
    program: msgspec.Raw = msgspec.Raw()
    error: dict[str, Any] = {}


def awaiting(request: Request) -> Request:
    """Return ``request`` as it is sent: a launch that waits for the end of its program asks for the
    program's messages as events instead. Any other request, and one that a node refuses, is
    returned unchanged."""
    is_launch = request.method == "POST" and request.path == _LAUNCH and request.upload is None
    if not is_launch or b'"wait"' not in request.body:
        return request
    try:
        body = strict_loads(request.body)
    except HttpError:
        return request
    if not isinstance(body, dict) or body.get("wait") is not True or body.get("stream", False):
        return request
    asked = msgspec.json.encode({**body, "wait": False, "stream": True})
    sent = Request(request.method, request.target, request.headers, asked, request.request_id)
    sent.awaits_program = True
    return sent


class AwaitedProgram(FollowedAnswer):
    """The record of a program that has ended, as an answer. ``head`` is set once ``arrive`` has
    returned."""

    _record = b""

    async def arrive(self) -> None:
        """Wait for the end of the program.

        Raises:
            EngineLost: the program is lost with its node, or its messages cannot be followed.
        """
        while await super().read():
            continue
        if not self._record:
            raise EngineLost(f"node {self.at} has not told how the program has ended")
        self.engine = self.at
        self.head = AnswerHead(
            HTTPStatus.CREATED,
            [
                *(pair for pair in self.first.head.headers if pair[0] not in _OF_EVENTS),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(self._record)).encode()),
            ],
        )

    async def read(self) -> bytes:
        record, self._record = self._record, b""
        return record

    def _events(self, piece: bytes) -> bytes:
        passed = super()._events(piece)
        for event in passed.split(b"\n\n"):
            if event.startswith(_DATA + b"{"):
                self._note(msgspec.json.decode(event[len(_DATA) :], type=_Frame))
        return passed

    def _note(self, frame: _Frame) -> None:
        if frame.type == "ended":
            self._record = bytes(frame.program)
        elif frame.type == "error":
            raise EngineLost(str(frame.error.get("message")))
