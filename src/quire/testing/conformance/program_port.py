"""``ProgramPortSuite``: requirements on every ``ProgramPort``, tested with a node behind it."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from quire.core import commands as c
from quire.core.actions import ReplyValue
from quire.core.calls import (
    Cancel,
    CloseQueue,
    CreateQueue,
    Issue,
    ResetQueue,
    SetQueueDepth,
    SetQueuePriority,
)
from quire.core.decoding import DecodeChunk, SamplerSpec, StopSpec
from quire.core.errors import ErrorRecord, from_record
from quire.core.ids import CommandId, PageId, QueueId, ThreadId
from quire.core.interfaces import ProgramPort, ReplySink

QUEUE = QueueId(1)


@dataclass(slots=True)
class ReplyRecorder:
    """A ``ReplySink`` that records everything and lets a test wait for ends of commands."""

    replies: dict[CommandId, list[ReplyValue]] = field(default_factory=dict)
    errors: dict[CommandId, ErrorRecord] = field(default_factory=dict)
    order: list[CommandId] = field(default_factory=list)
    terminated: ErrorRecord | None = None
    _ends: dict[CommandId, asyncio.Future[None]] = field(default_factory=dict)

    def on_reply(self, command: CommandId, reply: ReplyValue, last: bool) -> None:
        self.replies.setdefault(command, []).append(reply)
        if last:
            self._end(command)

    def on_failure(self, command: CommandId, error: ErrorRecord) -> None:
        self.errors[command] = error
        self._end(command)

    def on_terminated(self, error: ErrorRecord) -> None:
        self.terminated = error
        for future in self._ends.values():
            if not future.done():
                future.set_exception(from_record(error))

    def _end(self, command: CommandId) -> None:
        assert command not in self.order, f"command {command} ended twice"
        self.order.append(command)
        self._future(command).set_result(None)

    def _future(self, command: CommandId) -> asyncio.Future[None]:
        if command not in self._ends:
            self._ends[command] = asyncio.get_running_loop().create_future()
        return self._ends[command]

    async def ended(self, command: int) -> None:
        """Wait for the end of a command; raises the program's error if the program was
        terminated."""
        await self._future(CommandId(command))

    def tokens(self, command: int) -> list[int]:
        chunks = self.replies.get(CommandId(command), [])
        return [t for chunk in chunks if isinstance(chunk, DecodeChunk) for t in chunk.token_ids]


def alloc(command: int, *pages: int) -> c.AllocPages:
    return c.AllocPages(id=CommandId(command), pages=[PageId(page) for page in pages])


def decode(command: int, page: int, *, max_tokens: int = 3) -> c.Decode:
    return c.Decode(
        id=CommandId(command),
        context=[],
        output=[PageId(page)],
        tokens=[5],
        position=0,
        sampler=SamplerSpec(),
        stop=StopSpec(max_tokens=max_tokens),
    )


class ProgramPortSuite:
    """Subclass it, define how to open a port, let pytest (with pytest-asyncio) collect it.

    The node behind the port must have a model with pages of at least 4 slots.
    """

    def open_port(self, sink: ReplySink) -> AbstractAsyncContextManager[ProgramPort]:
        """A port of a new program of a running node, with default quotas."""
        raise NotImplementedError("say how to open the port under test")

    def create_queue(self, port: ProgramPort) -> None:
        port.post(CreateQueue(QUEUE, port.models()[0].base))

    async def test_a_command_runs_to_its_end(self) -> None:
        recorder = ReplyRecorder()
        async with self.open_port(recorder) as port:
            self.create_queue(port)
            port.post(Issue(QUEUE, [alloc(1, 1), decode(2, 1)]))
            assert not recorder.order, "a reply arrived within the call that issued the command"
            await recorder.ended(2)
            assert recorder.order == [1, 2]
            assert len(recorder.tokens(2)) == 3
            last = recorder.replies[CommandId(2)][-1]
            assert isinstance(last, DecodeChunk)
            assert last.finish_reason == "length"

    async def test_refusals_arrive_as_failures_and_poison(self) -> None:
        recorder = ReplyRecorder()
        async with self.open_port(recorder) as port:
            self.create_queue(port)
            port.post(Issue(QUEUE, [decode(1, 99), alloc(2, 1)]))
            await recorder.ended(1)
            await recorder.ended(2)
            assert recorder.errors[CommandId(1)].code == "unknown_handle"
            assert recorder.errors[CommandId(2)].code == "queue_poisoned"
            port.post(ResetQueue(QUEUE))
            port.post(Issue(QUEUE, [alloc(3, 1), decode(4, 1)]))
            await recorder.ended(4)
            assert len(recorder.tokens(4)) == 3

    async def test_what_was_exported_comes_with_its_text(self) -> None:
        recorder = ReplyRecorder()
        async with self.open_port(recorder) as port:
            self.create_queue(port)
            page, copy = PageId(1), PageId(2)
            export = c.ExportPages(id=CommandId(3), pages=[page], name="it", tokens=[5, 6])
            port.post(Issue(QUEUE, [alloc(1, page), decode(2, page, max_tokens=0), export]))
            port.post(Issue(QUEUE, [c.ImportPages(id=CommandId(4), name="it", pages=[copy])]))
            await recorder.ended(4)
            shown = [index == 0 for index in range(port.models()[0].info.pool.page_size)]
            imported = c.ImportedPage(copy, 1, [0], shown)
            assert recorder.replies[CommandId(4)] == [c.Imported([imported], 1, [5, 6])]

    async def test_an_unknown_queue_fails_the_command(self) -> None:
        recorder = ReplyRecorder()
        async with self.open_port(recorder) as port:
            port.post(Issue(QueueId(77), [alloc(1, 1)]))
            await recorder.ended(1)
            assert recorder.errors[CommandId(1)].code == "unknown_handle"

    async def test_cancelling_ends_a_command_once(self) -> None:
        recorder = ReplyRecorder()
        async with self.open_port(recorder) as port:
            self.create_queue(port)
            port.post(Issue(QUEUE, [alloc(1, 1), decode(2, 1, max_tokens=4)]))
            port.post(Cancel(CommandId(2)))
            port.post(Cancel(CommandId(2)))
            port.post(Cancel(CommandId(55)))
            await recorder.ended(2)
            port.post(Cancel(CommandId(2)))
            port.post(ResetQueue(QUEUE))
            port.post(Issue(QUEUE, [alloc(3, 3), decode(4, 3)]))
            await recorder.ended(4)
            assert len(recorder.tokens(4)) == 3

    async def test_closing_a_queue_ends_its_commands(self) -> None:
        recorder = ReplyRecorder()
        async with self.open_port(recorder) as port:
            self.create_queue(port)
            port.post(Issue(QUEUE, [alloc(1, 1), decode(2, 1, max_tokens=4)]))
            port.post(CloseQueue(QUEUE))
            await recorder.ended(2)
            self.create_queue_again(port)
            port.post(Issue(QueueId(2), [alloc(3, 3), decode(4, 3)]))
            await recorder.ended(4)

    def create_queue_again(self, port: ProgramPort) -> None:
        model = port.models()[0].base
        port.post(CreateQueue(QueueId(2), model, ThreadId(1), depth=0, priority=1))
        port.post(SetQueuePriority(QueueId(2), 5))
        port.post(SetQueueDepth(QueueId(2), 4, invocation=1))

    async def test_close_is_idempotent(self) -> None:
        recorder = ReplyRecorder()
        async with self.open_port(recorder) as port:
            self.create_queue(port)
            port.post(Issue(QUEUE, [alloc(1, 1), decode(2, 1)]))
            port.close()
            port.close("again")
            assert recorder.terminated is None
