"""Which contents are moved out when the pool is used up, and in which order.

Owns the order alone: what is left of ended programs, idle programs' pages, the requester's own,
waiting younger programs', then running decodes by policy. The oldest active program may claim from
all. ``claim`` states what a claim must not touch, and why some command always goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from quire.control.commands.host_commands import HostCommands
from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.state import EngineState
from quire.control.memory.content import Content
from quire.control.programs.program import Entry, Program
from quire.control.programs.table import ProcessTable
from quire.control.scheduler.order.ranking import Ranking
from quire.control.scheduler.reclaiming.claim import Claim
from quire.control.scheduler.reclaiming.left import LeftContents
from quire.control.scheduler.waiting.backlog import Backlog
from quire.control.scheduler.waiting.seating import Seating


class Reclaimer:
    """Frees device blocks of one engine for one requester at a time.

    ``ranking`` decides which command outranks which, ``backlog`` which may take part at all;
    ``seating`` takes a running decode's sequence.
    """

    def __init__(
        self,
        engine: EngineState,
        table: ProcessTable,
        host: HostCommands,
        backlog: Backlog,
        ranking: Ranking,
        seating: Seating,
    ) -> None:
        self._engine = engine
        self._table = table
        self._left = LeftContents(engine, host)
        self._backlog = backlog
        self._ranking = ranking
        self._seating = seating

    def reclaim(self, num_blocks: int, claim: Claim, kept: set[Entry]) -> bool:
        """Free at least one block, ``num_blocks`` if that is as easy; return False if nothing can
        be moved out.

        ``kept``: decodes that the message in preparation already carries.
        """
        if not self._is_enough(num_blocks, claim, kept):
            return False
        requester = claim.requester
        return (
            self._left.move_out(num_blocks)
            or self._move_out_idle(num_blocks, claim)
            or self._move_out([requester.program], num_blocks, claim)
            or self._move_out(self._waiting(requester), num_blocks, claim)
            or self._preempt_one(claim, kept)
            or self._move_out_contents(claim.last_resort(), num_blocks, requester.program) > 0
        )

    def _is_enough(self, num_blocks: int, claim: Claim, kept: set[Entry]) -> bool:
        """Whether all that may be moved out makes ``num_blocks``. If not, nothing is touched: a
        claim that cannot be met would drop, message after message, what others compute again."""
        left = list(islice(self._left.contents(), num_blocks))
        num_movable = len(left)
        if num_movable >= num_blocks:
            return True
        num_host: int | None = None
        for content in self._candidates(claim, kept, left):
            if content.canonical and content.tokens:
                num_movable += 1
            else:
                if num_host is None:  # counting is worth it only for what cannot be dropped
                    num_host = self._engine.memory.num_available_below
                if num_host:
                    num_host -= 1
                    num_movable += 1
            if num_movable >= num_blocks:
                return True
        return False

    def _candidates(
        self, claim: Claim, kept: set[Entry], left: Iterable[Content]
    ) -> Iterator[Content]:
        """The contents beside ``left`` that ``reclaim`` could move out for ``claim``, each once."""
        seen = set(map(id, left))
        for content in self._each_candidate(claim, kept):
            if id(content) not in seen:
                seen.add(id(content))
                yield content

    def _each_candidate(self, claim: Claim, kept: set[Entry]) -> Iterator[Content]:
        holders = self._table.holders.get(self._engine.id)
        idle = [] if holders is None else list(holders.values())
        requester = claim.requester
        for program in (*idle, requester.program, *self._waiting(requester)):
            yield from self._movable(program, claim)
        for run in self._victims(requester, kept):
            yield from (c for c in run.pins if c.num_pins == 1 and not claim.spares(c))
        yield from filter(self._engine.memory.can_move_out, claim.last_resort())

    def look_again(self) -> None:
        """Consider every idle program once more, however it became idle, as nothing could be moved
        out."""
        for program in self._table.idle.values():
            self._table.note_holder(program)

    def _move_out_idle(self, num_blocks: int, claim: Claim) -> bool:
        """Move out contents of idle programs, longest idle first. A program without a movable block
        is not examined again until it has been active, so that a thousand idle programs cost
        nothing."""
        holders = self._table.holders.get(self._engine.id)
        while holders:
            program_id, program = next(iter(holders.items()))
            if self._move_out([program], num_blocks, claim):
                return True
            del holders[program_id]
        return False

    def _waiting(self, requester: Entry) -> list[Program]:
        """Active programs that may hold blocks and are younger than the requester's, youngest
        first; then older ones that wait for a seat alone: until they have one they need none."""
        mine = requester.program.serial
        holders = list(self._table.active_holders())
        younger = [program for program in holders if program.serial > mine]
        resting = [p for p in holders if p.serial < mine and self._rests(p)]
        return younger + resting

    def _rests(self, program: Program) -> bool:
        """Whether none of its commands may go into a message before it has a seat."""
        backlog = self._backlog
        return not any(
            backlog.waits(entry) or backlog.seats.has_seat(entry) or entry.num_in_flight
            for entry in program.entries.values()
        )

    def _move_out(self, programs: Iterable[Program], num_blocks: int, claim: Claim) -> bool:
        """Move contents of ``programs`` out, one program after the other, until it is enough."""
        num_freed = 0
        for program in programs:
            movable = self._movable(program, claim)
            num_freed += self._move_out_contents(movable, num_blocks - num_freed, program)
            if num_freed >= num_blocks:
                return True
        return num_freed > 0

    def _move_out_contents(
        self, contents: Iterable[Content], num_blocks: int, program: Program
    ) -> int:
        """Move out ``num_blocks`` of ``contents``, which ``program`` holds, or as many as can be;
        return how many."""
        memory = self._engine.memory
        num_freed = 0
        for content in contents:
            if num_freed >= num_blocks:
                break
            num_freed += memory.can_move_out(content) and memory.descent.move_out(
                content, program.id
            )
        return num_freed

    def _movable(self, program: Program, claim: Claim) -> list[Content]:
        contents = {id(content): content for content in claim.restoring(program)}
        for page in program.pages.values():
            if page.engine == self._engine.id and page.content is not None:
                contents[id(page.content)] = page.content
        can_move_out = self._engine.memory.can_move_out
        # Later pages first: the beginning of a prefix is the most likely to be shared.
        return [c for c in reversed(contents.values()) if can_move_out(c) and not claim.spares(c)]

    def _victims(self, requester: Entry, kept: set[Entry]) -> list[DecodeRun]:
        oldest = self.oldest()
        return [
            run
            for entry, run in self._engine.running.items()
            if entry is not requester
            and entry not in kept
            and not entry.num_in_flight
            and self._may_take(requester, entry, oldest)
        ]

    def _preempt_one(self, claim: Claim, kept: set[Entry]) -> bool:
        victims = self._victims(claim.requester, kept)
        if not victims:
            return False
        victim = max(victims, key=lambda run: self._ranking.standing(run.entry))
        # Chosen while it runs: afterwards it waits, and may be senior to its preemptor.
        contents = [content for content in reversed(victim.pins) if not claim.spares(content)]
        self._seating.preempt(victim)
        self._move_out_contents(contents, len(contents), victim.entry.program)
        return True

    def _may_take(self, requester: Entry, victim: Entry, oldest: Program | None) -> bool:
        if victim.program is not requester.program:
            if requester.program is oldest:
                return True
            if victim.program is oldest:
                return False
        return self._ranking.outranks(requester, victim)

    def oldest(self) -> Program | None:
        """The active program that started first: it may claim from all others."""
        return self._table.oldest_active
