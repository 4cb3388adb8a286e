"""The fake engine's memory: slots, blocks of the lower tiers, page tables, embeds, token slots.

Owns what is written where, and refuses every access that the batch contract does not allow. Does
not know rows, sequences or sampling.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.core.batch import (
    I32,
    U64,
    CopySlots,
    ReadDisk,
    RepositionSlots,
    SwapIn,
    SwapOut,
    WriteDisk,
    WriteEntries,
    WriteTable,
)
from quire.core.engine_info import PoolSpec
from quire.core.ids import TableId
from quire.testing.fake_engine.hashing import NUM_LAYERS, turned
from quire.testing.fake_engine.violations import require


@dataclass(slots=True)
class Table:
    """A page table: block and visibility word per entry."""

    blocks: I32
    visible: U64

    def visible_slots(self, page_size: int) -> I32:
        """Flat slots whose bit is set, in entry order."""
        shifts = np.arange(page_size, dtype=np.uint64)
        entries, offsets = np.nonzero((self.visible[:, None] >> shifts) & np.uint64(1))
        return (self.blocks[entries] * page_size + offsets).astype(np.int32)

    def all_slots(self, page_size: int) -> I32:
        """Every flat slot in entry order."""
        return (self.blocks[:, None] * page_size + np.arange(page_size)).astype(np.int32).ravel()

    def visible_flags(self, page_size: int) -> NDArray[np.bool_]:
        """For each slot of ``all_slots``, whether its bit is set."""
        shifts = np.arange(page_size, dtype=np.uint64)
        return ((self.visible[:, None] >> shifts) & np.uint64(1)).astype(bool).ravel()


class Slots:
    """Contents of one tier's flat slots: values per layer, position (-1: never written), token.

    ``tokens`` is -1 where the content was not a token's embedding.
    """

    def __init__(self, num_slots: int) -> None:
        self.values = np.zeros((NUM_LAYERS, num_slots), np.uint64)
        self.positions = np.full(num_slots, -1, np.int32)
        self.tokens = np.full(num_slots, -1, np.int32)

    def copy_from(self, source: Slots, source_slots: I32, target_slots: I32) -> None:
        self.values[:, target_slots] = source.values[:, source_slots]
        self.positions[target_slots] = source.positions[source_slots]
        self.tokens[target_slots] = source.tokens[source_slots]


Place = tuple[str, int]
"""A tier's name and a block of it."""


@dataclass(frozen=True, slots=True)
class Move:
    """A transfer in progress."""

    source: Place
    target: Place

    @property
    def uses_disk(self) -> bool:
        return "disk" in (self.source[0], self.target[0])


