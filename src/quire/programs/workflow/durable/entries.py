"""The entries of a query's file, one for each frame.

``Head`` comes first, then ``Planned``; a finished query has ``Head`` and ``Finished`` only.
"""

from __future__ import annotations

import msgspec


class Entry(msgspec.Struct, frozen=True, tag=True):
    """Base of all entries."""


class Head(Entry, frozen=True):
    """Digests of the query, its inputs with the texts of documents, and the configuration of the
    components, as JSON."""

    template: str
    config: str
    inputs: str
    query: str
    settings: str


class Planned(Entry, frozen=True):
    """Digests of the query's graph, and of the models behind its engines."""

    graph: str
    models: str
    num_primitives: int


class Begun(Entry, frozen=True):
    """A primitive with effects begins. If no ``Ended`` or ``Failed`` follows, it may have taken
    effect or not."""

    primitive: str
    node: str


class Failed(Entry, frozen=True):
    """A primitive with effects has raised an error."""

    primitive: str


class Ended(Entry, frozen=True):
    """A primitive has ended. ``outputs``: the bytes that ``stored`` makes."""

    primitive: str
    outputs: bytes


class Grew(Entry, frozen=True):
    """A growth has returned components (``growth``); with them the query has ``num_primitives``."""

    primitive: str
    growth: bytes
    num_primitives: int


class Finished(Entry, frozen=True):
    results: bytes
    num_primitives: int


AnyEntry = Head | Planned | Begun | Failed | Ended | Grew | Finished
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[AnyEntry] = msgspec.msgpack.Decoder(AnyEntry)


def encoded(entry: AnyEntry) -> bytes:
    return _ENCODER.encode(entry)


def decoded(content: bytes) -> AnyEntry:
    """Raises ``msgspec.DecodeError`` if the entry is from another release."""
    return _DECODER.decode(content)
