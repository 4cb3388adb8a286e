"""The services that the programs of a node share, and each program's own view of them."""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.interfaces import Clock
from quire.programs.services.messaging import MessagingService
from quire.programs.services.operations import Identity, ProgramService, ProgramServices
from quire.programs.services.topics import Topics
from quire.programs.services.work_queues import WorkQueues


class SharedServices:
    """Topics and work queues of one node. ``clock`` drives what expires."""

    def __init__(self, clock: Clock) -> None:
        self.topics = Topics()
        self.queues = WorkQueues(clock)

    def of(self, identity: Identity, more: Iterable[ProgramService] = ()) -> ProgramServices:
        """The services of one program: these, and ``more`` of its node's."""
        return ProgramServices([MessagingService(identity, self.topics, self.queues), *more])


__all__ = ["SharedServices"]
