"""Moves contents between the tiers of one engine: what a transfer does to its content.

Owns the transfers, the places of a content while and after one of them runs, and the counts of what
was moved. ``descent`` and ``memory`` decide which content goes where, and which makes way for it.
"""

from __future__ import annotations

from quire.control.memory.blocks import NumberPool
from quire.control.memory.content import Content
from quire.control.memory.disk_tier import DiskTier
from quire.control.memory.lower_tier import LowerTier
from quire.control.memory.move_counts import MoveCounts
from quire.control.memory.operations import OperationList
from quire.control.memory.transfers import Location, Tier, Transfer, TransferTable
from quire.core.ids import BlockId, DiskBlockId, EngineId, HostBlockId, ProgramId


class Movement:
    """Moves contents between ``device`` and the tiers below it. Operations are appended to
    ``operations``."""

    def __init__(
        self,
        engine: EngineId,
        operations: OperationList,
        transfers: TransferTable,
        counts: MoveCounts,
        device: NumberPool,
        host: LowerTier,
        disk: DiskTier,
    ) -> None:
        self._engine = engine
        self._operations = operations
        self._transfers = transfers
        self._counts = counts
        self._device = device
        self._host = host
        self._disk = disk

    def bring(self, content: Content, program: ProgramId | None) -> None:
        """Begin to move ``content`` from the host or the disk to the device, which has room."""
        taken = self._device.take()
        assert taken is not None, "brought without room"
        block, host_block, disk_block = BlockId(taken), content.host_block, content.disk_block
        if host_block is not None:
            self._host.keep(host_block)
            transfer = self._begin(content, Tier.HOST, host_block, Tier.DEVICE, block, program)
            self._operations.swap_in(transfer, host_block, block)
            return
        assert disk_block is not None, "brought from nowhere"
        self._disk.keep(disk_block)
        transfer = self._begin(content, Tier.DISK, disk_block, Tier.DEVICE, block, program)
        self._operations.read(transfer, disk_block, block)

    def to_host(self, content: Content, host_block: HostBlockId, program: ProgramId | None) -> None:
        """Begin to move ``content`` from the device to ``host_block``, which was taken for it."""
        block = content.block
        assert block is not None
        transfer = self._begin(content, Tier.DEVICE, block, Tier.HOST, host_block, program)
        self._operations.swap_out(transfer, block, host_block)
        content.block, content.host_block = None, host_block

    def to_disk(self, content: Content, disk_block: DiskBlockId, program: ProgramId | None) -> None:
        """Begin to move ``content`` from the device or the host to ``disk_block``, which was taken
        for it."""
        block, host_block = content.block, content.host_block
        if block is not None:
            transfer = self._begin(content, Tier.DEVICE, block, Tier.DISK, disk_block, program)
            self._operations.store(transfer, block, disk_block)
        else:
            assert host_block is not None
            self._host.keep(host_block)
            transfer = self._begin(content, Tier.HOST, host_block, Tier.DISK, disk_block, program)
            self._operations.spill(transfer, host_block, disk_block)
        content.block, content.host_block, content.disk_block = None, None, disk_block

    def _begin(
        self,
        content: Content,
        tier: Tier,
        block: int,
        target_tier: Tier,
        target: int,
        program: ProgramId | None,
    ) -> int:
        source = Location(self._engine, tier, block)
        to = Location(self._engine, target_tier, target)
        content.transfer = self._transfers.begin(content, source, to, program).id
        return content.transfer

    def end(self, transfer_id: int, *, has_failed: bool) -> Transfer:
        """Put the content where it is now and free the other block. A content whose write to the
        disk failed is where it was; one whose read from the disk failed is nowhere.

        Raises:
            EngineFault: a number that is not that of a transfer in progress.
        """
        transfer = self._transfers.end(transfer_id)
        transfer.has_failed = has_failed
        self._counts.note_ended(transfer)
        content, place, other = transfer.content, transfer.target, transfer.source
        if has_failed:
            place, other = other, place
        self._pool(other).free(other.block)
        is_lost = has_failed and place.tier is Tier.DISK
        if content is None or is_lost:
            self._pool(place).free(place.block)
        if content is not None:
            _set_down(content)
            if not is_lost:
                _put(content, place)
        return transfer

    def forget(self, content: Content) -> None:
        """Let the transfer of ``content`` continue without it."""
        assert content.transfer is not None
        self._transfers.get(content.transfer).content = None
        _set_down(content)

    def abandon(self) -> None:
        """Free the blocks of all transfers in progress, as the engine is lost."""
        for transfer in self._transfers.abandon():
            self._pool(transfer.source).free(transfer.source.block)
            self._pool(transfer.target).free(transfer.target.block)
            if transfer.content is not None:
                _set_down(transfer.content)

    def _pool(self, place: Location) -> NumberPool:
        if place.tier is Tier.DEVICE:
            return self._device
        return self._host.pool if place.tier is Tier.HOST else self._disk.pool


def _set_down(content: Content) -> None:
    """Note that ``content`` is in no transfer and has no place on a lower tier."""
    content.transfer, content.host_block, content.disk_block = None, None, None


def _put(content: Content, place: Location) -> None:
    if place.tier is Tier.DEVICE:
        content.block = BlockId(place.block)
    elif place.tier is Tier.HOST:
        content.host_block = HostBlockId(place.block)
    else:
        content.disk_block = DiskBlockId(place.block)
