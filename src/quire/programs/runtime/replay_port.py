"""The port between a restartable program and its node: records answers, and replays them.

Each incarnation has its own port; all share one ``ReplayLog``. During replay the program receives
the recorded answers in their order. Commands that it repeats are issued if they rebuild its pages,
and the engine's replies to them are dropped. The end of a command is replayed only after the
command has ended again, so that the program's next commands, on any queue, find the same state as
the first time. After the log's end all calls are passed on. Belongs to the program's loop. Must not
know what runs the program.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from itertools import count
from typing import Any

import msgspec

from quire.core.actions import ReplyValue
from quire.core.calls import AskService, Cancel, CloseQueue, Issue, QueueCall, ResetQueue
from quire.core.commands import Command
from quire.core.decoding import DecodeChunk
from quire.core.errors import EngineLost, ErrorRecord, ProgramTerminated
from quire.core.events import ENGINE_WAS_LOST
from quire.core.ids import CommandId, QueueId
from quire.core.interfaces import ProgramPort, ReplySink
from quire.programs.runtime.ordered_input import InputOrder, OrderedMailbox
from quire.programs.runtime.recorded_clock import RecordedClock
from quire.programs.runtime.recorded_network import RecordedNetwork
from quire.programs.runtime.repeating import again, behind, is_same, seeded, without
from quire.programs.runtime.replay_log import (
    LOSSES,
    IssuedCommand,
    Questions,
    RecordedReply,
    ReplayLog,
    cannot_resume,
    frozen_arguments,
    not_repeated,
)
from quire.programs.services.mailbox import Mailbox
from quire.programs.services.network import Network

_OWN_IDS = 1 << 40
"""Ids from here on are for commands that the program did not issue."""


class ReplayPort:
    """``ProgramPort`` of the program and ``ReplySink`` of its node."""

    def __init__(self, log: ReplayLog, sink: ReplySink, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log
        self._sink = sink
        self._loop = loop
        self._port: ProgramPort
        self.clock: RecordedClock
        self._seeds = random.SystemRandom()
        self._own_ids = map(CommandId, count(_OWN_IDS))
        self._cursor = 0
        self._limit = len(log.heard)
        self._asked: set[CommandId] = set()
        self._dropped: set[CommandId] = set()
        """Commands that are issued to rebuild pages; the program already has their answers."""
        self._left_out: set[CommandId] = set()
        self._known: dict[CommandId, list[int]] = {}
        """For decodes that were running: tokens that the program has and that will be sampled
        again."""
        self._remaking: dict[CommandId, QueueId] = {}
        """Repeated commands that were issued and have not ended, with their queues."""
        self._unmade: set[CommandId] = set()
        """Repeated commands that have not ended, issued or not."""
        self._num_remaking: Counter[QueueId] = Counter()
        self._closing: set[QueueId] = set()
        self._waiting: deque[QueueCall] = deque()
        """A reset and all later calls, in order."""
        self._held: list[tuple[CommandId, ReplyValue, ErrorRecord | None, bool]] = []
        self._pumping = False
        self._turn = log.heard[-1].turn + 1 if log.heard else 0
        self._turn_open = False
        self._over = False
        self._arrivals = log.begin(self._schedule_pump)
        self._calls = Questions(log.calls, "service", self._arrivals)
        self._network: RecordedNetwork | None = None
        self.inputs = InputOrder(log.inputs, self._arrivals)
        self.is_native = False
        """Whether the program's tasks run on this loop."""

    def attach(self, port: ProgramPort) -> None:
        """Set the node's own port, before anything is asked."""
        self._port = port
        self.program, self.quotas, self.seed = port.program, port.quotas, port.seed
        self.models, self.first_number = port.models, port.first_number
        self.clock = RecordedClock(port.clock, self._log.readings)
        self._log.stop = lambda: self._loop.call_soon_threadsafe(self._stop)

    def mailbox(self, mailbox: Mailbox) -> OrderedMailbox:
        """The mailbox of a program whose tasks run on this loop."""
        self.is_native = True
        return OrderedMailbox(mailbox, self.inputs)

    def network(self, network: Network) -> RecordedNetwork:
        self._network = RecordedNetwork(network, self._log.requests, self._arrivals, self._log.keep)
        return self._network

    # -- ProgramPort -------------------------------------------------------------------------------

    def post(self, call: QueueCall) -> None:
        if self._over:
            return
        if isinstance(call, Issue):
            self._issued(call)
        elif not (isinstance(call, Cancel) and self._is_made_again(call.command)):
            self._in_order(call)

    def _is_made_again(self, command: CommandId) -> bool:
        """Whether the program already has the answer to ``command``, so that it cannot cancel the
        command that is issued instead."""
        return command in self._dropped or command in self._left_out

    def _issued(self, call: Issue) -> None:
        going: list[Command] = []
        for command in call.commands:
            entry = self._log.issued.get(command.id)
            if entry is None:
                going.append(self._first_time(call.queue, command))
            elif not is_same(entry, call.queue, command):
                self._end(not_repeated(f"command {command.id}, {type(command).__name__}"))
                return
            else:
                going += self._once_more(entry, command.after)
            self._asked.add(command.id)
        self._arrivals.acted(len(call.commands))
        if going:
            self._in_order(Issue(call.queue, [without(one, self._left_out) for one in going]))
        self._schedule_pump()

    def _in_order(self, call: QueueCall) -> None:
        """Pass ``call`` on at once if none waits; else after all earlier calls."""
        self._waiting.append(call)
        if len(self._waiting) == 1:
            self._go_on()

    def _go_on(self) -> None:
        """Pass on waiting calls. A reset waits for the repeated commands of its queue, because it
        would cancel them; in the first run they had ended before the reset. All later calls wait,
        too."""
        while self._waiting and not self._over:
            call = self._waiting[0]
            if isinstance(call, ResetQueue) and self._num_remaking[call.queue]:
                return
            self._waiting.popleft()
            if isinstance(call, Issue):
                self._note_remaking(call)
            elif isinstance(call, CloseQueue) and self._num_remaking[call.queue]:
                self._closing.add(call.queue)  # closed after them; later calls need not wait
                continue
            self._port.post(call)

    def _note_remaking(self, call: Issue) -> None:
        remaking = [command.id for command in call.commands if command.id in self._dropped]
        self._remaking.update(dict.fromkeys(remaking, call.queue))
        self._num_remaking[call.queue] += len(remaking)

    def _first_time(self, queue: QueueId, command: Command) -> Command:
        sent = seeded(command, self._seeds.getrandbits(63))
        if not self._log.is_full:
            self._log.begun(IssuedCommand(queue, command, sent))
        return sent

    def _once_more(self, entry: IssuedCommand, after: tuple[CommandId, ...]) -> list[Command]:
        """The commands to issue for a command that was recorded. ``after``: the commands that it
        waits for this time."""
        number, sent = entry.asked.id, behind(entry.sent, after)
        if not entry.ended:
            if entry.replies:
                self._known[number] = entry.tokens()
            return [sent]
        going = again(entry, sent, self._log.slots, lambda: next(self._own_ids))
        self._dropped.update(one.id for one in going)
        if going:
            self._unmade.add(number)
        else:
            self._left_out.add(number)
        return going

    async def ask(self, question: AskService, undo: str | None = None) -> Any:
        what = (question.name, frozen_arguments(question.arguments))
        return await self._calls.ask(what, lambda: self._port.ask(question, undo))

    def close(self, reason: str = "finished") -> None:
        self._over = True
        self.inputs.end()
        self._port.close(reason)

    # -- ReplySink ---------------------------------------------------------------------------------

    def on_reply(self, command: CommandId, reply: ReplyValue, last: bool) -> None:
        if self._over:
            return
        if command in self._dropped:
            if last:
                self._remade(command)
            return
        if command in self._known:
            reply = self._unheard(command, reply)
            if isinstance(reply, DecodeChunk) and not reply.token_ids and not last:
                return
        self._hear(command, reply, None, last)

    def _remade(self, command: CommandId) -> None:
        queue = self._remaking.pop(command, None)
        if queue is None:
            return
        self._num_remaking[queue] -= 1
        if not self._num_remaking[queue] and queue in self._closing:
            self._closing.discard(queue)
            self._port.post(CloseQueue(queue))
        self._unmade.discard(command)
        self._go_on()
        self._schedule_pump()

    def _unheard(self, command: CommandId, reply: ReplyValue) -> ReplyValue:
        """``reply`` without the tokens that the program already has, which must be the same."""
        known = self._known[command]
        if not isinstance(reply, DecodeChunk) or not known:
            return reply
        size = min(len(known), len(reply.token_ids))
        if reply.token_ids[:size] != known[:size]:
            self._end(
                cannot_resume(
                    "the new engine sampled other tokens than those that the program has received "
                    "(batch composition changes the last bits of float16 and bfloat16)"
                )
            )
        del known[:size]
        logprobs = None if reply.logprobs is None else reply.logprobs[size:]
        return msgspec.structs.replace(
            reply, token_ids=reply.token_ids[size:], logprobs=logprobs, prompt_logprobs=None
        )

    def on_failure(self, command: CommandId, error: ErrorRecord) -> None:
        if self._over:
            return
        if error.code in LOSSES and not self._log.is_full:
            self._begin_again(error)
        elif command in self._dropped:
            self._end(cannot_resume(error.message))
        else:
            self._hear(command, None, error, True)

    def _begin_again(self, error: ErrorRecord) -> None:
        self._over = True
        self._arrivals.end()
        self.inputs.end()
        self._calls.end()
        self.clock.end()
        if self._network is not None:
            self._network.end()
        self._port.close(ENGINE_WAS_LOST)
        self._log.on_loss(error)

    def _stop(self) -> None:
        if not self._over:
            self._begin_again(EngineLost("it moves to another node").record())

    def on_terminated(self, error: ErrorRecord) -> None:
        if not self._over:
            self._over = True
            self._sink.on_terminated(error)

    def _end(self, error: ProgramTerminated) -> None:
        self.on_terminated(error.record())
        self._port.close("it could not be resumed")

    # -- in order ----------------------------------------------------------------------------------

    def _hear(
        self, command: CommandId, reply: ReplyValue, error: ErrorRecord | None, last: bool
    ) -> None:
        if self._over:
            return
        if self._arrivals.is_replaying or self._held:
            self._held.append((command, reply, error, last))
            self._schedule_pump()
            return
        if not self._turn_open:
            self._turn_open = True
            self._loop.call_soon(self._end_turn)
        self._log.note(self._turn, command, reply, error, last, self._arrivals.num_acts)
        self._pass_on(command, reply, error, last)
        if not self.is_native:
            self._arrivals.heard(len(self._log.heard))

    def _end_turn(self) -> None:
        self._turn_open = False
        self._turn += 1
        self._arrivals.heard(len(self._log.heard))

    def _pass_on(
        self, command: CommandId, reply: ReplyValue, error: ErrorRecord | None, last: bool
    ) -> None:
        if error is None:
            self._sink.on_reply(command, reply, last)
        else:
            self._sink.on_failure(command, error)

    def _schedule_pump(self) -> None:
        if not self._pumping and (self._arrivals.is_replaying or self._held):
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Replay the answers of one turn, once the program has done what it had done by then, and
        their commands have ended again."""
        self._pumping = False
        together = self._next_together()
        if self._over or not all(map(self._may_be_told, together)):
            return  # called again when a missing command is issued or ends
        self._cursor += len(together)
        for one in together:
            self._pass_on(one.command, one.reply, one.error, one.last)
        if together:
            self._arrivals.heard(self._cursor)
        if not self._arrivals.is_replaying:
            held, self._held = self._held, []
            for command, reply, error, last in held:
                self._hear(command, reply, error, last)

    def _may_be_told(self, one: RecordedReply) -> bool:
        return one.command in self._asked and not (one.last and one.command in self._unmade)

    def _next_together(self) -> list[RecordedReply]:
        """The replies of one turn that come next; none if an answer does, or if the program has not
        done yet what it had done before them."""
        heard, start, arrivals = self._log.heard, self._cursor, self._arrivals
        limit, before = self._limit, arrivals.next_reply_limit
        if before is not None:
            limit = min(limit, before)
        stop = start
        while stop < limit and heard[stop].turn == heard[start].turn:
            if heard[stop].num_acts > arrivals.num_acts:
                break
            stop += 1
        return heard[start:stop]
