"""Makes the messages and the end of one program wait until a router has its record.

Belongs to the edge's loop. ``record_feed`` sends the record, ``told_record`` has its parts.
"""

from __future__ import annotations

from quire.node.program_output import Keep
from quire.node.record_feed import RecordFeed
from quire.node.told_record import ToldRecord
from quire.programs.runtime.running import RunningProgram


class RecordKeeping:
    """The record of one program, over all of its incarnations. Before ``begin``, and without a
    router that keeps the record, nothing waits."""

    def __init__(self) -> None:
        self._feed: RecordFeed | None = None
        self._told: ToldRecord | None = None
        self._end_of: RunningProgram | None = None
        """The incarnation whose end has waited, or waits now."""

    def begin(self, feed: RecordFeed, told: ToldRecord) -> None:
        self._feed, self._told = feed, told
        feed.add(told)

    async def kept(self) -> None:
        """Wait until a router has the record up to now, if one keeps it."""
        if self._feed is not None and self._told is not None:
            await self._feed.kept(self._told)

    def of_message(self) -> Keep | None:
        """The wait that a message of the program needs now; None: none."""
        if self._feed is None or self._told is None or not self._feed.waits_for(self._told):
            return None
        return self.kept

    def of_end(self, running: RunningProgram) -> Keep | None:
        """The same for the end of ``running``, which waits once."""
        if self._end_of is running or (keep := self.of_message()) is None:
            return None
        self._end_of = running
        return keep

    def end(self, *, may_be_lost: bool) -> None:
        """Let go of the record: the program has ended, or goes on elsewhere. ``may_be_lost``: see
        ``EndedRecord``."""
        if self._feed is not None and self._told is not None:
            self._feed.end(self._told, may_be_lost=may_be_lost)
        self._told = self._end_of = None
