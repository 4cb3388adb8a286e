"""What a guest asks of services: each question a task, each answer an event.

Owns the questions under way and their bound. Belongs to one loop: that of the guest's host for what
is answered there (HTTP), that of the node's link for everything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from quire.core.errors import ProgramCancelled, ProgramError, QuireError, QuotaExceeded
from quire.programs.sandbox import messages as m

logger = logging.getLogger(__name__)

MAX_HOST_CALLS = 256
"""Under way at a time, for one guest."""


Call = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""``call(name, arguments)``; see ``ProgramPort.call``."""


class HostCalls:
    """Of the guest ``name``, whose identity ``call`` stamps and whom ``tell`` reaches."""

    def __init__(self, name: str, call: Call, tell: Callable[[m.GuestEvents], None]) -> None:
        self._name = name
        self._call = call
        self._tell = tell
        self._under_way: dict[int, asyncio.Task[m.GuestEvents]] = {}
        self._unanswered: set[asyncio.Task[m.GuestEvents]] = set()

    def start(self, call: m.HostCall) -> None:
        num_under_way = len(self._under_way) + len(self._unanswered)
        if num_under_way >= MAX_HOST_CALLS or call.number in self._under_way:
            error = QuotaExceeded(
                f"{call.name}: {num_under_way} questions to the node are under way, "
                f"{MAX_HOST_CALLS} are allowed at a time: await some of them first"
            )
            self._tell(m.HostRefused(call.number, error.record()))
            return
        task = asyncio.get_running_loop().create_task(self._carry_out(call))
        if call.number:
            self._under_way[call.number] = task
            task.add_done_callback(partial(self._answered, call))
        else:
            self._unanswered.add(task)
            task.add_done_callback(self._unanswered.discard)

    def drop(self, number: int) -> None:
        """Nobody waits for it any more; no-op if the answer has left."""
        task = self._under_way.get(number)
        if task is not None:
            task.cancel()

    @property
    def num_unanswered(self) -> int:
        """Those under way whose answer nobody wants: what is put back is one."""
        return len(self._unanswered)

    async def settled(self, limit_s: float) -> None:
        """What nobody waits for has been done, or ``limit_s`` have passed."""
        if self._unanswered:
            await asyncio.wait(self._unanswered, timeout=limit_s)

    def close(self) -> None:
        """The guest has ended."""
        for task in (*self._under_way.values(), *self._unanswered):
            task.cancel()

    def _answered(self, call: m.HostCall, task: asyncio.Task[m.GuestEvents]) -> None:
        self._under_way.pop(call.number, None)
        if task.cancelled():  # perhaps before it began
            given_up = ProgramCancelled(f"{call.name}: nobody waits for it any more")
            self._tell(m.HostRefused(call.number, given_up.record()))
        else:
            self._tell(task.result())

    async def _carry_out(self, call: m.HostCall) -> m.GuestEvents:
        try:
            return m.HostAnswered(call.number, await self._call(call.name, call.arguments))
        except QuireError as exc:
            return m.HostRefused(call.number, exc.record())
        except Exception as exc:  # a fault of ours; the guest's others go on
            logger.exception("service %s failed for program %s", call.name, self._name)
            wrong = ProgramError(f"{call.name} failed in the node: {type(exc).__name__}")
            return m.HostRefused(call.number, wrong.record())
