"""Finds commands that could be in a message planned now, and are in none of those in flight.

Owns what must have happened since the last plan for a command to go on that could not then. Plans
nothing: ``engine_scheduler`` decides what is sent behind a message, and for how many steps.
"""

from __future__ import annotations

from quire.control.engines.state import EngineState
from quire.control.programs.program import Entry
from quire.control.scheduler.pausing.pausing import FamilyPausing
from quire.control.scheduler.waiting.backlog import Backlog
from quire.control.scheduler.waiting.seating import Seating
from quire.core.commands import Decode


class Joining:
    """The commands of one engine that could join."""

    def __init__(
        self, engine: EngineState, backlog: Backlog, seating: Seating, pausing: FamilyPausing
    ) -> None:
        self._engine = engine
        self._backlog = backlog
        self._seats = backlog.seats
        self._seating = seating
        self._pausing = pausing
        self._num_changes = -1
        self._num_asked = -1

    def planned(self) -> None:
        """Note that a message has been planned: a command that is not in it could not be."""
        self._num_changes, self._num_asked = self._engine.num_changes, self._seats.num_asked

    def is_possible(self, *, is_blocked: bool) -> bool:
        """Whether a command could join. ``is_blocked``: some found no memory in the last plan."""
        if self._backlog.work or self._pausing.is_due:
            return True
        seats = self._seats
        has_changed = self._num_changes != self._engine.num_changes
        if has_changed and (is_blocked or self._backlog.claims):
            return True
        has_asked = self._num_asked != seats.num_asked
        if seats.num_free and seats.num_asking and (has_changed or has_asked):
            return True
        pair = seats.exchange()
        return pair is not None and self._seating.admits(pair[0], pair[1])

    def prompts(self) -> list[Entry]:
        """The prompts that would be in a message planned now, if nothing else was."""
        self._backlog.begin_message()
        self._seating.give_free_seats()
        work = self._backlog.work
        if len(work) > self._seats.capacity:
            return []
        waiting = list(work)
        return waiting if all(isinstance(entry.command, Decode) for entry in waiting) else []
