"""Messages in which a node sends the records of its restartable programs to a reader.

A router keeps the parts that it receives, so that another node can go on with the programs of a
node that is lost. Nodes make the parts and put them together again; a reader need not know what is
in one.
"""

from __future__ import annotations

import msgspec


class ToldPart(msgspec.Struct, frozen=True):
    """A part of the record of the program ``id`` and of its descendants that run. It belongs behind
    its earlier parts; ``is_first``: it replaces them all. ``stays``: why no other node could go on
    with them, so that nothing more of them is sent. ``members``: the ids of all these programs,
    ``id`` first."""

    id: str
    part: bytes
    is_first: bool
    stays: str | None = None
    members: list[str] = []


class EndedRecord(msgspec.Struct, frozen=True):
    """The program ``id`` has ended. ``may_be_lost``: the reader may forget its record at once,
    because its clients know of the end, or have ended it themselves."""

    id: str
    may_be_lost: bool


class ToldRecords(msgspec.Struct, frozen=True):
    """One answer of a node. ``feed``: identifies one life of the node. ``number``: to be
    acknowledged with the next request."""

    feed: str
    number: int
    parts: list[ToldPart]
    ended: list[EndedRecord]


class RecordsWanted(msgspec.Struct, frozen=True):
    """One request of a reader. ``reader``: identifies it; there is one at a time. ``feed`` and
    ``number``: those of the last answer, whose content is kept now. ``gone``: programs that another
    node goes on with."""

    reader: str
    feed: str = ""
    number: int = 0
    gone: list[str] = []
