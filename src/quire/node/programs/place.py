"""The interface of the table of programs to the lives of the programs in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from quire.core.ids import ProgramId, TenantId
from quire.node.programs.figures import ResourceUsage
from quire.node.programs.restarting.record_feed import RecordFeed


class ProgramPlace(Protocol):
    """The owner of programs: their table. ``id`` is a program's public id."""

    def soon(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` soon on the edge's loop. For any thread."""
        ...

    def records(self, tenant: TenantId) -> RecordFeed:
        """The feed of the tenant's records."""
        ...

    def renamed(self, id: str, before: ProgramId, now: ProgramId) -> None:
        """Note that the program had the number ``before`` and has been restarted as ``now``."""
        ...

    def used(self, incarnations: Sequence[ProgramId], *, ended: bool) -> ResourceUsage | None:
        """The resources that a program has used; while it runs, those of earlier incarnations."""
        ...

    def left(self, id: str) -> None:
        """Forget the program: it has moved to another node."""
        ...

    def ended(self, id: str, num_bytes: int) -> None:
        """Note that the program's last message is in the log; ``num_bytes`` are kept of it."""
        ...
