"""``Program`` issues what one query asks control, whoever orchestrates it. Only texts are replaced
by their lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.ayo.engines import PAGE_SIZE
from benchmarks.ayo.world import World
from quire.core.actions import Deliver, Fail
from quire.core.calls import (
    AskEncoder,
    CloseQueue,
    ControlCall,
    CreateQueue,
    Issue,
    SetQueueDepth,
    SetQueuePriority,
)
from quire.core.commands import AllocPages, Command, Decode
from quire.core.decoding import DecodeChunk, SamplerSpec, StopSpec
from quire.core.encoding import Encode
from quire.core.events import Called, ProgramEnded, ProgramStarted
from quire.core.ids import CommandId, ModelId, PageId, ProgramId, QueueId, TenantId

PAGES_OF_CALL = 128
Done = Callable[[], None]
Place = tuple[int, int, int]
"""Depth, number and remaining microseconds, as control takes them."""


class Program:
    """``begun_s`` and ``ended_s`` are set by ``begin`` and ``end``. ``cached``: its prompts are
    looked up in the prefix cache."""

    def __init__(self, number: int, world: World, *, cached: bool = False) -> None:
        self.id = ProgramId(number)
        self.world, self.cached = world, cached
        self.begun_s: float | None = None
        self.ended_s: float | None = None
        self._waiting: dict[CommandId, Callable[[Deliver], None]] = {}
        self._num_commands = 0
        self._num_calls = 0
        world.programs[number] = self

    def begin(self) -> None:
        now_s = self.begun_s = self.world.simulation.now_s
        started = ProgramStarted(
            time_s=now_s,
            program=self.id,
            tenant=TenantId("default"),
            form="workflow",
            name="paced",
        )
        self.world.post(started)

    def end(self) -> None:
        now_s = self.ended_s = self.world.simulation.now_s
        ended = ProgramEnded(time_s=now_s, program=self.id, reason="finished")
        self.world.post(ended)

    def answered(self, action: Deliver) -> None:
        for command in (*action.done_before, action.command):
            if (told := self._waiting.get(command)) is not None:
                told(action)

    def failed(self, action: Fail) -> None:
        """Forget a command that was cancelled."""
        self._waiting.pop(action.command, None)

    def soon(self, done: Done) -> None:
        """Call ``done`` after what is under way now: control is still at work when it answers."""
        self.world.simulation.after(0.0, done)

    def encode(self, model: ModelId, num: int, place: Place, done: Done, priority: int = 0) -> None:
        """Encode ``num`` texts at once; ``done`` is called at the end."""
        ones, zeros = np.ones(num, np.int32), np.zeros(num, np.int32)
        command = Encode(id=self.command(), tokens=zeros, types=zeros, lengths=ones)

        def told(action: Deliver) -> None:
            if action.last:
                self.forget(action)
                self.soon(done)

        self.expect(command.id, told)
        depth, invocation, remaining_us = place
        self.post(
            AskEncoder(
                model,
                command,
                depth=depth,
                priority=priority,
                invocation=invocation,
                remaining_us=remaining_us,
            )
        )

    def open_call(self, model: str, place: Place, priority: int = 0) -> ModelCall:
        self._num_calls += 1
        return ModelCall(self, self._num_calls, ModelId(model), place, priority)

    def command(self) -> CommandId:
        self._num_commands += 1
        return CommandId(self._num_commands)

    def expect(self, command: CommandId, told: Callable[[Deliver], None]) -> None:
        self._waiting[command] = told

    def forget(self, action: Deliver) -> None:
        del self._waiting[action.command]

    def post(self, call: ControlCall) -> None:
        now_s = self.world.simulation.now_s
        self.world.post(Called(time_s=now_s, program=self.id, call=call))


class ModelCall:
    """One call of a model: ``add`` its prompt, ``run`` a beginning of it, ``write`` the answer.
    ``tokens``: of its prompt."""

    def __init__(
        self, program: Program, number: int, model: ModelId, place: Place, priority: int = 0
    ) -> None:
        self._program, self._queue = program, QueueId(number)
        self._model, self.tokens = model, list[int]()
        self._first_page = PAGES_OF_CALL * number
        self._pages: list[PageId] = []
        self._new_pages: list[Command] = []
        self._cursor = self._num_shared = 0
        self._pending: list[int] = []
        self.num_written = 0
        self._has_begun = False
        self._marks: list[tuple[int, Done]] = []
        program.post(CreateQueue(self._queue, model, priority=priority))
        program.post(SetQueueDepth(self._queue, *place))

    def place(self, place: Place) -> None:
        self._program.post(SetQueueDepth(self._queue, *place))

    def prioritise(self, priority: int) -> None:
        """Set the priority of the call's commands, running ones included."""
        self._program.post(SetQueuePriority(self._queue, priority))

    def drop(self) -> None:
        """Cancel the call."""
        self._program.post(CloseQueue(self._queue))

    def fork(self, place: Place, priority: int) -> ModelCall:
        """Return a call that begins with the whole pages of this one, and computes the rest
        again."""
        forked = self._program.open_call(self._model, place, priority)
        num_pages = self._cursor // PAGE_SIZE
        forked._pages = self._pages[:num_pages]
        forked._num_shared = num_pages
        forked._cursor = num_pages * PAGE_SIZE
        forked.tokens = list(self.tokens)
        forked._pending = self.tokens[forked._cursor :]
        return forked

    def add(self, tokens: Sequence[int]) -> None:
        self._pending += tokens
        self.tokens += tokens

    def run(self, done: Done) -> None:
        """Prefill what was added so far, except for the last token, which may merge with the next
        text."""
        command = self._decode(len(self._pending) - 1, max_tokens=0)

        def told(action: Deliver) -> None:
            self._program.forget(action)
            self._program.soon(done)

        self._program.expect(command.id, told)
        self._program.post(Issue(self._queue, [*self._new_pages, command]))

    def write(self, total: int, mark: int, done: Done) -> None:
        """Write an answer of ``total`` tokens; ``done`` is called when ``mark`` of them are there.
        It may be called again for other marks of the same answer."""
        self._marks.append((mark, done))
        if not self._has_begun:
            self._has_begun = True
            command = self._decode(len(self._pending), max_tokens=total)
            self._program.expect(command.id, self._written)
            self._program.post(Issue(self._queue, [*self._new_pages, command]))
        self._pass_marks()

    def _written(self, action: Deliver) -> None:
        if isinstance(action.reply, DecodeChunk):
            self.num_written += len(action.reply.token_ids)
        self._pass_marks()
        if action.last:
            self._program.forget(action)
            self._program.soon(lambda: self._program.post(CloseQueue(self._queue)))

    def _pass_marks(self) -> None:
        passed = [done for mark, done in self._marks if mark <= self.num_written]
        self._marks = [one for one in self._marks if one[0] > self.num_written]
        for done in passed:
            self._program.soon(done)

    def _more_pages(self, num_tokens: int) -> list[Command]:
        """Return the command that allocates the pages that a text of ``num_tokens`` still needs, if
        any."""
        num = -(-num_tokens // PAGE_SIZE)
        assert num <= PAGES_OF_CALL, "the pages of a call are few"
        first = self._first_page - self._num_shared
        new = [PageId(first + place) for place in range(len(self._pages), num)]
        self._pages += new
        return [AllocPages(id=self._program.command(), pages=new)] if new else []

    def _decode(self, num_tokens: int, max_tokens: int) -> Decode:
        start, self._cursor = self._cursor, self._cursor + num_tokens
        tokens, self._pending = self._pending[:num_tokens], self._pending[num_tokens:]
        self._new_pages = self._more_pages(self._cursor + max_tokens)
        return Decode(
            id=self._program.command(),
            context=list(self._pages),
            output=self._pages[self._num_shared :],
            tokens=tokens,
            position=start,
            sampler=SamplerSpec(seed=1),
            stop=StopSpec(max_tokens),
            cache=self._program.cached,
        )
