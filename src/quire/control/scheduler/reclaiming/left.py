"""Contents that no living program holds: exports whose owners have ended, and leases.

They are the first to give up memory, for any claim. Owns which of them are on the device of one
engine for one holder alone; must not know what claims them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quire.control.commands.host_commands import HostCommands
from quire.control.engines.state import EngineState
from quire.control.memory.content import Content
from quire.control.memory.exports import Export


class LeftContents:
    """Such contents on one engine. ``host`` has the exports and leases of all engines."""

    def __init__(self, engine: EngineState, host: HostCommands) -> None:
        self._engine = engine
        self._host = host

    def contents(self) -> Iterator[Content]:
        """The contents that can be moved out: of exports that were left to their tenants alone, and
        of leases. Found one by one: there may be thousands of exports, and few are needed."""
        for export in self._host.exports.left(self._engine.id):
            yield from self._own(export)
        if len(self._host.leases):
            yield from self._leased()

    def move_out(self, num_blocks: int) -> bool:
        """Move contents to the host; if that is full, remove exports that were not used for
        longest. Stops at ``num_blocks``; returns False if there was nothing."""
        memory = self._engine.memory
        num_found = num_freed = 0
        for content in self.contents():
            num_found += 1
            num_freed += memory.descent.move_out(content)
            if num_freed >= num_blocks:
                return True
        if not num_found:
            return False
        for export in self._host.exports.left(self._engine.id):
            if num_freed >= num_blocks:
                break
            if own := self._own(export):
                self._host.remove_export(export)
                num_freed += len(own)
        return num_freed > 0

    def _leased(self) -> list[Content]:
        """Contents on the device that only a lease holds and that can be read: they are computed
        again if they are dropped."""
        leases = self._host.leases.of_engine(self._engine.id)
        held = [one.contents if one.is_complete else one.matched for one in leases]
        return self._alone([content for contents in held for content in reversed(contents)])

    def _own(self, export: Export) -> list[Content]:
        """Contents on the device that only ``export`` holds, later pages first."""
        contents = [snapshot.content for snapshot in reversed(export.pages)]
        return self._alone([content for content in contents if content is not None])

    def _alone(self, contents: Iterable[Content]) -> list[Content]:
        """Those of ``contents`` on the device that have one holder."""
        can_move_out = self._engine.memory.can_move_out
        return [one for one in contents if one.num_refs == 1 and can_move_out(one)]
