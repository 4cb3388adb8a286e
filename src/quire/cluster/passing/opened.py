"""An answer whose beginning is here, but not yet with the client.

Until its first bytes have come, a request that has lost its engine can be tried at another one
without the client's knowledge. Owns how much of an answer is awaited before it is passed on.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.cluster.requests.answer import RoutedAnswer

MAX_WHOLE_BYTES = 1 << 20
"""A longer answer is passed on while it arrives."""

EVENTS = b"text/event-stream"
"""What the content type of a stream begins with."""


@dataclass(slots=True)
class OpenedAnswer:
    """``first`` has been read; ``is_whole``: nothing follows it."""

    answer: RoutedAnswer
    first: bytes
    is_whole: bool

    @property
    def is_events(self) -> bool:
        return self.answer.head.get(b"content-type").startswith(EVENTS)


async def open_answer(answer: RoutedAnswer) -> OpenedAnswer:
    """Await the whole of an answer of known, moderate length, of any other the first piece.

    Raises:
        EngineLost: the answer breaks off before.
    """
    length = answer.head.get(b"content-length")
    if not length.isdigit() or int(length[:16]) > MAX_WHOLE_BYTES:
        first = await answer.read()
        return OpenedAnswer(answer, first, is_whole=not first)
    pieces = []
    while piece := await answer.read():
        pieces.append(piece)
    return OpenedAnswer(answer, b"".join(pieces), is_whole=True)


def unopened(answer: RoutedAnswer) -> OpenedAnswer:
    """Of an answer that is passed on as it comes from its head on."""
    return OpenedAnswer(answer, b"", is_whole=False)
