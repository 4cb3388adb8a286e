"""The interface of the table of programs to the handles in it."""

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
        """Call ``callback`` soon on the edge's loop. For any thread."""
        ...

    def records(self, tenant: TenantId) -> RecordFeed:
        """The feed of the tenant's records."""
        ...

    def renamed(self, handle: ProgramHandle, before: ProgramId) -> None:
        """Note that the program has been restarted under another number than ``before``."""
        ...

    def used(self, handle: ProgramHandle) -> ResourceUsage | None:
        """The resources that the program has used; while it runs, those of earlier incarnations."""
        ...

    def left(self, handle: ProgramHandle) -> None:
        """Forget the program: it has moved to another node."""
        ...

    def ended(self, handle: ProgramHandle, num_bytes: int) -> None:
        """Note that the program's last message is in the log; the handle keeps ``num_bytes``."""
        ...
