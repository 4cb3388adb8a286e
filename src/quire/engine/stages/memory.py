"""Stage 1 of a message: page tables, copies, repositioning, opening and closing of sequences,
beginning of swaps and of exchanges with other engines."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from quire.core.batch import (
    I32,
    BatchOperation,
    CloseReceives,
    CloseSequences,
    CopySlots,
    DropTables,
    ExtendSequence,
    OpenReceive,
    OpenSequence,
    ReadDisk,
    RepositionSlots,
    SendSlots,
    SwapIn,
    SwapOut,
    WriteDisk,
    WriteEntries,
    WriteTable,
)
from quire.core.errors import EngineFault, InvalidArgument, QuireError
from quire.core.interfaces import Tokenizer
from quire.engine.adapters.token_groups import check_adapter
from quire.engine.disk_transfers import DiskTransfers
from quire.engine.exchange.exchange import EngineExchange
from quire.engine.failures import RowFailures, check_message
from quire.engine.kv_cache.page_tables import PageTables
from quire.engine.kv_cache.pool import KVPool
from quire.engine.kv_cache.token_form import I64
from quire.engine.sampling.grammar_hosts import GrammarHosts
from quire.engine.sampling.grammar_matchers import ConfinedMatcher
from quire.engine.sampling.parameters import check_sampler
from quire.engine.sequences import SequenceObjects, Sequences, TokenHistory
from quire.engine.stopping import ByteStopMatcher
from quire.engine.transfers import TransferQueue

logger = logging.getLogger(__name__)


class MemoryOperations:
    """Applies operations to the engine's tables, pool and sequences."""

    def __init__(
        self,
        pool: KVPool,
        transfers: TransferQueue,
        disk: DiskTransfers | None,
        exchange: EngineExchange,
        tables: PageTables,
        sequences: Sequences,
        tokenizer: Tokenizer,
        grammars: GrammarHosts,
        vocab_size: int,
        num_adapters: int = 0,
    ) -> None:
        self._pool = pool
        self._transfers = transfers
        self._disk = disk
        self._exchange = exchange
        self._tables = tables
        self._sequences = sequences
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._vocab_size = vocab_size
        self._num_adapters = num_adapters

    def forward_begins(self, planned: I64, written: I64) -> None:
        """See ``EngineExchange``."""
        self._exchange.forward_begins(planned, written)

    def run(self, operations: Sequence[BatchOperation], failures: RowFailures) -> None:
        """Apply all in order. An operation that cannot be applied fails alone. Only one that opens
        a sequence can fail by a request, which is told so. The words of any other failure are
        logged: control has checked what it asks for."""
        for index, operation in enumerate(operations):
            check_message(getattr(operation, "group", 0) == 0, "this engine has one layer group")
            try:
                self._apply(operation)
            except EngineFault:
                raise
            except QuireError as exc:
                failures.add("operations", index, exc)
                if not isinstance(operation, OpenSequence):
                    logger.error(
                        "internal error: the engine refuses operation %d of a message, %s: %s",
                        index,
                        type(operation).__name__,
                        exc.message,
                    )

    def _apply(self, operation: BatchOperation) -> None:
        match operation:
            case WriteTable(table=table, start=start, blocks=blocks, visible=visible):
                check_message(len(blocks) == len(visible), "blocks and visible differ in length")
                _check_range("block", blocks, self._pool.num_blocks)
                self._tables.write(table, start, blocks, visible)
            case WriteEntries():
                self._write_entries(operation)
            case DropTables(tables=dropped):
                for table in dropped:
                    row = self._tables.row(table)
                    self._tables.drop(table)
                    self._sequences.forget_table(row)
            case CopySlots(source=source, target=target):
                check_message(len(source) == len(target), "source and target differ in length")
                _check_range("slot", source, self._pool.num_slots)
                _check_range("slot", target, self._pool.num_slots)
                self._pool.copy_slots(source, target)
            case RepositionSlots(slots=slots, positions=positions):
                check_message(len(slots) == len(positions), "slots and positions differ in length")
                check_message(len(np.unique(slots)) == len(slots), "a slot is repositioned twice")
                _check_range("slot", slots, self._pool.num_slots)
                _check_range("position", positions, 1 << 31)
                self._pool.reposition(slots, positions)
            case SwapOut() | SwapIn():
                self._check_swap(operation)
                self._transfers.begin(operation)
            case WriteDisk() | ReadDisk():
                self._begin_on_disk(operation)
            case OpenReceive(slots=slots):
                _check_range("slot", slots, self._pool.num_slots)
                self._exchange.begin(operation)
            case SendSlots():
                self._check_sent(operation)
                self._exchange.begin(operation)
            case CloseReceives():
                self._exchange.begin(operation)
            case OpenSequence():
                self._open(operation)
            case ExtendSequence(sequence=sequence, limit=limit):
                self._sequences.extend(sequence, limit)
            case CloseSequences(sequences=closed):
                for sequence in closed:
                    self._sequences.close(sequence)

    def _write_entries(self, written: WriteEntries) -> None:
        columns = written.entries, written.blocks, written.visible
        fits = all(len(column) == len(written.tables) for column in columns)
        check_message(fits, "columns of table entries differ in length")
        _check_range("block", written.blocks, self._pool.num_blocks)
        self._tables.write_entries(written.tables, *columns)

    def _check_swap(self, swap: SwapOut | SwapIn) -> None:
        lengths = {len(swap.transfers), len(swap.blocks), len(swap.host_blocks)}
        check_message(len(lengths) == 1, "a swap's columns differ in length")
        _check_range("block", swap.blocks, self._pool.num_blocks)
        _check_range("host block", swap.host_blocks, self._pool.num_host_blocks)

    def _check_sent(self, send: SendSlots) -> None:
        slots, host_slots = send.slots, send.host_slots
        if len(host_slots):
            check_message(len(slots) == len(host_slots), "a send's columns differ in length")
            on_host, num_host_slots = slots == -1, self._pool.num_host_blocks * self._pool.page_size
            _check_range("host slot", host_slots[on_host], num_host_slots)
            slots = slots[~on_host]
        _check_range("slot", slots, self._pool.num_slots)

    def _begin_on_disk(self, operation: WriteDisk | ReadDisk) -> None:
        lengths = {len(operation.transfers), len(operation.blocks), len(operation.disk_blocks)}
        check_message(len(lengths) == 1, "a disk operation's columns differ in length")
        is_on_host = isinstance(operation, WriteDisk) and operation.tier == "host"
        num_blocks = self._pool.num_host_blocks if is_on_host else self._pool.num_blocks
        _check_range("host block" if is_on_host else "block", operation.blocks, num_blocks)
        disk = self._disk
        _check_range("disk block", operation.disk_blocks, 0 if disk is None else disk.num_blocks)
        if disk is not None:
            disk.begin(operation)

    def _open(self, operation: OpenSequence) -> None:
        """Open the sequence. An error in its request fails it, but leaves it open, because control
        closes every sequence that it opened."""
        check_message(
            0 <= operation.num_generated <= len(operation.history),
            f"{operation.num_generated} of {len(operation.history)} tokens were generated",
        )
        table_row = self._tables.row(operation.table)
        history = TokenHistory(operation.history, operation.num_generated)
        objects = SequenceObjects(operation.sampler, history)
        try:
            check_adapter(operation.adapter, self._num_adapters)
            check_sampler(operation.sampler, self._vocab_size)
            _check_range("stop token", np.array(operation.stop.token_ids, np.int64), 1 << 31)
            objects.strings = self._string_matcher(operation)
            objects.grammar = self._grammar_matcher(operation)
        except QuireError as exc:
            objects.failure = exc
        self._sequences.open(operation, table_row, objects)
        if objects.failure is not None:
            raise objects.failure

    def _string_matcher(self, operation: OpenSequence) -> ByteStopMatcher | None:
        strings = operation.stop.strings
        if not strings:
            return None
        if not all(strings):
            raise InvalidArgument("a stop string is empty: leave it out")
        matcher = ByteStopMatcher(strings)
        generated = operation.history[len(operation.history) - operation.num_generated :]
        matcher.follow(self._tokenizer.token_bytes(int(token)) for token in generated[::-1])
        return matcher

    def _grammar_matcher(self, operation: OpenSequence) -> ConfinedMatcher | None:
        """The matcher is compiled while the prompt runs; the first mask reports its errors."""
        if operation.grammar is None:
            return None
        generated = operation.history[len(operation.history) - operation.num_generated :]
        return self._grammars.open(operation.grammar, generated.tolist())


def _check_range(what: str, values: I32, size: int) -> None:
    if len(values) and not (values.min() >= 0 and values.max() < size):
        raise InvalidArgument(
            f"{what} {int(values.min())}..{int(values.max())} is outside 0..{size - 1}"
        )
