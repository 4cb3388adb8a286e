"""Whether a router keeps what one program was told, and what waits until it does.

Belongs to the edge's loop. ``record_feed`` tells the record, ``told_record`` has what is told.
"""

from __future__ import annotations

from quire.node.program_output import Keep
from quire.node.record_feed import RecordFeed
from quire.node.told_record import ToldRecord
from quire.programs.runtime.running import RunningProgram


class RecordKeeping:
    """Of one program, over all of its incarnations. Before ``begin``, and for a program that is not
    told, nothing waits."""

    def __init__(self) -> None:
        self._feed: RecordFeed | None = None
        self._told: ToldRecord | None = None
        self._end_of: RunningProgram | None = None
        """The incarnation whose end has waited, or waits now."""

    def begin(self, feed: RecordFeed, told: ToldRecord) -> None:
        self._feed, self._told = feed, told
        feed.add(told)

    async def kept(self) -> None:
        """Until what the program was told by now is kept, if anybody keeps it."""
        if self._feed is not None and self._told is not None:
            await self._feed.kept(self._told)

    def of_message(self) -> Keep | None:
        """What a message of the program waits for now; None: nothing."""
        if self._feed is None or self._told is None or not self._feed.waits_for(self._told):
            return None
        return self.kept

    def of_end(self, running: RunningProgram) -> Keep | None:
        """The same of the end of ``running``, which waits once."""
        if self._end_of is running or (keep := self.of_message()) is None:
            return None
        self._end_of = running
        return keep

    def end(self, *, may_be_lost: bool) -> None:
        """The program has ended, or goes on elsewhere: its record is let go. ``may_be_lost``: see
        ``EndedRecord``."""
        if self._feed is not None and self._told is not None:
            self._feed.end(self._told, may_be_lost=may_be_lost)
        self._told = self._end_of = None
