"""One program's connection to its node: chooses ids, sends commands, distributes replies.

Owns the queues' local state, commands that are issued but not sent, and pending futures. Commands
issued in one turn of the loop are sent together, in the order in which they were issued (control
must know a page before another queue names it), with one ``Issue`` for each run of commands on the
same queue; awaiting a reply sends at once. Lives on the program's loop; must not know the traits'
functions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, TypeVar

from quire.core.actions import ReplyValue
from quire.core.calls import (
    AskService,
    Cancel,
    CloseQueue,
    CreateQueue,
    Issue,
    ResetQueue,
    SetQueueDepth,
    SetQueuePriority,
)
from quire.core.commands import Command
from quire.core.errors import (
    EngineLost,
    ErrorRecord,
    InvalidArgument,
    NeverFits,
    ProgramTerminated,
    QuireError,
    from_record,
)
from quire.core.ids import (
    CommandId,
    EmbedId,
    ModelId,
    PageId,
    ProgramId,
    QueueId,
    ThreadId,
    TokenSlotId,
)
from quire.core.interfaces import ProgramPort, ServedModel
from quire.programs.api.handles import Embed, KvPage, Queue, TokenSlot
from quire.programs.api.queue_state import QueueState
from quire.programs.api.reply import CommandFuture, Reply
from quire.programs.api.stream import DecodeStream

T = TypeVar("T")

MAX_NEW_PAGES = 1 << 18
"""The most pages of one call, which creates a handle for each of them before control can report
that they never fit."""


def nothing(_: Any) -> None:
    """The conversion for commands without a result."""


class Issuer:
    """The ``ReplySink`` of one program and the only caller of its port.

    ``on_end`` is called when the node has ended the program.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_end: Callable[[QuireError], None] | None = None,
    ) -> None:
        self.loop = loop
        self.on_end = on_end
        self._port: ProgramPort | None = None
        self._queues: dict[QueueId, QueueState] = {}
        self._default: Queue | None = None
        self._unsent: list[tuple[QueueState, list[Command]]] = []
        self._flush_scheduled = False
        self._pending: dict[CommandId, CommandFuture] = {}
        self._ended: QuireError | None = None
        self._closed = False
        self._commands: Iterator[int]
        self._numbers: Iterator[int]
        self._questions: Iterator[int]

    # -- life ----------------------------------------------------------------------------------

    def attach(self, port: ProgramPort) -> None:
        """Set the program's port, before anything is issued."""
        self._port = port
        first = port.first_number
        self._commands, self._numbers, self._questions = count(first), count(first), count(first)

    @property
    def port(self) -> ProgramPort:
        if self._ended is not None:
            raise self._ended
        assert self._port is not None, "attach() comes first"
        return self._port

    @property
    def program(self) -> ProgramId:
        assert self._port is not None, "attach() comes first"
        return self._port.program

    def close(self, reason: str = "finished", error: QuireError | None = None) -> None:
        """End the program: send issued commands, free everything, and fail pending futures, with
        ``error`` if there is one."""
        if self._port is None or self._closed:
            return
        self._closed = True
        if self._ended is None:
            self.flush()
            self._end(
                error
                or ProgramTerminated(f"the program has ended ({reason}); it can issue nothing more")
            )
        self._port.close(reason)

    def _end(self, error: QuireError) -> None:
        self._ended = error
        pending, self._pending = self._pending, {}
        record = error.record()
        for future in pending.values():
            future.on_failure(record)

    async def drain(self) -> None:
        """Wait until all issued commands have ended; running decodes are cancelled."""
        for future in list(self._pending.values()):
            if isinstance(future, DecodeStream):
                future.cancel()
        while self._pending:
            await next(iter(self._pending.values())).ended()

    def unseen_failures(self) -> tuple[ErrorRecord, ...]:
        """First failures of queues that no await has raised."""
        states = self._queues.values()
        return tuple(state.failure for state in states if state.failure and not state.failure_seen)

    # -- models and queues -----------------------------------------------------------------------

    def models(self) -> list[ServedModel]:
        return list(self.port.models())

    def model(self, name: ModelId | None = None) -> ServedModel:
        """The model of that name; the node's default model for ``None``.

        Raises:
            EngineLost: no model is loaded yet.
            InvalidArgument: no such model.
        """
        models = self.models()
        if not models:
            raise EngineLost("no model is loaded yet: try again in a moment")
        for model in models:
            if name is None or model.id == name:
                return model
        raise InvalidArgument(
            f"no model {name!r} is served here; served: {', '.join(m.id for m in models)}"
        )

    def create_queue(
        self,
        model: ServedModel,
        *,
        thread: ThreadId,
        depth: int,
        priority: int,
        parent_thread: ThreadId | None = None,
    ) -> Queue:
        state = QueueState(QueueId(next(self._numbers)), model)
        self.port.post(CreateQueue(state.id, model.base, thread, depth, priority, parent_thread))
        self._queues[state.id] = state
        return Queue(self, state)

    def default_queue(self) -> Queue:
        if self._default is None or self._default.state.closed:
            self._default = self.create_queue(self.model(), thread=ThreadId(0), depth=0, priority=0)
        return self._default

    def set_priority(self, queue: Queue, priority: int) -> None:
        queue.check(self)
        self.flush()
        self.port.post(SetQueuePriority(queue.id, priority))

    def set_depth(self, queue: Queue, depth: int, invocation: int, remaining_us: int) -> None:
        queue.check(self)
        self.flush()
        self.port.post(SetQueueDepth(queue.id, depth, invocation, remaining_us))

    def reset_queue(self, queue: Queue) -> None:
        queue.check(self)
        self.flush()
        queue.state.reset()
        self.port.post(ResetQueue(queue.id))

    def close_queue(self, queue: Queue) -> None:
        """Idempotent: closing a closed queue does nothing."""
        if queue.state.closed or self._ended is not None:
            return
        queue.check(self)
        self.flush()
        queue.state.closed = True
        self.port.post(CloseQueue(queue.id))
        if queue.state.failure is None or queue.state.failure_seen:
            del self._queues[queue.id]

    # -- handles -----------------------------------------------------------------------------------

    def new_pages(self, queue: Queue, num_pages: int) -> list[KvPage]:
        if num_pages > MAX_NEW_PAGES:
            raise NeverFits(
                f"{num_pages} pages in one call; at most {MAX_NEW_PAGES} are allowed: "
                "allocate what the next tokens need",
                num_pages=num_pages,
            )
        return [KvPage(self, queue.state, PageId(next(self._numbers))) for _ in range(num_pages)]

    def new_embeds(self, queue: Queue, num_embeds: int) -> list[Embed]:
        return [Embed(self, queue.state, EmbedId(next(self._numbers))) for _ in range(num_embeds)]

    def new_token_slots(self, queue: Queue, num_slots: int) -> list[TokenSlot]:
        return [
            TokenSlot(self, queue.state, TokenSlotId(next(self._numbers))) for _ in range(num_slots)
        ]

    # -- commands ----------------------------------------------------------------------------------

    def command_id(self) -> CommandId:
        return CommandId(next(self._commands))

    def issue(self, queue: Queue, command: Command, future: CommandFuture) -> None:
        """Put ``command`` on its queue; it is sent at the end of this turn or at the next await."""
        if self._ended is not None:
            raise self._ended
        state = queue.state
        if self._unsent and self._unsent[-1][0] is state:
            self._unsent[-1][1].append(command)
        else:
            self._unsent.append((state, [command]))
        self._pending[command.id] = future
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self.flush)

    def submit(self, queue: Queue, command: Command, convert: Callable[[Any], T]) -> Reply[T]:
        """Issue a command that has one reply; ``convert`` makes its result."""
        reply = Reply(self, queue.state, command.id, convert)
        self.issue(queue, command, reply)
        return reply

    def flush(self) -> None:
        self._flush_scheduled = False
        if not self._unsent or self._ended is not None:
            return
        unsent, self._unsent = self._unsent, []
        port = self.port
        for state, commands in unsent:
            port.post(Issue(state.id, commands))

    def cancel(self, command: CommandId) -> None:
        if self._ended is None and command in self._pending:
            self.flush()
            self.port.post(Cancel(command))

    async def ask(self, name: str, undo: str | None = None, /, **arguments: Any) -> Any:
        """Ask a service of the node; see ``ProgramPort.ask``."""
        return await self.port.ask(AskService(next(self._questions), name, arguments), undo)

    # -- ReplySink ---------------------------------------------------------------------------------

    def on_reply(self, command: CommandId, reply: ReplyValue, last: bool) -> None:
        future = self._pending.pop(command, None) if last else self._pending.get(command)
        if future is not None:
            future.on_reply(reply, last)

    def on_failure(self, command: CommandId, error: ErrorRecord) -> None:
        future = self._pending.pop(command, None)
        if future is not None:
            future.queue_state.fail(error)
            future.on_failure(error)

    def on_terminated(self, error: ErrorRecord) -> None:
        if self._ended is not None:
            return
        reason = from_record(error)
        self._end(reason)
        if self.on_end is not None:
            self.on_end(reason)
