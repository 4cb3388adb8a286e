"""One call of a session: a built-in program that runs for one request of a client.

The task that reads the call's items runs the program, so the program is never ahead of its reader.
Owns the call's connection to the node and closes it, whether the program or the reader ends first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Generic, TypeVar

from quire.core.errors import ProgramCancelled, QuireError
from quire.programs.api import Api, connect_api
from quire.programs.runtime.running import Connect
from quire.programs.tracebacks import program_failed

logger = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")

BuiltIn = Callable[[Api, R], AsyncGenerator[T, None]]
"""A built-in program: an async generator of the call's results. It may await only replies of its
``Api``: cancelling the call fails these, and so wakes the program."""


class WorkCall(Generic[T]):
    """Work of the node that is done for a session, as a call of it. Belongs to the edge's loop."""

    def __init__(
        self, work: Coroutine[Any, Any, T], on_closed: Callable[[WorkCall[T]], None]
    ) -> None:
        self._cancelled: ProgramCancelled | None = None
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(lambda _: on_closed(self))

    async def result(self) -> T:
        """Wait for the result of the work. A caller that stops waiting cancels the work."""
        try:
            return await self._task
        except asyncio.CancelledError:
            if self._cancelled is not None:
                raise self._cancelled from None
            raise

    def cancel(self, reason: str = "cancelled by the client") -> None:
        """Cancel the work; ``result`` raises ``ProgramCancelled``. Idempotent."""
        if not self._task.done():
            self._cancelled = _was_cancelled(reason)
            self._task.cancel()

    async def wait_closed(self) -> None:
        """Return when the work has ended."""
        await asyncio.wait({self._task})


class SessionCall(Generic[T]):
    """The items of one call: iterate it to its end in one task, or ``cancel`` it. Belongs to the
    edge's loop.

    The program starts when the first item is requested.

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
        """The items until the call's end; then its error is raised, if it has one."""
        return self._items

    async def aclose(self) -> None:
        """Stop before the end: the program ends and its resources are freed. Idempotent."""
        await self._items.aclose()
        self._close("its reader has left")

    def cancel(self, reason: str = "cancelled by the client") -> None:
        """Free everything that the program holds; its reader gets ``ProgramCancelled``. Idempotent,
        legal in every state, and never waits."""
        if not self._closed.is_set():
            self._cancelled = _was_cancelled(reason)
            self._close(reason)

    async def wait_closed(self) -> None:
        """Wait until the call has freed everything it held. What a batch message in flight still
        uses is freed with that message's result."""
        await self._closed.wait()

    async def _run(self, program: BuiltIn[R, T], request: R) -> AsyncGenerator[T, None]:
        try:
            async with aclosing(program(self._api, request)) as items:
                async for item in items:
                    if self._cancelled is not None:
                        raise self._cancelled  # an item in flight is dropped
                    yield item
        except QuireError:  # raised unchanged, not as a failed program
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


def _was_cancelled(reason: str) -> ProgramCancelled:
    return ProgramCancelled(
        f"the call was cancelled ({reason}): send the request again if it was not you"
    )
