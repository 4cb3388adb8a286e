"""The event of ``/v1/microserving/index``, which nodes write and routers read."""

from __future__ import annotations

import msgspec


class IndexEvent(msgspec.Struct, frozen=True):
    """The keys inserted into and evicted from the index of one life (``epoch``) of an engine, from
    change ``since`` to ``number``. ``since`` null: the index begins anew with these keys. A large
    change is sent in ``num_parts`` events. Keys have eight bytes each, one after the other, in
    base64; keys of engines with equal ``content`` and ``page_size`` stand for the same tokens."""

    engine: str
    model: str
    epoch: int
    content: str
    page_size: int
    since: int | None
    number: int
    part: int
    num_parts: int
    inserted: str
    evicted: str
