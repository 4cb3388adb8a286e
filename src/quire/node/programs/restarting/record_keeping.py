"""Makes the messages and the end of one program wait until a router has its record.

Belongs to the edge's loop. ``record_feed`` sends the record, ``told_record`` has its parts.
"""

from __future__ import annotations

from quire.node.programs.output import Keep
from quire.node.programs.restarting.record_feed import RecordFeed
from quire.node.programs.restarting.told_family import ToldFamily
from quire.node.programs.restarting.told_record import ToldRecord
from quire.programs.runtime.running import RunningProgram


class RecordKeeping:
    """The record of one program, over all of its incarnations. Before ``begin``, and without a
    router that keeps the record, nothing waits."""

    def __init__(self) -> None:
        self._feed: RecordFeed | None = None
        self.told: ToldRecord | None = None
        """The program's own record, while it runs."""
        self._family: ToldFamily | None = None
        """The records that the program's own record is sent with."""
        self._end_of: RunningProgram | None = None
        """The incarnation whose end has waited, or waits now."""

    def begin(self, feed: RecordFeed, told: ToldRecord, above: RecordKeeping | None = None) -> None:
        """Begin to keep ``told``. ``above``: the same of the program that has launched this one, if
        their records are sent together."""
        self._feed, self.told = feed, told
        if above is not None:
            self._family = above._family
        else:
            self._family = ToldFamily(told)
            feed.add(self._family)

    async def kept(self) -> None:
        """Wait until a router has the record up to now, if one keeps it."""
        if self._feed is not None and self._family is not None:
            await self._feed.kept(self._family)

    def of_message(self) -> Keep | None:
        """The wait that a message of the program needs now; None: none."""
        if self._feed is None or self._family is None or not self._feed.waits_for(self._family):
            return None
        return self.kept

    def of_end(self, running: RunningProgram) -> Keep | None:
        """The same for the end of ``running``, which waits once."""
        if self._end_of is running or (keep := self.of_message()) is None:
            return None
        self._end_of = running
        return keep

    def end(self, *, may_be_lost: bool) -> None:
        """Let go of the record: the program has ended, or goes on elsewhere. One that is sent with
        an ancestor's record stays in it. ``may_be_lost``: see ``EndedRecord``."""
        told, family = self.told, self._family
        is_own = told is not None and family is not None and family.id == told.id
        if self._feed is not None and family is not None and is_own:
            self._feed.end(family, may_be_lost=may_be_lost)
        self.told = self._family = self._end_of = None
