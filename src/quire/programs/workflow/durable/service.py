"""The stored queries of a program's tenant; each is open until the query or the program ends.

Must not know the content of a frame.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

from quire.core.errors import ProgramTerminated, UnknownHandle
from quire.programs.services.operations import Identity, ProgramService, operation
from quire.programs.workflow.durable.kept_queries import KeptQueries, OpenQuery, QueryPlace


class KeptQueryService(ProgramService):
    """The service for one program. Only native programs have it; guests use the stores that their
    manifest names."""

    def __init__(self, identity: Identity, kept: KeptQueries) -> None:
        self._tenant, self._kept = identity.tenant, kept
        self._numbers = count(1)
        self._open: dict[int, OpenQuery] = {}
        self._has_ended = False

    @operation("queries.open")
    async def open(self, workflow: str, key: str, must_exist: bool) -> dict[str, Any]:
        """Open a query: a ``number`` for the other operations, and the stored ``frames``."""
        place = QueryPlace(self._tenant, workflow, key)
        opening = asyncio.ensure_future(
            asyncio.to_thread(self._kept.open, place, must_exist=must_exist)
        )
        try:
            opened = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close)
            raise
        if self._has_ended:
            opened.close()
            raise ProgramTerminated("the program has ended while its query was opened")
        number = next(self._numbers)
        self._open[number] = opened
        return {"number": number, "frames": opened.frames}

    @operation("queries.append")
    async def append(self, number: int, frame: bytes) -> None:
        await asyncio.to_thread(self._found(number).append, frame)

    @operation("queries.finish")
    async def finish(self, number: int, frames: list[bytes]) -> None:
        await asyncio.to_thread(self._found(number).finish, frames)

    @operation("queries.close")
    async def close_query(self, number: int) -> None:
        opened = self._found(number)
        del self._open[number]
        await asyncio.to_thread(opened.close)  # it waits for a frame that is being written

    def close(self) -> None:
        self._has_ended = True
        for opened in list(self._open.values()):
            opened.close()

    def _found(self, number: int) -> OpenQuery:
        if number not in self._open:
            raise UnknownHandle(f"no open query {number}")
        return self._open[number]


def _close(opening: asyncio.Future[OpenQuery]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
