"""What is done when no command of an engine can go on, because each waits for blocks of another.

Owns the order of the remedies, from the one that costs nothing to the one that a program notices.
It does not choose what goes into a message: it changes who holds what, and plans again.

**How it comes about.** A decode that waits keeps its pages from younger programs, and one that runs
keeps them from those that rank below it. So an older decode that computes its prompt and a younger
one that outranks it can each wait for the other. No claim of the oldest program ends that, if this
program asks for nothing here: its commands are on another engine, or wait for a seat.

**Why no program fails for it.** The decode that stands worst gives up its seat; without one it
keeps nothing from anybody (``claim``), so the others go on, and it continues from its tokens when
it has a seat again. Each decode does so at most once before a message is sent, so this ends. Only
when none is left, because what they need is held by nobody who can yield it, a command is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from quire.control.commands.flow import Flow
from quire.control.engines.builder import BatchBuilder
from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.forward_run import ForwardRun
from quire.control.engines.state import EngineState
from quire.control.programs.program import Entry
from quire.control.scheduler.planner import MessagePlanner
from quire.core.errors import PoolExhausted


class Unblocking:
    """The remedies for one engine."""

    def __init__(self, engine: EngineState, planner: MessagePlanner, flow: Flow) -> None:
        self._engine = engine
        self._planner = planner
        self._flow = flow
        self._stuck_since: dict[Entry, int] = {}
        """The commands that wait for sends, and the newest send of the time when each began to."""

    def unblock(self, builder: BatchBuilder, plan: Callable[[bool], BatchBuilder]) -> BatchBuilder:
        """Return a plan that brings some command on, or one that is empty because none waits for
        blocks. ``plan`` plans again; its argument: try all claims for memory.

        Examine every holder again, close leases that wait for K and V, let decodes make way, then
        refuse the youngest claim, until one fits. While a send is waited for, decodes make way and
        no more: its end may free blocks."""
        planner, is_thorough = self._planner, False
        made_way: set[Entry] = set()
        while self._is_stuck(builder):
            if not self._engine.ended and is_thorough:
                waits = self._waits_for_sends()
                if not waits and planner.exchange.close_youngest():
                    return builder  # the message that closes it frees its blocks
                if not self._make_way(made_way):
                    if waits:
                        return builder
                    self._refuse(max(planner.refusable(), key=planner.ranking.standing))
            elif not self._engine.ended:
                planner.reclaimer.look_again()
                is_thorough = True
            builder = plan(is_thorough)
        return builder

    def _is_stuck(self, builder: BatchBuilder) -> bool:
        """Whether commands wait for blocks that neither a row nor the end of a transfer will free;
        or whether a command ended during planning, which has left its place to another."""
        if not builder.is_empty:
            return False
        if self._engine.ended:
            return True
        return bool(self._planner.blocked) and not len(self._engine.memory.transfers)

    def _waits_for_sends(self) -> bool:
        """Whether the blocked commands wait for a send to end. None waits for sends that have begun
        since it is stuck: who sends one after the other would hold it up for ever."""
        engine, blocked = self._engine, self._planner.blocked
        if not engine.sends:
            self._stuck_since = {}
            return False
        since = {entry: self._stuck_since.get(entry, engine.num_sends) for entry in blocked}
        self._stuck_since = since
        oldest = min(engine.sends)
        return all(oldest <= newest for newest in since.values())

    def _make_way(self, made_way: set[Entry]) -> bool:
        """Take the seat of the decode that stands worst of those that found no block; False if
        there is none. Those of the oldest program stay, as it may claim from all."""
        planner = self._planner
        if len(planner.blocked) < 2:  # nobody would gain from it
            return False
        seats, oldest = planner.backlog.seats, planner.reclaimer.oldest()
        seated = [
            entry
            for entry in planner.blocked
            if seats.has_seat(entry) and entry not in made_way and entry.program is not oldest
        ]
        if not seated:
            return False
        entry = max(seated, key=planner.ranking.standing)
        made_way.add(entry)
        planner.seating.displace(entry)
        return True

    def _refuse(self, entry: Entry) -> None:
        """Fail ``entry``, which no message in flight carries, and take back what it has written:
        the blocks that this frees let an older command go on."""
        pool = self._engine.memory.statistics()
        error = PoolExhausted(
            f"command {entry.id} finds no block: {pool.num_free} of {pool.num_blocks} are free, "
            f"{pool.num_host_free} of {pool.num_host_blocks} on the host, {pool.num_disk_free} of "
            f"{pool.num_disk_blocks} on disk, and no program can yield any: free pages, retry "
            "later, or raise kv_cache_bytes, host_cache_bytes or disk_cache_bytes",
            num_free=pool.num_free,
            num_blocks=pool.num_blocks,
        )
        run = entry.run
        if isinstance(run, DecodeRun) and run.is_open:
            self._engine.suspend(run)
        if isinstance(run, DecodeRun | ForwardRun):
            self._engine.take_back(run.start_fills)
        self._flow.fail(entry, error.record())
        self._flow.advance(entry.queue)
