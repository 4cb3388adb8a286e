"""Several issuers on one program's port: the calls of a session.

Each issuer numbers its queues, commands, pages and embeds from one; ``IssuerPort`` moves them into
a range of the program's numbers that is its own, ``IssuerSinks`` brings the replies back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from quire.core.actions import Reply
from quire.core.commands import Command, Imported, ImportedPage
from quire.core.errors import ErrorRecord
from quire.core.events import Quotas
from quire.core.ids import CommandId, ModelId, PageId, ProgramId, QueueId, ThreadId
from quire.core.interfaces import ReplySink, ServedModel
from quire.node.loops import call_on
from quire.programs.runtime import EventPort

_RANGE_BITS = 32
"""Numbers per issuer; leaves 2**31 issuers in the 63 bits of a non-negative msgpack integer."""

_ID_FIELDS = frozenset({"id", "page", "source", "target"})
_ID_LIST_FIELDS = frozenset({"pages", "embeds", "context", "inputs", "output", "outputs"})
_OPTIONAL_ID_LIST_FIELDS = frozenset({"token_slots"})


class IssuerPort:
    """One of several issuers on a program's port. ``close`` closes the queues of this issuer alone.

    ``index`` counts the issuers of the program, from 0.
    """

    def __init__(self, shared: EventPort, index: int, thread: ThreadId) -> None:
        self._shared = shared
        self._thread = thread
        self._base = index << _RANGE_BITS
        self._queues: set[QueueId] = set()
        self._closed = False

    @property
    def program(self) -> ProgramId:
        return self._shared.program

    @property
    def quotas(self) -> Quotas:
        return self._shared.quotas

    @property
    def seed(self) -> int:
        return self._shared.seed

    def models(self) -> Sequence[ServedModel]:
        return self._shared.models()

    def create_queue(
        self, queue: QueueId, model: ModelId, *, thread: ThreadId, depth: int, priority: int
    ) -> None:
        """Every queue of a call serves the call's thread."""
        self._queues.add(queue)
        self._shared.create_queue(
            self._queue(queue), model, thread=self._thread, depth=depth, priority=priority
        )

    def set_queue_priority(self, queue: QueueId, priority: int) -> None:
        self._shared.set_queue_priority(self._queue(queue), priority)

    def reset_queue(self, queue: QueueId) -> None:
        self._shared.reset_queue(self._queue(queue))

    def close_queue(self, queue: QueueId) -> None:
        self._queues.discard(queue)
        self._shared.close_queue(self._queue(queue))

    def issue(self, queue: QueueId, commands: list[Command]) -> None:
        self._shared.issue(
            self._queue(queue), [move_command(command, self._base) for command in commands]
        )

    def cancel(self, command: CommandId) -> None:
        self._shared.cancel(CommandId(command + self._base))

    async def call(self, name: str, arguments: Mapping[str, Any], undo: str | None = None) -> Any:
        return await self._shared.call(name, arguments, undo)

    def close(self, reason: str = "finished") -> None:
        if self._closed:
            return
        self._closed = True
        for queue in sorted(self._queues):
            self._shared.close_queue(self._queue(queue))

    def _queue(self, queue: QueueId) -> QueueId:
        return QueueId(queue + self._base)


def move_command(command: Command, base: int) -> Command:
    """``command`` with every id that it names moved up by ``base``."""
    changes: dict[str, Any] = {}
    for field in command.__struct_fields__:
        value = getattr(command, field)
        if field in _ID_FIELDS:
            changes[field] = value + base
        elif field in _ID_LIST_FIELDS or (field in _OPTIONAL_ID_LIST_FIELDS and value is not None):
            changes[field] = [number + base for number in value]
        elif field == "after" and value:
            changes[field] = tuple(number + base for number in value)
    return msgspec.structs.replace(command, **changes)


def _moved_back(reply: Imported, base: int) -> Imported:
    pages = [
        ImportedPage(PageId(page.page - base), page.fill, page.positions, page.visible)
        for page in reply.pages
    ]
    return Imported(pages, reply.num_tokens, reply.tokens)


class IssuerSinks:
    """The ``ReplySink`` of a shared program: routes each reply to the issuer of its command.

    Replies come on ``loop``, that of the runtime that all issuers run on; ``add`` and ``remove``
    are for any thread. Replies to an issuer that has gone (its queues are closed, so what still
    comes is their cancellation) are dropped.
    """

    def __init__(self, on_terminated: Callable[[ErrorRecord], None]) -> None:
        self._sinks: dict[int, ReplySink] = {}
        self._on_terminated = on_terminated
        self._terminated: ErrorRecord | None = None
        self._lock = threading.Lock()

    def add(self, index: int, sink: ReplySink, loop: asyncio.AbstractEventLoop) -> None:
        """One that comes after the program's end is told of it: no reply would ever come."""
        with self._lock:
            self._sinks[index] = sink
            error = self._terminated
        if error is not None:
            call_on(loop, sink.on_terminated, error)

    def remove(self, index: int) -> None:
        with self._lock:
            self._sinks.pop(index, None)

    def on_reply(self, command: CommandId, reply: Reply, last: bool) -> None:
        index = command >> _RANGE_BITS
        if (sink := self._sinks.get(index)) is not None:
            base = index << _RANGE_BITS
            if isinstance(reply, Imported):
                reply = _moved_back(reply, base)
            sink.on_reply(CommandId(command - base), reply, last)

    def on_failure(self, command: CommandId, error: ErrorRecord) -> None:
        index = command >> _RANGE_BITS
        if (sink := self._sinks.get(index)) is not None:
            sink.on_failure(CommandId(command - (index << _RANGE_BITS)), error)

    def on_terminated(self, error: ErrorRecord) -> None:
        with self._lock:
            self._terminated = error
            sinks, self._sinks = self._sinks, {}
        for sink in sinks.values():
            sink.on_terminated(error)
        self._on_terminated(error)
