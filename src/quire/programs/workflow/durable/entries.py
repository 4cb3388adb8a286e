"""The entries of a query's file, one for each frame.

``QueryHead`` comes first, then ``QueryPlanned``; a finished query has ``QueryHead`` and
``QueryFinished`` only.
"""

from __future__ import annotations

import msgspec


class QueryEntry(msgspec.Struct, frozen=True, tag=True):
    """Base of all entries."""


class QueryHead(QueryEntry, frozen=True):
    """Digests of the query, its inputs with the texts of documents, and the configuration of the
    components, as JSON."""

    template: str
    config: str
    inputs: str
    query: str
    settings: str


class QueryPlanned(QueryEntry, frozen=True):
    """Digests of the query's graph, and of the models behind its engines."""

    graph: str
    models: str
    num_primitives: int


class EffectBegun(QueryEntry, frozen=True):
    """A primitive with effects begins. If no ``PrimitiveEnded`` or ``EffectFailed`` follows, it may
    have taken effect or not."""

    primitive: str
    node: str


class EffectFailed(QueryEntry, frozen=True):
    """A primitive with effects has raised an error."""

    primitive: str


class PrimitiveEnded(QueryEntry, frozen=True):
    """A primitive has ended. ``outputs``: the bytes that ``stored`` makes."""

    primitive: str
    outputs: bytes


class GraphGrew(QueryEntry, frozen=True):
    """A growth has returned components (``growth``), with which the query has
    ``num_primitives``."""

    primitive: str
    growth: bytes
    num_primitives: int


class QueryFinished(QueryEntry, frozen=True):
    results: bytes
    num_primitives: int


AnyEntry = (
    QueryHead
    | QueryPlanned
    | EffectBegun
    | EffectFailed
    | PrimitiveEnded
    | GraphGrew
    | QueryFinished
)
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[AnyEntry] = msgspec.msgpack.Decoder(AnyEntry)


def encoded(entry: AnyEntry) -> bytes:
    return _ENCODER.encode(entry)


def decoded(content: bytes) -> AnyEntry:
    """Decode an entry; raise ``msgspec.DecodeError`` if it is from another release."""
    return _DECODER.decode(content)
