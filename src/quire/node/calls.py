"""One call of a session: a built-in program at work for one request of a client.

The one who reads its items drives it: the program runs in the reader's task, so it is never ahead
of its reader. Owns the call's line to the node and the end of both, whichever side brings it about.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Generic, TypeVar

from quire.core.errors import ProgramCancelled, QuireError
from quire.programs.api import Api, connect_api
from quire.programs.runtime.running import Connect
from quire.programs.tracebacks import program_failed

logger = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")

BuiltIn = Callable[[Api, R], AsyncGenerator[T, None]]
"""A built-in program: yields what its caller is to see, in order. It waits for nothing but answers
of its ``Api``, which a cancelled call fails: that is what wakes it."""


class SessionCall(Generic[T]):
    """Iterate it to its end, in one task, or ``cancel`` it. Belongs to the edge's loop.

    Nothing runs before the first item is asked for.

    Raises:
        QuireError: ``connect`` refuses.
    """

    def __init__(
        self,
        name: str,
        program: BuiltIn[R, T],
        request: R,
        connect: Connect,
        on_closed: Callable[[SessionCall[T]], None],
    ) -> None:
        self.name = name
        self._api = connect_api(connect)
        self._on_closed = on_closed
        self._closed = asyncio.Event()
        self._cancelled: ProgramCancelled | None = None
        self._items = self._run(program, request)

    def __aiter__(self) -> AsyncIterator[T]:
        """Items until the call's end; then its error, if it has one."""
        return self._items

    async def aclose(self) -> None:
        """Leave it before its end: the program ends and gives back what it holds. Idempotent."""
        await self._items.aclose()
        self._close("its reader has left")

    def cancel(self, reason: str = "cancelled by the client") -> None:
        """Take from the program everything it holds; its reader hears ``ProgramCancelled``.
        Idempotent, in every state, and never waits."""
        if not self._closed.is_set():
            self._cancelled = ProgramCancelled(
                f"the call was cancelled ({reason}): send the request again if it was not you"
            )
            self._close(reason)

    async def wait_closed(self) -> None:
        """Returns when the call has given back everything it held. What a message in flight still
        uses is free with that message's result."""
        await self._closed.wait()

    async def _run(self, program: BuiltIn[R, T], request: R) -> AsyncGenerator[T, None]:
        try:
            async with aclosing(program(self._api, request)) as items:
                async for item in items:
                    if self._cancelled is not None:
                        raise self._cancelled  # what was on its way is not told any more
                    yield item
        except QuireError:  # the caller's to see as it is, not as a failed program
            raise
        except Exception as exc:
            logger.exception("the built-in program %s has failed", program.__name__)
            raise program_failed(self.name, None, exc) from exc
        finally:
            self._close("finished")

    def _close(self, reason: str) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._api.issuer.close(reason, self._cancelled)
            self._on_closed(self)
