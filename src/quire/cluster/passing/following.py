"""Streams of a program's messages that continue when the program moves to another node.

Owns the number of the last message that the client has received. Must not know how a program moves.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from urllib.parse import parse_qs, quote

from quire.cluster.passing.outliving import Continuation, OutlivingAnswer
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import Request

Follow = Callable[[Request, str], Awaitable[RoutedAnswer]]
"""Sends the request to the node that has the program now, by the program's id.

Raises ``QuireError`` if no node has it.
"""

_EVENTS = re.compile(r"/v1/programs/([^/]+)/events")
_NUMBER = re.compile(rb"^id: (\d{1,15})\n")
_LAUNCHED = re.compile(rb'^data: \{"type": ?"launched".*?"id": ?"([^"]{1,256})"')
_LEFT = re.compile(rb'^data: \{"type": ?"error".*"code": ?"engine_lost"')
_DONE = b"data: [DONE]"
_MAX_DIGITS = 15


def _first_place(request: Request) -> int:
    """Return the number of the last message that the client received before, as nodes read it."""
    query = parse_qs(request.target.partition("?")[2]).get("after", ["0"])[-1]
    told = dict(request.headers).get(b"last-event-id", b"0").decode("latin-1")
    return max(_number(text) for text in (query, told))


def _number(text: str) -> int:
    """Return the number that a client has sent; 0 for what is no number of a message."""
    return int(text) if text.isdecimal() and len(text) <= _MAX_DIGITS else 0


def is_of_program(request: Request) -> bool:
    """Return whether the answer to ``request`` is the event stream of a program."""
    if request.method == "POST":
        return request.path == "/v1/programs"
    return _EVENTS.fullmatch(request.path) is not None


class FollowedAnswer(OutlivingAnswer):
    """The messages of a program, read from the node that has the program."""

    def __init__(self, answer: RoutedAnswer, request: Request, follow: Follow) -> None:
        super().__init__(answer, request)
        self._follow = follow
        found = _EVENTS.fullmatch(request.path)
        self._program = "" if found is None else found[1]
        self._last = _first_place(request)

    @property
    def prompt(self) -> list[int] | None:
        return None

    @property
    def generated(self) -> list[Sequence[int]] | None:
        """None: this stream moves only with its program."""
        return None

    def _events(self, piece: bytes) -> bytes:
        passed = []
        for event in self._whole_events(piece):
            if _LEFT.match(event) is not None:
                self._has_lost_engine = True
                break
            if (number := _NUMBER.match(event)) is not None:
                self._last = int(number[1])
            elif (launched := _LAUNCHED.match(event)) is not None:
                self._program = quote(launched[1].decode(), safe="")
            self._is_over = self._is_over or event == _DONE
            passed.append(event + b"\n\n")
        return b"".join(passed)

    def _ending(self) -> bytes:
        return b""

    def _continuation(self) -> Continuation | None:
        if not self._program:
            return None
        target = f"/v1/programs/{self._program}/events?after={self._last}"
        request = self._request
        headers = [pair for pair in request.headers if pair[0] != b"last-event-id"]
        again = Request("GET", target, headers, b"", request.request_id)
        again.work = request.work
        return Continuation(partial(self._follow, again, self._program), self._last)
