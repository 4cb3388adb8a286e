"""An answer whose beginning has arrived at the router, but not yet at the client.

Until its first bytes have come, a request that has lost its engine can be tried at another one
without the client's knowledge. Owns how much of an answer is awaited before it is passed on.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.cluster.requests.answer import RoutedAnswer

MAX_WHOLE_BYTES = 1 << 20
"""An answer with more bytes is passed on while it arrives."""

EVENTS = b"text/event-stream"
"""How the content type of an event stream begins."""


@dataclass(slots=True)
class OpenedAnswer:
    """An answer of which ``first`` has been read. ``is_whole``: nothing follows it."""

    answer: RoutedAnswer
    first: bytes
    is_whole: bool

    @property
    def is_events(self) -> bool:
        return self.answer.head.get(b"content-type").startswith(EVENTS)


async def open_answer(answer: RoutedAnswer) -> OpenedAnswer:
    """Await an answer of known, moderate length to its end; of any other, await the first piece.

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
    """Return ``answer`` with nothing read but its head: its pieces are passed on as they arrive."""
    return OpenedAnswer(answer, b"", is_whole=False)
