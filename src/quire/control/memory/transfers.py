"""Moves of KV contents between places, from their beginning to their end.

Owns the transfers that are under way and their numbers. What a transfer means for its content, and
which blocks become free at its end, is ``memory``'s; how bytes are copied is the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from quire.control.memory.content import Content
from quire.core.errors import EngineFault
from quire.core.ids import EngineId


class Tier(StrEnum):
    """Of an engine's memory. The values name it in messages to people."""

    DEVICE = "device"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Location:
    """Where the bytes of one block are."""

    engine: EngineId
    tier: Tier
    block: int


class Transfer:
    """One block on its way. Until its end nobody reads, writes, evicts or reuses either place.

    ``content``: what moves; None once nobody can mean it any more. The places stay taken all the
    same, because the engine still works on them.
    """

    __slots__ = ("content", "id", "source", "target")

    def __init__(
        self, transfer_id: int, content: Content, source: Location, target: Location
    ) -> None:
        self.id = transfer_id
        self.content: Content | None = content
        self.source = source
        self.target = target

    @property
    def leaves_device(self) -> bool:
        return self.source.tier is Tier.DEVICE


class TransferTable:
    """The transfers of one engine that are under way. ``num_leaving``: device blocks that their
    ends make free."""

    def __init__(self) -> None:
        self._under_way: dict[int, Transfer] = {}
        self._num_begun = 0
        self.num_leaving = 0

    def __len__(self) -> int:
        return len(self._under_way)

    def __iter__(self) -> Iterator[Transfer]:
        return iter(self._under_way.values())

    def begin(self, content: Content, source: Location, target: Location) -> Transfer:
        """Numbers go up over all lives of the engine, so that no end can be taken for another's."""
        transfer = Transfer(self._num_begun, content, source, target)
        self._num_begun += 1
        self._under_way[transfer.id] = transfer
        self.num_leaving += transfer.leaves_device
        return transfer

    def get(self, transfer_id: int) -> Transfer:
        """One that is under way."""
        return self._under_way[transfer_id]

    def end(self, transfer_id: int) -> Transfer:
        """Raises ``EngineFault`` if no such transfer is under way."""
        transfer = self._under_way.pop(transfer_id, None)
        if transfer is None:
            raise EngineFault(
                f"an engine reports the end of transfer {transfer_id}, which is not under way: the "
                "peer is broken, restart it"
            )
        self.num_leaving -= transfer.leaves_device
        return transfer

    def abandon(self) -> list[Transfer]:
        """The engine is gone; none of these will end."""
        abandoned = list(self._under_way.values())
        self._under_way.clear()
        self.num_leaving = 0
        return abandoned
