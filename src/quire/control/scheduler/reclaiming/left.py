"""What no living program holds and only waits to be used: exports whose owners have ended, leases.

It is the first to give up memory, whoever claims it. Owns which of it stands on the device of one
engine for one holder alone; must not know who claims it.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.control.commands.host_commands import HostCommands
from quire.control.engines.state import EngineState
from quire.control.memory.content import Content
from quire.control.memory.exports import Export


class LeftContents:
    """Of one engine. ``host`` has the exports and leases of all."""

    def __init__(self, engine: EngineState, host: HostCommands) -> None:
        self._engine = engine
        self._host = host

    def contents(self) -> list[Content]:
        """What can go: of exports that were left to their tenants alone, and of leases."""
        exports = self._host.exports.left(self._engine.id)
        contents = [content for export in exports for content in self._own(export)]
        if len(self._host.leases):
            contents += self._leased()
        return contents

    def move_out(self, num_blocks: int) -> bool:
        """To the host; where that is full, the export that has not been used for longest goes.
        Stops at ``num_blocks``; False if there was nothing."""
        memory = self._engine.memory
        num_freed = 0
        for content in self.contents():
            num_freed += memory.descent.move_out(content)
            if num_freed >= num_blocks:
                return True
        for export in self._host.exports.left(self._engine.id):
            if num_freed >= num_blocks:
                break
            if own := self._own(export):
                self._host.remove_export(export)
                num_freed += len(own)
        return num_freed > 0

    def _leased(self) -> list[Content]:
        """What stands on the device for a lease alone and can be read: it is computed again if it
        is dropped."""
        leases = self._host.leases.of_engine(self._engine.id)
        held = [one.contents if one.is_complete else one.matched for one in leases]
        return self._alone([content for contents in held for content in reversed(contents)])

    def _own(self, export: Export) -> list[Content]:
        """What stands on the device for ``export`` alone, later pages first."""
        contents = [snapshot.content for snapshot in reversed(export.pages)]
        return self._alone([content for content in contents if content is not None])

    def _alone(self, contents: Iterable[Content]) -> list[Content]:
        """Those that stand on the device for one holder."""
        can_move_out = self._engine.memory.can_move_out
        return [one for one in contents if one.num_refs == 1 and can_move_out(one)]
