"""What programs of this node may ask for beside the model: shared services and their children.

Owns the services and the way from a program's loop to the edge's, where children are launched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any

from quire.core.interfaces import Clock
from quire.node.children import Ancestry, ChildLauncher
from quire.node.loops import call_on
from quire.programs.services.children import ChildService
from quire.programs.services.operations import Identity, ProgramServices
from quire.programs.services.shared import SharedServices
from quire.programs.services.store import Store


class NodeServices:
    """``start`` belongs to the edge's loop; ``of`` is for any thread."""

    def __init__(self, clock: Clock, data_dir: Path | None = None) -> None:
        self._store = Store(data_dir)
        self._shared = SharedServices(clock, self._store)
        self._edge: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Raises ``ConfigError``: the data directory cannot be used."""
        self._edge = asyncio.get_running_loop()
        self._store.open()

    def close(self) -> None:
        """Every program has ended; blocks until the store is written."""
        self._shared.close()

    def of(
        self, identity: Identity, ancestry: Ancestry, children: ChildLauncher
    ) -> ProgramServices:
        """The services of a launched program; ``children`` launches those that it asks for."""
        child_service = ChildService(
            identity,
            ancestry.family,
            ancestry.seed,
            partial(children.spawn, ancestry),
            self._on_edge,
            partial(call_on, self._edge),
        )
        return self._shared.of(identity, [child_service])

    async def _on_edge(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run ``work`` on the edge's loop; its errors and its cancellation pass through.

        In a context of its own: what it starts there is the node's and must outlive the program.
        """
        submit = partial(asyncio.run_coroutine_threadsafe, work, self._edge)
        return await asyncio.wrap_future(Context().run(submit))


__all__ = ["NodeServices"]
