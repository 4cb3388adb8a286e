"""Requests that wait at one engine for the beginning of their answer, and how they leave it.

Owns which requests these are. A node whose engine is lost keeps them until it has loaded the engine
again; the router knows whether another engine can answer sooner. Must not know which one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from quire.cluster.requests.request import Request
from quire.core.errors import EngineLost


class UnansweredRequests:
    """Those of the engine that is called ``engine``. Belongs to one loop."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._waiting: dict[asyncio.Timeout, Request] = {}

    @asynccontextmanager
    async def waiting(self, request: Request) -> AsyncIterator[None]:
        """Count ``request`` as unanswered until the context is left.

        Raises:
            EngineLost: ``let_go`` was called for it.
        """
        try:
            async with asyncio.timeout(None) as limit:
                self._waiting[limit] = request
                try:
                    yield
                finally:
                    self._waiting.pop(limit, None)
        except TimeoutError as exc:
            if not limit.expired():
                raise
            raise EngineLost(
                f"node {self._engine} has lost its engine before the answer began"
            ) from exc

    def let_go(self, may_leave: Callable[[Request], bool]) -> None:
        """End the wait of each request that ``may_leave``. It may come back if others take it
        neither."""
        for limit, request in list(self._waiting.items()):
            if may_leave(request):
                del self._waiting[limit]
                request.work.left.add(self._engine)
                limit.reschedule(0.0)
