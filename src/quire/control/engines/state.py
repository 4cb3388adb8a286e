"""Everything control keeps for one engine: memory, tables, slots, sequences, work.

Owns the pools of the engine's numbered resources and the sets of work on it. ``engine_scheduler``
decides what goes into the next message.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence

from quire.control.engines.adapters import find_adapter
from quire.control.engines.advanced_rows import AdvancedRows
from quire.control.engines.awake import Awake
from quire.control.engines.builder import BatchBuilder
from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.engine import ControlledEngine
from quire.control.engines.exchange_runs import ExchangeCounts, SendRun
from quire.control.engines.forward_run import ForwardRun
from quire.control.engines.in_flight import InFlight
from quire.control.memory.append_cursor import AppendCursor, Prefix, Spans
from quire.control.memory.blocks import NumberPool
from quire.control.memory.chain_heads import ChainHeads
from quire.control.memory.content import Content
from quire.control.memory.exports import ExportTable
from quire.control.memory.leases import LeaseTable
from quire.control.memory.memory import Memory
from quire.control.memory.operations import OperationList
from quire.control.memory.pages import Page
from quire.control.memory.promises import Reclaim
from quire.control.memory.residency import secure
from quire.control.memory.table_entries import table_entries
from quire.control.memory.tables import ResidentTable, TableCache
from quire.control.memory.transfers import Transfer
from quire.control.programs.program import CommandQueue, Entry, Program
from quire.core.commands import EmbedImage, EmbedText, Forward, Sample
from quire.core.engine_info import EngineInfo
from quire.core.errors import ErrorRecord, PageLost, PoolExhausted
from quire.core.ids import EngineId, ModelId, SequenceId, TokenSlotId


class EngineState(ControlledEngine):
    """One engine with memory.

    ``unfinished``  commands that have begun but need further messages before a sequence is open.
    ``running``     decodes with an open sequence.
    ``unlocked``    pages whose appending command has ended since the last ``take_unlocked``.
    ``num_ended``   total number of ended runs, sends and receives.
    ``epoch``       how often the engine has come up again.
    ``sends``       what it sends to other engines, by number (never used again).
    ``fenced``      contents that are free when the next message has run, which closes their leases.
    ``exchanged``   counts of the K and V that went to other engines, or came from them.
    ``num_freed_embeds``  ``embeds.num_freed`` when ``starved`` was last examined.
    """

    def __init__(
        self,
        engine: EngineId,
        model: ModelId,
        info: EngineInfo,
        number: int = 0,
        awake: Awake | None = None,
        heads: ChainHeads | None = None,
    ) -> None:
        super().__init__(engine, model, number, awake)
        self.info = info
        self.operations = OperationList()
        self.memory = Memory(engine, info, self.operations, heads)
        self.tables = TableCache()
        self.embeds = NumberPool(info.pool.num_embeds)
        self.token_slots = NumberPool(info.pool.num_token_slots)
        self.sequences = NumberPool(info.pool.max_sequences)
        self.is_up = True
        self.given_up: ErrorRecord | None = None
        self.next_step = 0
        self.next_epoch = 1
        self.advanced = AdvancedRows()
        self.in_flight: deque[InFlight] = deque()
        self.unfinished: dict[Entry, None] = {}
        self.running: dict[Entry, DecodeRun] = {}
        self.num_freed_embeds = 0
        self.unlocked: list[Page] = []
        self.num_ended = 0
        self.num_generated_tokens = 0
        self.epoch = 0
        self.sends: dict[int, SendRun] = {}
        self.num_sends = 0
        self.exchanged = ExchangeCounts()
        self.fenced: list[Content] = []

    @property
    def page_size(self) -> int:
        return self.info.pool.page_size

    @property
    def num_changes(self) -> int:
        """Increases with every event that may have freed memory for a command that found none."""
        return self.memory.num_changes + self.num_ended

    def take_unlocked(self) -> list[Page]:
        unlocked, self.unlocked = self.unlocked, []
        return unlocked

    def adapter_index(self, name: str | None) -> int:
        """The index of adapter ``name`` in messages, -1 for None.

        Raises:
            InvalidArgument: the engine does not have it.
        """
        return -1 if name is None else find_adapter(name, self.info)

    def cursor(
        self, entry: Entry, pages: Sequence[Page], prefix: Prefix, adapter: int
    ) -> AppendCursor:
        program = entry.program
        return AppendCursor(
            pages, prefix, program.tenant, program.family, self.memory, self.operations, adapter
        )

    def bind(
        self,
        cursor: AppendCursor | None,
        spans: Spans,
        seen: list[Content],
        builder: BatchBuilder,
        reclaim: Reclaim,
    ) -> bool:
        """Make ``seen`` resident and ``spans`` of ``cursor`` writable, for this message. Returns
        False if that is not possible yet."""
        needed, num_new = seen, 0
        if cursor is not None:
            resident, num_new = cursor.unbound(spans)
            if resident:
                needed = seen + resident
        if not self.are_present(needed, builder):
            return False
        pinned = secure(self.memory, needed, num_new, reclaim)
        if pinned is None:
            return False
        builder.pins += pinned
        if cursor is not None:
            cursor.bind(spans)
            for page, _ in spans:
                assert page.content is not None
                self.memory.pin(page.content)
                builder.pins.append(page.content)
        return True

    def are_present(self, contents: Iterable[Content], builder: BatchBuilder) -> bool:
        """Whether all are on some tier; lost ones are added to ``builder.lost``.

        Raises:
            PageLost: one is lost and its tokens are not known, or its adapter is not loaded.
        """
        away = [content for content in contents if content.block is None or content.is_restoring]
        if not away:
            return True
        lost = [content for content in away if content.is_restoring or content.is_lost]
        for content in lost:
            if not content.canonical:
                raise PageLost(
                    "a page was lost, with its engine or on the disk, and its tokens are not "
                    "known: write it again"
                )
            self._require_adapter(content.adapter)
        builder.lost += lost
        return not lost

    def _require_adapter(self, index: int) -> None:
        """Raise ``PageLost`` if the adapter that computed a page was not loaded again."""
        adapter = None if index < 0 else self.info.adapters[index]
        if adapter is not None and adapter.problem:
            raise PageLost(
                f"a page was lost with its engine, and adapter {adapter.name!r}, which computed "
                f"it, could not be loaded again: {adapter.problem}"
            )

    def place_table(
        self,
        queue: CommandQueue,
        pages: list[Page],
        hidden: Mapping[Page, int],
        message: int,
    ) -> ResidentTable:
        """Place a table of ``queue`` for ``pages``. ``hidden``: the number of first slots to hide,
        for pages that hide any."""
        blocks, words = table_entries(pages, hidden, self.page_size)
        return self.tables.place(queue.serial, blocks, words, message, self.operations)

    def token_slots_for(self, queue: CommandQueue, names: Sequence[TokenSlotId]) -> list[int]:
        """The physical token slots of ``names``; new names are bound.

        Raises:
            PoolExhausted: every token slot of the engine is bound, or the free ones are reserved
                for programs that hold fewer.
        """
        bound = queue.program.token_slots
        for name in names:
            if (self.id, name) in bound:
                continue
            pool = self.token_slots
            slot = pool.take() if pool.may_take(1, len(bound)) else None
            if slot is None:
                raise PoolExhausted(
                    f"{pool.num_free} of {pool.size} token slots are free, this program holds "
                    f"{len(bound)}, and the last {pool.num_reserved} are reserved for programs "
                    "that hold fewer: reuse names, or close queues that no longer need theirs",
                    num_token_slots=pool.size,
                )
            bound[self.id, name] = slot
            queue.token_slots.add(name)
        return [bound[self.id, name] for name in names]

    def take_back(self, start_fills: Iterable[tuple[Page, int]]) -> None:
        """Restore pages after a command was refused half way: set their fills as they were before
        it and free blocks that only it filled."""
        for page, fill in start_fills:
            page.truncate(fill)
            if page.content is not None and not fill:
                self.memory.release(page.content)
                page.content = None

    def forget_written(self, entry: Entry) -> None:
        """Forget the values of the embeds and token slots that ``entry`` writes, as it has
        failed."""
        command = entry.command
        if isinstance(command, EmbedText | EmbedImage | Forward):
            written = command.outputs if isinstance(command, Forward) else command.embeds
            for embed in entry.embeds:
                if embed.id in written:
                    embed.is_written = False
        elif isinstance(command, Sample):
            for name in command.token_slots or ():
                slot = entry.program.token_slots.pop((self.id, name), None)
                if slot is not None:
                    self.token_slots.free(slot)
                for queue in entry.program.queues.values():
                    queue.token_slots.discard(name)

    def free_token_slots(self, queue: CommandQueue) -> None:
        for name in queue.token_slots:
            slot = queue.program.token_slots.pop((self.id, name), None)
            if slot is not None:
                self.token_slots.free(slot)
        queue.token_slots.clear()

    def take_fenced(self) -> list[Content]:
        fenced, self.fenced = self.fenced, []
        return fenced

    def end_transfers(
        self, transfers: Collection[int], failed: Collection[int], programs: Iterable[Program]
    ) -> list[Transfer]:
        """End ``transfers``, of which ``failed`` moved no bytes. What could not be read from the
        disk is lost: pages of ``programs`` that cannot be recomputed are marked."""
        ended = self.memory.end_transfers(transfers, failed)
        contents = [t.content for t in ended if t.has_failed and t.content is not None]
        lost = {id(content) for content in contents if content.is_lost and not content.canonical}
        if lost:
            for program in programs:
                for page in program.pages.values():
                    if page.fill and id(page.content) in lost:
                        page.is_lost = True
        return ended

    def check_invariants(
        self, programs: Iterable[Program], exports: ExportTable, leases: LeaseTable
    ) -> None:
        """Assert that pools, index and reference counts agree with the holdings of programs,
        exports, leases and sends."""
        num_refs: Counter[int] = Counter()
        contents: dict[int, Content] = {}
        held = [
            page.content for p in programs for page in p.pages.values() if page.engine == self.id
        ]
        held += [s.content for x in exports.exports() if x.engine == self.id for s in x.pages]
        held += [content for lease in leases.of_engine(self.id) for content in lease.contents]
        held += [content for run in self.sends.values() for content in run.contents]
        for content in held:
            if content is not None:
                num_refs[id(content)] += 1
                contents[id(content)] = content
        for key, content in contents.items():
            assert content.num_refs >= num_refs[key], "a content has fewer references than holders"
        lent = Counter([block for run in self.sends.values() for block in run.host_blocks])
        assert lent == self.memory.host.lent, "host blocks are lent to others than the sends"
        self.memory.check_invariants(contents.values())
        self.embeds.check_invariants()
        self.sequences.check_invariants()
        assert len(self.in_flight) <= 2, "more than two messages are in flight"
        is_spare = any(entry.queue.is_spare for entry in [*self.running, *self.unfinished])
        assert self.ready.has_had_spare or not is_spare, "a spare command was never noted"
        assert not self.running.keys() & self.unfinished.keys(), "a decode runs and has not begun"

    def take_sequence(self, run: DecodeRun) -> bool:
        """Give ``run`` a sequence under a new epoch; False when all are in use."""
        number = self.sequences.take()
        if number is None:
            return False
        run.sequence = SequenceId(number)
        run.epoch = self.next_epoch
        self.next_epoch += 1
        return True

    def suspend(self, run: DecodeRun) -> None:
        """Close the run's sequence in the next message and give its table back to its queue. The
        run's tokens are known, so another sequence can be opened later."""
        assert run.sequence is not None
        assert run.table is not None
        self.operations.close_sequence(run.sequence)
        self.sequences.free(run.sequence)
        self.tables.give_back(run.table, run.first_entry, self.operations)
        run.sequence, run.table = None, None
        self.memory.unpin_all(run.pins)
        run.pins = []
        run.cursor.drop_unused()

    def abandon(self, entry: Entry) -> None:
        """Close the sequence of ``entry``, which ends, unlock its pages and forget it. Only the
        contents of its pages remain."""
        run, entry.run = entry.run, None
        self.wake()
        if entry.rank is not None:
            self.ended.append(entry)
        if isinstance(run, DecodeRun | ForwardRun):
            self.num_ended += 1
            self.unlocked += run.locked
            if isinstance(run, DecodeRun):
                if run.is_open:
                    self.suspend(run)
                run.cursor.drop_unused()
            run.unlock()
        self.running.pop(entry, None)
        self.unfinished.pop(entry, None)
