"""Carries out a request only once, also if it is sent again under the same ``request_id``.

Owns the latest answers, and the requests that run. Must not know what the requests are for.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from quire.core.errors import AlreadyExists
from quire.core.ids import TenantId

MAX_REMEMBERED = 4096
"""The most answers that are kept, of all tenants together; the latest ones."""

T = TypeVar("T")

_Key = tuple[TenantId, str, str]
_Request = tuple[bytes, asyncio.Task[Any]]
"""What was asked, and the work."""


class OnceByRequest:
    """The requests of one application; belongs to its loop. An answer is kept until
    ``MAX_REMEMBERED`` later ones have arrived; a failure is dropped at once, so that the request
    may be tried again."""

    def __init__(self) -> None:
        self._running: dict[_Key, _Request] = {}
        self._answered: OrderedDict[_Key, _Request] = OrderedDict()

    async def do(
        self,
        tenant: TenantId,
        route: str,
        request_id: str | None,
        asked: bytes,
        work: Callable[[], Coroutine[Any, Any, T]],
    ) -> T:
        """Return the result of ``work``, or of the earlier request with this id. ``asked``
        identifies the content of the request. A request with an id goes on if its caller stops
        waiting.

        Raises:
            AlreadyExists: the id was used for another request.
        """
        if request_id is None:
            return await work()
        key = (tenant, route, request_id)
        known = self._running.get(key) or self._answered.get(key)
        if known is not None and known[0] != asked:
            raise AlreadyExists(
                f"request_id {request_id!r} was used for another request: choose a new one",
                param="request_id",
            )
        if known is None:
            task = asyncio.create_task(work())
            self._running[key] = asked, task
            task.add_done_callback(lambda ended: self._ended(key, ended))
        else:
            task = known[1]
        return await asyncio.shield(_result(task))

    def _ended(self, key: _Key, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or task.exception() is not None:
            del self._running[key]
            return
        self._answered[key] = self._running.pop(key)
        if len(self._answered) > MAX_REMEMBERED:
            self._answered.popitem(last=False)


async def _result(task: Awaitable[T]) -> T:
    return await task
