"""Decides which decodes begin when memory is short: those for whose working set there is room.

Without it every decode begins, and all push each other out. Owns the estimate of the blocks that a
decode still takes: the rest of its prompt, less what others hold of it, and as much of what it may
generate as decodes lately did generate. An estimate that is too low costs preemptions, one that is
too high costs batch size. It moves nothing; ``seating`` ensures that the oldest program waits for
no room.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.state import EngineState
from quire.control.memory.content import Content
from quire.control.memory.pages import Page
from quire.control.programs.program import Entry
from quire.control.programs.table import ProcessTable
from quire.control.scheduler.waiting.seats import Seats
from quire.control.scheduler.waiting.shared_prefix import SharedPrefixes
from quire.core.commands import Decode

_SMOOTHING = 0.05


class Admission:
    """Estimates for one engine. ``share``: the share of its ``max_tokens`` that a decode is first
    expected to generate."""

    def __init__(self, engine: EngineState, table: ProcessTable, share: float) -> None:
        self._engine = engine
        self._table = table
        self.share = share
        self._shared = SharedPrefixes(engine)

    def ended(self, num_generated: int, max_tokens: int) -> None:
        """Note that a decode has ended with ``num_generated`` of its ``max_tokens``."""
        if max_tokens > 0:
            self.share += _SMOOTHING * (num_generated / max_tokens - self.share)

    def num_blocks_of(self, entry: Entry) -> int:
        """The expected number of blocks of its context when it ends."""
        command = entry.command
        assert isinstance(command, Decode)
        num_tokens = command.position + len(command.tokens)
        num_tokens += self._expected(command.stop.max_tokens, 0)
        return -(-num_tokens // self._engine.page_size)

    def admits(self, entry: Entry, seats: Seats, victim: Entry | None = None) -> bool:
        """Whether there is room for ``entry`` beside those that have seats, or in the place of
        ``victim``, which has one. If no other has a seat, there is: ``entry`` then claims what it
        needs."""
        num_others = len(seats.seated) - (victim is not None)
        if not num_others:
            return True
        memory = self._engine.memory
        num_needed = self._num_to_come(entry) + self._num_away(entry)
        num_free = memory.num_available
        # With room for the longest answers no decode is examined: a plan calls this per exchange.
        most_blocks = seats.most_tokens // self._engine.page_size + num_others + 1
        if num_free >= num_needed + most_blocks:
            return True
        others = [other for other in seats.seated if other is not victim]
        num_needed += self._reserved(others)
        if victim is not None:
            num_free += _num_resident(victim)
        if num_free >= num_needed:
            return True
        # looked up only when it decides: keys are hashes of whole prompts
        kept = () if victim is None else _contents(victim.pages)
        num_needed -= self._shared.num_held([entry, *others], without=kept)
        return num_free >= num_needed or self._has_idle(num_needed - num_free)

    def _reserved(self, seated: Iterable[Entry]) -> int:
        return sum([self._num_to_come(entry) for entry in seated])

    def _num_to_come(self, entry: Entry) -> int:
        """The number of blocks that ``entry`` has not bound yet and will want."""
        command, run = entry.command, entry.run
        assert isinstance(command, Decode)
        size = self._engine.page_size
        if not isinstance(run, DecodeRun):
            num_tokens = len(command.tokens) + self._expected(command.stop.max_tokens, 0)
            return -(-num_tokens // size)
        num_tokens = run.num_to_run + self._expected(run.max_tokens, run.num_generated)
        num_bound = run.limit_slot - run.next_slot if run.is_open else 0
        return max(0, -(-(num_tokens - num_bound) // size))

    def _expected(self, max_tokens: int, num_generated: int) -> int:
        """The number of tokens that it is expected to generate yet: at least one, if any is
        left."""
        left = max_tokens - num_generated
        return max(min(left, 1), min(left, int(self.share * max_tokens) - num_generated))

    def _num_away(self, entry: Entry) -> int:
        """The number of contents that ``entry`` names and that must come back to the device."""
        return sum(content.block is None for content in _contents(entry.pages))

    def _has_idle(self, num_blocks: int) -> bool:
        """Whether idle programs can make ``num_blocks`` free. A program without a movable block is
        not examined again until it has been active, so that a thousand idle programs cost
        nothing."""
        memory = self._engine.memory
        holders = self._table.holders.get(self._engine.id)
        if not holders:
            return False
        num_host: int | None = None
        for program in list(holders.values()):
            movable = [c for c in _contents(program.pages.values()) if memory.can_move_out(c)]
            if not movable:
                del holders[program.id]
            for content in movable:
                if not (content.canonical and content.tokens):
                    if num_host is None:  # counting is worth it only for what cannot be dropped
                        num_host = memory.num_available_below
                    if not num_host:
                        continue
                    num_host -= 1
                num_blocks -= 1
                if num_blocks <= 0:
                    return True
        return False


def _contents(pages: Iterable[Page]) -> list[Content]:
    """The contents of ``pages``, once each."""
    found = {id(page.content): page.content for page in pages if page.content is not None}
    return list(found.values())


def _num_resident(entry: Entry) -> int:
    return sum(content.block is not None for content in _contents(entry.pages))