class FakeMemory:
    """All memory of one fake engine with one full-attention group."""

    def __init__(self, pool: PoolSpec) -> None:
        group = pool.groups[0]
        self.page_size = pool.page_size
        self.num_blocks = group.num_blocks
        self._sizes = {
            "device": group.num_blocks,
            "host": group.num_host_blocks,
            "disk": group.num_disk_blocks,
        }
        self.slots = Slots(group.num_blocks * pool.page_size)
        self._tiers = {
            "device": self.slots,
            "host": Slots(group.num_host_blocks * pool.page_size),
            "disk": Slots(group.num_disk_blocks * pool.page_size),
        }
        self._written: set[Place] = set()
        """The blocks below the device that hold a content."""
        self.moves: dict[int, Move] = {}
        self.receiving: dict[int, frozenset[int]] = {}
        """Blocks of each lease that waits for slots of other engines."""
        self.sending: dict[int, frozenset[int]] = {}
        """Blocks of each send that is under way."""
        self.sending_host: dict[int, frozenset[int]] = {}
        """Host blocks of each send that is under way."""
        self.tables: dict[TableId, Table] = {}
        self.embeds = np.zeros(pool.num_embeds, np.uint64)
        self.embed_tokens = np.full(pool.num_embeds, -1, np.int32)
        self._embed_written = np.zeros(pool.num_embeds, bool)
        self._token_slots = np.full(pool.num_token_slots, -1, np.int32)

    def table(self, table: TableId) -> Table:
        require(table in self.tables, f"table {table} does not exist")
        return self.tables[table]

    def write_table(self, op: WriteTable) -> None:
        blocks, visible = op.blocks.astype(np.int32), op.visible.astype(np.uint64)
        require(
            len(blocks) == len(visible),
            f"table {op.table}: {len(blocks)} blocks but {len(visible)} visibility words",
        )
        self.check_blocks(blocks, f"table {op.table}")
        require(
            self.page_size == 64 or not np.any(visible >> np.uint64(self.page_size)),
            f"table {op.table}: a visibility bit at or beyond page_size {self.page_size}",
        )
        if op.table not in self.tables:
            require(op.start == 0, f"new table {op.table} starts at entry {op.start}, not 0")
            self.tables[op.table] = Table(blocks.copy(), visible.copy())
            return
        old = self.tables[op.table]
        require(
            0 <= op.start <= len(old.blocks),
            f"table {op.table} has {len(old.blocks)} entries; a write cannot start at {op.start}",
        )
        old.blocks = np.concatenate([old.blocks[: op.start], blocks])
        old.visible = np.concatenate([old.visible[: op.start], visible])

    def write_entries(self, op: WriteEntries) -> None:
        lengths = {len(op.tables), len(op.entries), len(op.blocks), len(op.visible)}
        require(len(lengths) == 1, "WriteEntries: columns differ in length")
        for i, (table, entry) in enumerate(
            zip(op.tables.tolist(), op.entries.tolist(), strict=True)
        ):
            one = slice(i, i + 1)
            self.write_table(
                WriteTable(
                    table=TableId(int(table)),
                    start=int(entry),
                    blocks=op.blocks[one],
                    visible=op.visible[one],
                    group=op.group,
                )
            )

    def drop_table(self, table: TableId) -> None:
        self.table(table)
        del self.tables[table]

    def copy_slots(self, op: CopySlots) -> None:
        require(len(op.source) == len(op.target), "CopySlots: source and target differ in length")
        self.check_slots(op.source, "CopySlots.source")
        self.check_slots(op.target, "CopySlots.target")
        self.check_unsent(op.target, "CopySlots.target")
        require(len(np.unique(op.target)) == len(op.target), "CopySlots writes a slot twice")
        self.check_written(op.source, "CopySlots.source")
        self.slots.copy_from(self.slots, op.source, op.target)

    def reposition_slots(self, op: RepositionSlots) -> None:
        what = "RepositionSlots"
        require(len(op.slots) == len(op.positions), f"{what}: its columns differ in length")
        require(len(np.unique(op.slots)) == len(op.slots), f"{what} names a slot twice")
        self.check_slots(op.slots, what)
        self.check_unsent(op.slots, what)
        self.check_written(op.slots, what)
        require(not np.any(op.positions < 0), f"{what}: a negative position")
        shifts = op.positions - self.slots.positions[op.slots]
        self.slots.values[:, op.slots] = turned(self.slots.values[:, op.slots], shifts)
        self.slots.positions[op.slots] = op.positions

    def begin(self, op: SwapOut | SwapIn | WriteDisk | ReadDisk) -> None:
        match op:
            case SwapOut():
                self._begin(
                    "SwapOut", op.transfers, ("device", op.blocks), ("host", op.host_blocks)
                )
            case SwapIn():
                self._begin("SwapIn", op.transfers, ("host", op.host_blocks), ("device", op.blocks))
            case WriteDisk():
                self._begin(
                    "WriteDisk", op.transfers, (op.tier, op.blocks), ("disk", op.disk_blocks)
                )
            case ReadDisk():
                self._begin(
                    "ReadDisk", op.transfers, ("disk", op.disk_blocks), ("device", op.blocks)
                )

    def _begin(
        self, what: str, transfers: I32, source: tuple[str, I32], target: tuple[str, I32]
    ) -> None:
        lengths = {len(transfers), len(source[1]), len(target[1])}
        require(len(lengths) == 1, f"{what}: its columns differ in length")
        moving = {place for move in self.moves.values() for place in (move.source, move.target)}
        for tier, blocks in (source, target):
            require(len(np.unique(blocks)) == len(blocks), f"{what}: a {tier} block twice")
            bad = [int(b) for b in blocks if not 0 <= b < self._sizes[tier]]
            require(not bad, f"{what}: {tier} blocks {bad} of {self._sizes[tier]}")
            still = [int(b) for b in blocks if (tier, int(b)) in moving]
            require(not still, f"{what}: {tier} blocks {still} are under way")
            if tier == "device":
                self._check_still(blocks, what)
                self.check_unsent(self._flat(blocks), what)
            if tier == "host" and what != "SwapIn":
                self._check_none_of(self.sending_host, blocks, f"{what}: host blocks are sent")
        if source[0] != "device":
            missing = [b for b in source[1].tolist() if (source[0], b) not in self._written]
            require(
                not missing, f"{what} reads {source[0]} blocks {missing} that nothing was moved to"
            )
        columns = zip(transfers.tolist(), source[1].tolist(), target[1].tolist(), strict=True)
        for transfer, from_block, to_block in columns:
            require(transfer not in self.moves, f"{what}: transfer {transfer} is under way already")
            self.moves[transfer] = Move((source[0], from_block), (target[0], to_block))

    def end_moves(self, transfers: Sequence[int], failed: Collection[int] = ()) -> None:
        """End ``transfers``. Each copies at this last moment, so that a forbidden change of a block
        in the meantime shows. The targets of those that have ``failed`` hold nothing any more."""
        for transfer in transfers:
            move = self.moves.pop(transfer)
            (tier, block), (to_tier, to_block) = move.source, move.target
            if transfer in failed:
                self._written -= {move.target}
                if to_tier == "device":
                    self.slots.positions[self._flat(np.array([to_block]))] = -1
                continue
            source, target = self._flat(np.array([block])), self._flat(np.array([to_block]))
            self._tiers[to_tier].copy_from(self._tiers[tier], source, target)
            self._written.add(move.target)

    def _check_still(self, blocks: NDArray[np.integer], what: str) -> None:
        if self.moves:
            places = {place for m in self.moves.values() for place in (m.source, m.target)}
            moving = sorted({b for t, b in places if t == "device"}.intersection(blocks.tolist()))
            require(not moving, f"{what}: blocks {moving} are under way")

        if self.receiving:
            self._check_none_of(self.receiving, blocks, f"{what}: blocks are being received")

    def check_unsent(self, slots: NDArray[np.integer], what: str) -> None:
        """Refuse ``slots``, which a message writes, if a send reads them."""
        if self.sending:
            blocks = slots // self.page_size
            self._check_none_of(self.sending, blocks, f"{what}: blocks are being sent")

    def begin_send(self, send: int, slots: I32, host_slots: I32) -> None:
        """Note that a send reads these slots of the device and of the host until ``end_send``."""
        targets = [move.target for move in self.moves.values()]
        coming = {block for tier, block in targets if tier == "host"}
        host_blocks = self._blocks_of(host_slots)
        num_blocks = self._sizes["host"]
        bad = [block for block in host_blocks if not 0 <= block < num_blocks]
        require(not bad, f"send {send}: host blocks {bad} of {num_blocks}")
        require(not coming & host_blocks, f"send {send}: host blocks {coming & host_blocks} come")
        self.sending[send] = self._blocks_of(slots)
        self.sending_host[send] = host_blocks

    def end_send(self, send: int, slots: I32, host_slots: I32) -> Slots:
        """Return what the send reads, the tokens at ``slots`` (or, where these are -1, at
        ``host_slots``): as it is at this last moment, so that a forbidden change shows."""
        del self.sending[send], self.sending_host[send]
        on_device = np.flatnonzero(slots >= 0).astype(np.int32)
        self.check_written(slots[on_device], f"send {send}")
        found = Slots(len(slots))
        found.copy_from(self.slots, slots[on_device], on_device)
        if len(host_slots):
            on_host = np.flatnonzero(slots < 0).astype(np.int32)
            found.copy_from(self._tiers["host"], host_slots[on_host], on_host)
            unwritten = found.positions < 0
            require(not unwritten.any(), f"send {send}: host slots were never written")
        return found

    def _blocks_of(self, slots: I32) -> frozenset[int]:
        return frozenset((slots[slots >= 0] // self.page_size).tolist())

    def _check_none_of(
        self, busy: Mapping[int, frozenset[int]], blocks: NDArray[np.integer], what: str
    ) -> None:
        named = set(blocks.tolist())
        for number, taken in list(busy.items()):  # another engine's thread may end one
            require(named.isdisjoint(taken), f"{what} ({number}): {sorted(named & taken)}")

    def _flat(self, blocks: I32) -> I32:
        offsets = np.arange(self.page_size, dtype=np.int32)
        return (blocks.astype(np.int32)[:, None] * self.page_size + offsets).ravel()

    def check_blocks(self, blocks: I32, what: str) -> None:
        bad = [int(b) for b in blocks if not 0 <= b < self.num_blocks]
        require(not bad, f"{what}: blocks {bad} out of range, the pool has {self.num_blocks}")

    def check_slots(self, slots: I32, what: str) -> None:
        num_slots = self.num_blocks * self.page_size
        bad = [int(s) for s in slots if not 0 <= s < num_slots]
        require(not bad, f"{what}: slots {bad} out of range, the pool has {num_slots}")
        self._check_still(slots // self.page_size, what)

    def check_written(self, slots: I32, what: str) -> None:
        unwritten = slots[self.slots.positions[slots] < 0]
        require(not len(unwritten), f"{what}: slots {unwritten.tolist()} were never written")
        self._check_still(slots // self.page_size, what)

    def leave_undefined(self, slots: I32, positions: I32) -> None:
        """Mark ``slots`` as written, with arbitrary content."""
        self.check_slots(slots, "a failed row")
        self.slots.values[:, slots] = 0
        self.slots.positions[slots] = positions
        self.slots.tokens[slots] = -1

    def write_embeds(self, embeds: I32, contents: U64, tokens: I32) -> None:
        self._check_embeds(embeds)
        self.embeds[embeds] = contents
        self.embed_tokens[embeds] = tokens
        self._embed_written[embeds] = True

    def read_embeds(self, embeds: I32) -> U64:
        self._check_embeds(embeds)
        unwritten = embeds[~self._embed_written[embeds]]
        require(not len(unwritten), f"embeds {unwritten.tolist()} are read but never written")
        return self.embeds[embeds]

    def _check_embeds(self, embeds: I32) -> None:
        bad = [int(e) for e in embeds if not 0 <= e < len(self.embeds)]
        require(not bad, f"embeds {bad} out of range, there are {len(self.embeds)}")

    def keep_token(self, token_slot: int, token: int) -> None:
        num_slots = len(self._token_slots)
        require(token_slot < num_slots, f"token slot {token_slot} of {num_slots}")
        self._token_slots[token_slot] = token

    def token_values(self, tokens: I32) -> I32:
        """Resolve token values to token ids (``~slot`` where negative)."""
        values = tokens.astype(np.int32).copy()
        named = ~values[values < 0]
        bad = [int(s) for s in named if s >= len(self._token_slots) or self._token_slots[s] < 0]
        require(not bad, f"token slots {bad} are read but hold no token")
        values[values < 0] = self._token_slots[named]
        return values
