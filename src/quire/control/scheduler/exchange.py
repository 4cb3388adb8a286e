"""Leases and sends of one engine: puts them into messages and reads how they end.

Owns the way of ``OpenLease`` and ``SendPages`` from their message to their end. A lease that finds
no blocks is refused at once, so that the client can choose another engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.control.commands.flow import Flow
from quire.control.engines.builder import BatchBuilder
from quire.control.engines.exchange_runs import OpeningRun, SendRun
from quire.control.engines.in_flight import InFlight
from quire.control.engines.leasing import (
    complete_lease,
    end_lease,
    end_send,
    forget_lease,
    hold_for_send,
)
from quire.control.engines.state import EngineState
from quire.control.event_time import EventTime
from quire.control.memory.content import Content
from quire.control.memory.leases import Lease, LeaseTable
from quire.control.memory.packed_tokens import int_array, pack_tokens
from quire.control.memory.pages import Page
from quire.control.memory.promises import Reclaim
from quire.control.programs.lookup import find_pages
from quire.control.programs.program import Entry
from quire.control.programs.states import CommandState
from quire.control.scheduler.lowering.lowering import LoweringResult
from quire.core.batch import OpenReceive, SendSlots
from quire.core.errors import (
    EngineFault,
    ErrorRecord,
    InvalidArgument,
    NeverFits,
    PoolExhausted,
)
from quire.core.exchange import ReceiveEnded, SendEnded, SendTarget
from quire.core.lease_commands import Leased, LeaseName, OpenLease, SendPages, Sent

MAX_SHARE = 0.5
"""The share of an engine's blocks that may wait for K and V at once: they cannot be reclaimed, and
the programs of the node must be able to go on without them."""


class ExchangeScheduler:
    """Schedules the leases and sends of one engine. ``leases`` is shared by all engines."""

    def __init__(
        self, engine: EngineState, leases: LeaseTable, flow: Flow, time: EventTime
    ) -> None:
        self._engine = engine
        self._leases = leases
        self._flow = flow
        self._time = time

    # -- into messages ---------------------------------------------------------------------------

    def open_lease(
        self, entry: Entry, command: OpenLease, builder: BatchBuilder, reclaim: Reclaim
    ) -> LoweringResult:
        """Hold the pages that are here, bind blocks for the rest, and open the lease in the
        message."""
        engine, tenant = self._engine, entry.program.tenant
        memory, size = engine.memory, engine.page_size
        adapter = engine.adapter_index(command.adapter)
        num_pages = -(-len(command.tokens) // size)
        whole = len(command.tokens) // size
        matched = memory.index.match(tenant, None, pack_tokens(command.tokens), whole, adapter)
        num_new = num_pages - len(matched) + len(command.opaque)
        self._require_totals(entry, num_pages + len(command.opaque))
        self._require_share(num_new)
        for content in matched:
            memory.retain(content)
        if not memory.make_room(num_new, reclaim):
            for content in reversed(matched):
                memory.release(content)
            self._refuse_or_wait(num_new, reclaim)
            return LoweringResult.NO_ROOM
        lease = self._lease(entry, command, adapter, matched, num_new)
        self._leases.add(lease)
        if lease.received:
            self._receive(lease)
        num_matched = len(matched) * size
        entry.run = OpeningRun(
            lease,
            Leased(
                lease=lease.name,
                num_matched=num_matched,
                num_tokens=lease.num_tokens,
                address=engine.info.data_address,
                content=engine.info.content,
            ),
        )
        builder.opening(entry)
        return LoweringResult.ADDED

    def _require_totals(self, entry: Entry, num_pages: int) -> None:
        leased, account = self._leases.leased_by(entry.program.tenant), entry.program.account
        account.require("max_leases", leased.num_leases, 1, "leases are open")
        account.require("max_leased_pages", leased.num_pages, num_pages, "pages are leased")

    def _require_share(self, num_new: int) -> None:
        num_blocks = self._engine.memory.device.size
        limit = int(num_blocks * MAX_SHARE)
        num_waiting = self._leases.num_waiting(self._engine.id)
        what = f"a lease of {num_new} blocks on engine {self._engine.id}"
        if num_new > limit:
            raise NeverFits(
                f"{what}, of whose {num_blocks} blocks {limit} may wait for K and V: lease less "
                "and compute the rest there, or raise kv_cache_bytes",
                num_blocks=limit,
            )
        if num_waiting + num_new > limit:
            raise PoolExhausted(
                f"{what}: {num_waiting} wait for K and V and {limit} of {num_blocks} may: retry "
                "later, or choose another engine",
                num_waiting=num_waiting,
                num_blocks=limit,
            )

    def _refuse_or_wait(self, num_new: int, reclaim: Reclaim) -> None:
        """Raise ``PoolExhausted`` unless transfers will free blocks."""
        memory = self._engine.memory
        if reclaim.order is None or len(memory.transfers):
            return
        raise PoolExhausted(
            f"a lease of {num_new} blocks on engine {self._engine.id}: {memory.num_available} of "
            f"{memory.device.size} are free or cached, and no program can yield any: retry later, "
            "or choose another engine",
            num_free=memory.num_available,
            num_blocks=memory.device.size,
        )

    def _lease(
        self,
        entry: Entry,
        command: OpenLease,
        adapter: int,
        matched: list[Content],
        num_new: int,
    ) -> Lease:
        engine = self._engine
        received = []
        for _ in range(num_new):
            content = engine.memory.retain(Content(None, canonical=False, adapter=adapter))
            engine.memory.bind(content)
            engine.memory.pin(content)
            received.append(content)
        number = self._leases.next_number()
        return Lease(
            name=LeaseName(engine.id, engine.epoch, number, command.key),
            tenant=entry.program.tenant,
            adapter=adapter,
            tokens=command.tokens,
            matched=matched,
            received=received,
            expires_s=self._time.now_s + command.ttl_s,
            opaque=command.opaque,
            is_complete=not received,
        )

    def _receive(self, lease: Lease) -> None:
        engine, size = self._engine, self._engine.page_size
        slots: list[int] = []
        rest = len(lease.tokens) - len(lease.matched) * size
        fills = [*(min(size, rest - start) for start in range(0, rest, size)), *lease.opaque]
        for content, fill in zip(lease.received, fills, strict=True):
            assert content.block is not None
            slots += range(content.block * size, content.block * size + fill)
        engine.operations.add(
            OpenReceive(
                lease=lease.name.number,
                key=lease.name.key,
                slots=int_array(slots),
            )
        )

    def send_pages(
        self, entry: Entry, command: SendPages, builder: BatchBuilder, reclaim: Reclaim
    ) -> LoweringResult:
        """Hold the pages, on the device or the host, until the engine has sent them from there.
        Tokens that earlier commands of its queue append in this message are sent too: the engine
        sends them as they are computed."""
        engine = self._engine
        pages = find_pages(entry, command.pages)
        if any(page.appender not in (None, entry.queue.serial) for page in pages):
            return LoweringResult.WAITS
        spans = _spans(pages, command)
        contents = [page.content for page, _, _ in spans if page.content is not None]
        if not engine.are_present(contents, builder):
            return LoweringResult.NO_ROOM
        run = hold_for_send(engine, entry, contents, command.num_tokens, reclaim)
        if run is None:
            return LoweringResult.NO_ROOM
        entry.run = run
        self._send(run, contents, [(first, last) for _, first, last in spans], command.target)
        builder.operation(entry, is_final=False)
        return LoweringResult.ADDED

    def _send(
        self,
        run: SendRun,
        contents: Sequence[Content],
        spans: Sequence[tuple[int, int]],
        target: SendTarget,
    ) -> None:
        """Begin to send slots ``spans`` of ``contents``, which ``run`` holds."""
        engine, size = self._engine, self._engine.page_size
        slots: list[int] = []
        host_slots: list[int] = []
        for content, (first, last) in zip(contents, spans, strict=True):
            nowhere = [-1] * (last - first)
            if content.block is not None:
                slots += range(content.block * size + first, content.block * size + last)
                host_slots += nowhere
                continue
            assert content.host_block is not None
            start = content.host_block * size
            slots += nowhere
            host_slots += range(start + first, start + last)
            run.num_host_tokens += last - first
        engine.num_sends += 1
        engine.sends[engine.num_sends] = run
        engine.operations.add(
            SendSlots(
                send=engine.num_sends,
                slots=int_array(slots),
                host_slots=int_array(host_slots if run.host_blocks else []),
                target=target,
            )
        )

    # -- results ---------------------------------------------------------------------------------

    def begins(self, message: InFlight) -> None:
        """Answer the commands whose leases ``message`` opens, as nothing is before it at the
        engine, which opens them before it computes. A sender that comes sooner still is kept
        waiting by the data plane."""
        for entry in message.openings:
            run = entry.run
            assert isinstance(run, OpeningRun)
            if entry.is_wanted and entry.on_end is None and entry.queue.entries[0] is entry:
                run.is_told = True
                self._flow.answer(entry, run.reply)

    def read(self, entry: Entry) -> bool:
        """Note that the message that carries ``entry`` has run; return False if the command is no
        longer wanted."""
        run = entry.run
        if isinstance(run, OpeningRun):
            return self._opened(entry, run)
        if not entry.is_wanted:
            return False
        assert isinstance(run, SendRun)
        if run.outcome is not None:
            self._tell(run, run.outcome)
        return True

    def _opened(self, entry: Entry, run: OpeningRun) -> bool:
        """Finish the command. A lease that was told of stays, though its program may have ended."""
        if entry.error is None and (run.is_told or entry.is_wanted):
            self._flow.finish(entry, run.reply)
            return True
        if self._leases.get(run.lease.name.number) is not None:
            self.close(run.lease, "was closed: its program has ended or cancelled it")
        return False

    def ended(self, ended: SendEnded | ReceiveEnded) -> None:
        """Read the end of a send, or of the K and V of a lease.

        Raises:
            EngineFault: it was not asked to.
        """
        self._engine.touch()
        self._engine.num_ended += 1  # what it held may make way now, though nothing is free yet
        self._engine.exchanged.note(ended)
        if isinstance(ended, SendEnded):
            self._sent(ended)
        else:
            self._received(ended)

    def _received(self, ended: ReceiveEnded) -> None:
        lease = self._leases.get(ended.lease)
        if lease is None and 0 < ended.lease <= self._leases.num_opened:
            return  # it was closed meanwhile
        if lease is None or lease.name.engine != self._engine.id or lease.is_complete:
            raise EngineFault(
                f"engine {self._engine.id} reports the end of lease {ended.lease}, which waits for "
                "nothing there: the peer is broken, restart it"
            )
        if ended.error is not None:
            self.close(lease, f"has failed: {ended.error.message}")
            return
        complete_lease(self._engine, self._leases, lease)
        self._flow.note_lease()

    def _sent(self, ended: SendEnded) -> None:
        run = self._engine.sends.pop(ended.send, None)
        if run is None:
            raise EngineFault(
                f"engine {self._engine.id} reports the end of send {ended.send}, which it was not "
                "asked for: the peer is broken, restart it"
            )
        end_send(self._engine, run)
        if ended.error is None:
            self._engine.exchanged.note_sent(run)
        outcome: Sent | ErrorRecord = ended.error or Sent(
            run.num_tokens, ended.num_bytes, ended.elapsed_s, ended.transport
        )
        if run.entry.run is not run:  # it was cancelled
            self._flow.note_holder(run.entry.program)
            return
        if run.entry.num_in_flight:
            run.outcome = outcome
        else:
            self._tell(run, outcome)
            self._flow.advance(run.entry.queue)

    def _tell(self, run: SendRun, outcome: Sent | ErrorRecord) -> None:
        if isinstance(outcome, Sent):
            self._flow.finish(run.entry, outcome)
        else:
            self._flow.fail(run.entry, outcome)

    # -- ends ------------------------------------------------------------------------------------

    def close(self, lease: Lease, why: str) -> None:
        end_lease(self._engine, self._leases, lease, why)
        self._flow.note_lease()

    def close_youngest(self) -> bool:
        """Close the lease that was opened last, so that it gives up the blocks that wait for K and
        V, as no program on the engine can go on. Returns False if there is none."""
        waiting = [one for one in self._leases.of_engine(self._engine.id) if not one.is_complete]
        if waiting:
            self.close(waiting[-1], "was closed: the engine's programs needed its blocks")
        return bool(waiting)

    def lose(self, error: ErrorRecord) -> None:
        """End the leases of the lost engine and fail what it was sending."""
        engine = self._engine
        engine.memory.unpin_all(engine.take_fenced())
        for lease in self._leases.of_engine(engine.id):
            forget_lease(engine, self._leases, lease)
            self._flow.note_lease()
        sends, engine.sends = list(engine.sends.values()), {}
        for run in sends:
            end_send(engine, run)
            entry = run.entry
            if entry.run is run and entry.state is CommandState.STARTED:
                self._flow.fail(entry, entry.error or error)


def _spans(pages: Sequence[Page], command: SendPages) -> list[tuple[Page, int, int]]:
    """The slots of each page that are sent: the first, and the one after the last.

    Raises:
        InvalidArgument: there are not so many written ones.
    """
    spans = []
    start, stop, num_before = command.begin, command.begin + command.num_tokens, 0
    for page in pages:
        first, last = max(start - num_before, 0), min(stop - num_before, page.fill)
        if first < last:
            spans.append((page, first, last))
        num_before += page.fill
    if num_before < stop:
        raise InvalidArgument(
            f"tokens {start} to {stop} of {len(pages)} pages that hold {num_before}: write them "
            "first, or send fewer"
        )
    return spans
