"""Requests that are sent again under the same ``request_id`` are done once.

Owns what has been answered lately, and what is being done. Must not know what the requests ask for.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from quire.core.errors import AlreadyExists
from quire.core.ids import TenantId

MAX_REMEMBERED = 4096
"""Answers of all tenants together, the latest."""

T = TypeVar("T")

_Key = tuple[TenantId, str, str]


class OnceByRequest:
    """One per application; belongs to its loop. An answer is kept until ``MAX_REMEMBERED`` later
    ones have come; a failure is forgotten at once, so that the request may be tried again."""

    def __init__(self) -> None:
        self._done: OrderedDict[_Key, tuple[bytes, asyncio.Task[Any]]] = OrderedDict()

    async def do(
        self,
        tenant: TenantId,
        route: str,
        request_id: str | None,
        asked: bytes,
        work: Callable[[], Coroutine[Any, Any, T]],
    ) -> T:
        """The result of ``work``, or of the same request before. ``asked``: identifies what is
        asked for. Who gives up waiting for a request with an id does not end it.

        Raises:
            AlreadyExists: the id was used for another request.
        """
        if request_id is None:
            return await work()
        key = (tenant, route, request_id)
        known = self._done.get(key)
        if known is not None and known[0] != asked:
            raise AlreadyExists(
                f"request_id {request_id!r} was used for another request: choose a new one",
                param="request_id",
            )
        if known is None:
            task = asyncio.create_task(work())
            self._done[key] = asked, task
            task.add_done_callback(lambda ended: self._ended(key, ended))
        else:
            task = known[1]
        return await asyncio.shield(_result(task))

    def _ended(self, key: _Key, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._done.pop(key, None)
        while len(self._done) > MAX_REMEMBERED:
            self._done.popitem(last=False)


async def _result(task: Awaitable[T]) -> T:
    return await task
