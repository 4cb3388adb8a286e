"""Answers that are not streamed and outlive their node: another node goes on after the last token
that the first has sent.

Owns when such an answer has arrived, and its head. The node sends its tokens while it generates, as
beside a stream (``retelling``), and then the answer itself, which is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quire.cluster.nodes.connection import AnswerHead
from quire.cluster.passing.opened import MAX_WHOLE_BYTES
from quire.cluster.passing.outliving import Continuation
from quire.cluster.passing.retelling import RetoldAnswer, SendOn
from quire.cluster.requests.answer import RoutedAnswer
from quire.cluster.requests.request import Request
from quire.core.errors import EngineLost
from quire.server.answers.resuming.told_tokens import COMMENT, ToldChunk
from quire.server.answers.resuming.told_whole import WHOLE, WholeHead
from quire.server.events import EVENT_HEADERS

_OF_EVENTS = frozenset(name.encode() for name in (*EVENT_HEADERS, "content-type"))


class WholeAnswer(RetoldAnswer):
    """The answer to ``request``: ``answer``, then those that continue it. Its head is known when it
    has arrived; its body is read as that of any answer."""

    def __init__(self, answer: RoutedAnswer, request: Request, send_on: SendOn) -> None:
        super().__init__(answer, request, send_on)
        self._end: WholeHead | None = None
        self._body = b""
        self._begun = b""
        self._num_body_bytes = 0
        """Bytes of the body received over the present stream."""
        self._is_passed = False
        """Whether a part of the body is with the client, or about to be."""

    async def arrive(self) -> None:
        """Wait for the answer: for all of it, or for the beginning if it is longer than a mebibyte.

        Raises:
            EngineLost: its node was lost, and no other one can go on.
        """
        self._begun = await self.read()
        end = self._end
        assert end is not None, "nothing is read before the end of what is told"
        self.engine = self.at
        self.head = AnswerHead(
            end.status,
            [
                *(pair for pair in self._answer.head.headers if pair[0] not in _OF_EVENTS),
                *((name.encode(), value.encode()) for name, value in end.headers.items()),
                (b"content-type", b"application/json"),
                (b"content-length", str(end.length).encode()),
            ],
        )

    async def read(self) -> bytes:
        begun, self._begun = self._begun, b""
        return begun or await super().read()

    @property
    def generated(self) -> list[Sequence[int]] | None:
        return super().generated if self._end is None else None

    def _events(self, piece: bytes) -> bytes:
        while self._end is None:
            block, found, rest = (self._held + piece).partition(b"\n\n")
            if not found:
                self._held = block
                return b""
            self._held, piece = b"", rest
            self._note(block)
        self._num_body_bytes += len(piece)
        self._body += piece
        self._is_over = self._num_body_bytes >= self._end.length
        if not self._is_over and len(self._body) <= MAX_WHOLE_BYTES and not self._is_passed:
            return b""
        body, self._body = self._body, b""
        self._is_passed = True
        return body

    def _note(self, block: bytes) -> None:
        if block.startswith(COMMENT):
            self._told.add(msgspec.json.decode(block[len(COMMENT) :], type=ToldChunk))
        elif block.startswith(WHOLE):
            end = msgspec.json.decode(block[len(WHOLE) :], type=WholeHead)
            if end.code == EngineLost.code:
                raise self._lost()
            self._end = end

    def _continuation(self) -> Continuation | None:
        if self._is_passed:
            return None
        self._end, self._body, self._num_body_bytes = None, b"", 0
        return super()._continuation()
