"""The entries of a query's file, one a frame.

``Head`` comes first, then ``Planned``; a finished query has ``Head`` and ``Finished`` alone.
"""

from __future__ import annotations

import msgspec


class Entry(msgspec.Struct, frozen=True, tag=True):
    """Base of them all."""


class Head(Entry, frozen=True):
    """Digests of what was asked, and the inputs with the texts of documents, and the configuration
    of the components, as JSON."""

    template: str
    config: str
    inputs: str
    query: str
    settings: str


class Planned(Entry, frozen=True):
    """The graph that carries it out, and the models that its engines stand for."""

    graph: str
    models: str
    num_primitives: int


class Begun(Entry, frozen=True):
    """A primitive with effects begins. Without ``Ended`` or ``Failed`` nobody knows what it has
    done."""

    primitive: str
    node: str


class Failed(Entry, frozen=True):
    """A primitive with effects has said itself that it failed."""

    primitive: str


class Ended(Entry, frozen=True):
    """``outputs``: as from ``stored``."""

    primitive: str
    outputs: bytes


class Grew(Entry, frozen=True):
    """A growth has returned components (``growth``); the query has ``num_primitives`` with them."""

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
    """Raises ``msgspec.DecodeError`` if it is an entry of another release."""
    return _DECODER.decode(content)
