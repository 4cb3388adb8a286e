"""Transfers of KV contents between tiers, from their beginning to their end.

Owns the transfers in progress and their numbers. ``movement`` decides what a transfer does to its
content, and which blocks are free at its end; the engine copies the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from quire.control.memory.content import Content
from quire.core.errors import EngineFault
from quire.core.ids import EngineId, ProgramId


class Tier(StrEnum):
    """A tier of an engine's memory. The values appear in messages to people."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Location:
    """The place of one block's bytes."""

    engine: EngineId
    tier: Tier
    block: int


class Transfer:
    """One block in transfer. Until its end neither place is read, written, evicted or reused.

    ``content``: what is moved; None if nothing can refer to it any more. The places stay taken even
    then, because the engine still copies. ``program``: the program whose pages move out, or for
    which they come back; ``sent_s``: when the message that begins it was sent; ``has_failed``: it
    has ended without its bytes.
    """

    __slots__ = ("content", "has_failed", "id", "program", "sent_s", "source", "target")

    def __init__(
        self,
        transfer_id: int,
        content: Content,
        source: Location,
        target: Location,
        program: ProgramId | None,
    ) -> None:
        self.id = transfer_id
        self.program = program
        self.sent_s: float | None = None
        self.content: Content | None = content
        self.source = source
        self.target = target
        self.has_failed = False

    @property
    def leaves_device(self) -> bool:
        return self.source.tier is Tier.DEVICE

    @property
    def comes_to_device(self) -> bool:
        return self.target.tier is Tier.DEVICE

    @property
    def uses_disk(self) -> bool:
        return Tier.DISK in (self.source.tier, self.target.tier)


class TransferTable:
    """The transfers of one engine that are in progress. ``num_leaving``: device blocks that will be
    free at their ends; ``num_leaving_host``: host blocks."""

    def __init__(self) -> None:
        self._under_way: dict[int, Transfer] = {}
        self._unsent: list[Transfer] = []
        self._num_begun = 0
        self.num_leaving = 0
        self.num_leaving_host = 0

    def __len__(self) -> int:
        return len(self._under_way)

    def __iter__(self) -> Iterator[Transfer]:
        return iter(self._under_way.values())

    def begin(
        self,
        content: Content,
        source: Location,
        target: Location,
        program: ProgramId | None = None,
    ) -> Transfer:
        """Begin a transfer. Numbers increase over all lives of the engine, so that a late report
        cannot end another transfer."""
        transfer = Transfer(self._num_begun, content, source, target, program)
        self._unsent.append(transfer)
        self._num_begun += 1
        self._under_way[transfer.id] = transfer
        self.num_leaving += transfer.leaves_device
        self.num_leaving_host += source.tier is Tier.HOST
        return transfer

    def note_sent(self, now_s: float) -> None:
        """Note that the message with all transfers that have begun is sent."""
        for transfer in self._unsent:
            transfer.sent_s = now_s
        self._unsent.clear()

    def get(self, transfer_id: int) -> Transfer:
        """A transfer in progress, by number."""
        return self._under_way[transfer_id]

    def end(self, transfer_id: int) -> Transfer:
        """Remove a transfer. Raises ``EngineFault`` if no such transfer is in progress."""
        transfer = self._under_way.pop(transfer_id, None)
        if transfer is None:
            raise EngineFault(
                f"an engine reports the end of transfer {transfer_id}, which is not under way: the "
                "peer is broken, restart it"
            )
        self.num_leaving -= transfer.leaves_device
        self.num_leaving_host -= transfer.source.tier is Tier.HOST
        return transfer

    def abandon(self) -> list[Transfer]:
        """Forget all transfers in progress, as the engine is lost, and return them."""
        abandoned = list(self._under_way.values())
        self._under_way.clear()
        self._unsent.clear()
        self.num_leaving = self.num_leaving_host = 0
        return abandoned
