"""What a handle of a program needs of the table that it is in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from quire.core.ids import ProgramId, TenantId
from quire.node.program_figures import ResourceUsage
from quire.node.record_feed import RecordFeed

if TYPE_CHECKING:
    from quire.node.program_handle import ProgramHandle


class ProgramPlace(Protocol):
    """The owner of handles: the table of programs."""

    def soon(self, callback: Callable[[], object]) -> None:
        """Call it on the edge's loop; from any thread."""
        ...

    def records(self, tenant: TenantId) -> RecordFeed:
        """Who is told the records of the tenant's programs."""
        ...

    def renamed(self, handle: ProgramHandle, before: ProgramId) -> None:
        """The program has been restarted under another number."""
        ...

    def used(self, handle: ProgramHandle) -> ResourceUsage | None:
        """What the program has used; while it runs, what earlier incarnations have used."""
        ...

    def left(self, handle: ProgramHandle) -> None:
        """The program is at another node."""
        ...

    def ended(self, handle: ProgramHandle, num_bytes: int) -> None:
        """The program's last message is in the log; the handle keeps ``num_bytes``."""
        ...
