"""The services that the programs of a node share, and each program's own view of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from quire.core.interfaces import Clock
from quire.programs.services.messaging import MessagingService
from quire.programs.services.operations import Identity, ProgramService, ProgramServices
from quire.programs.services.store import Store, StoreService
from quire.programs.services.topics import Topics
from quire.programs.services.work_queues import WorkQueues


class SharedServices:
    """Topics, work queues and the store of one node. ``clock`` determines expiry in queues; the
    store has its own clock. ``close`` closes the store."""

    def __init__(self, clock: Clock, store: Store) -> None:
        self.store = store
        self.topics = Topics()
        self.queues = WorkQueues(clock)

    def of(
        self, identity: Identity, more: Callable[[], Iterable[ProgramService]] = tuple
    ) -> ProgramServices:
        """The services of one program: these, and ``more`` of its node's services."""
        return ProgramServices(partial(self._made, identity, more))

    def _made(
        self, identity: Identity, more: Callable[[], Iterable[ProgramService]]
    ) -> Iterable[ProgramService]:
        yield MessagingService(identity, self.topics, self.queues)
        yield StoreService(identity, self.store)
        yield from more()

    def close(self) -> None:
        """Close the store, after all programs have ended. Blocks until it is written."""
        self.store.close()
