"""Several issuers on one program's port: the calls of a session.

Each issuer has a range of the program's numbers for its queues, commands, pages and embeds, given
by its ``IssuerPort``; ``IssuerSinks`` finds the issuer of a reply by its number.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from quire.core.actions import ReplyValue
from quire.core.calls import AskService, CloseQueue, CreateQueue, QueueCall
from quire.core.errors import ErrorRecord
from quire.core.ids import CommandId, QueueId, ThreadId
from quire.core.interfaces import ReplySink
from quire.node.loops import call_on
from quire.programs.runtime import EventPort

_RANGE_BITS = 32
"""Numbers per issuer; leaves 2**31 issuers in the 63 bits of a non-negative msgpack integer."""


def issuer_of(command: CommandId) -> int:
    """The index of the issuer that has numbered ``command``."""
    return command >> _RANGE_BITS


class IssuerPort:
    """One of several issuers on a program's port. ``close`` closes only the queues of this issuer.
    ``index`` counts the issuers of the program, from 0."""

    def __init__(
        self,
        shared: EventPort,
        index: int,
        thread: ThreadId,
        parent_thread: ThreadId | None = None,
    ) -> None:
        self._shared = shared
        self._thread = thread
        self._parent_thread = parent_thread
        self.program = shared.program
        self.quotas = shared.quotas
        self.models = shared.models
        self.seed = shared.seed
        self.clock = shared.clock
        self.first_number = (index << _RANGE_BITS) + 1
        self._queues: set[QueueId] = set()
        self._closed = False

    def post(self, call: QueueCall) -> None:
        """Post a call; a queue that it creates serves the session call's thread."""
        if isinstance(call, CreateQueue):
            self._queues.add(call.queue)
            thread, parent = self._thread, self._parent_thread
            call = msgspec.structs.replace(call, thread=thread, parent_thread=parent)
        elif isinstance(call, CloseQueue):
            self._queues.discard(call.queue)
        self._shared.post(call)

    async def ask(self, question: AskService, undo: str | None = None) -> Any:
        return await self._shared.ask(question, undo)

    def close(self, reason: str = "finished") -> None:
        if self._closed:
            return
        self._closed = True
        for queue in sorted(self._queues):
            self._shared.post(CloseQueue(queue))


class IssuerSinks:
    """The ``ReplySink`` of a shared program: routes each reply to the issuer of its command.

    Replies arrive on ``loop``, the loop of all issuers; ``add`` and ``remove`` are for any thread.
    Replies to a removed issuer are dropped: its queues are closed, so they can only be
    cancellations.
    """

    def __init__(self, on_terminated: Callable[[ErrorRecord], None]) -> None:
        self._sinks: dict[int, ReplySink] = {}
        self._on_terminated = on_terminated
        self._terminated: ErrorRecord | None = None
        self._lock = threading.Lock()

    def add(self, index: int, sink: ReplySink, loop: asyncio.AbstractEventLoop) -> None:
        """Route replies to issuer ``index``. One that is added after the program's end is notified
        at once: no reply would ever come."""
        with self._lock:
            self._sinks[index] = sink
            error = self._terminated
        if error is not None:
            call_on(loop, sink.on_terminated, error)

    def remove(self, index: int) -> None:
        with self._lock:
            self._sinks.pop(index, None)

    def on_reply(self, command: CommandId, reply: ReplyValue, last: bool) -> None:
        if (sink := self._sinks.get(issuer_of(command))) is not None:
            sink.on_reply(command, reply, last)

    def on_failure(self, command: CommandId, error: ErrorRecord) -> None:
        if (sink := self._sinks.get(issuer_of(command))) is not None:
            sink.on_failure(command, error)

    def on_terminated(self, error: ErrorRecord) -> None:
        with self._lock:
            self._terminated = error
            sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink.on_terminated(error)
        self._on_terminated(error)
