"""A compiled guest as its host drives it: rings in its memory become calls, events become rings.

Owns what has come for the guest and waits for room in its ring or inbox, and which command each
answer belongs to.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import cast

import msgspec

from quire.core.actions import Reply
from quire.core.errors import (
    ErrorRecord,
    InvalidArgument,
    MailboxClosed,
    MailboxFull,
    ProgramCancelled,
    ProgramFailed,
    QuireError,
)
from quire.core.ids import CommandId, QueueId
from quire.programs.inferlet import check_versions
from quire.programs.sandbox import abi
from quire.programs.sandbox import messages as m
from quire.programs.sandbox.abi import Op, RingCommand, Status
from quire.programs.sandbox.answers import Answers
from quire.programs.sandbox.module_commands import Memory, queue_call, with_adapter
from quire.programs.sandbox.module_events import RingEvent, failed, reply_event, u32s
from quire.programs.sandbox.module_inbox import ModuleInbox
from quire.programs.sandbox.module_services import ModuleServices
from quire.programs.sandbox.module_sleeps import ModuleSleeps
from quire.programs.sandbox.wasm_module import ModuleGuest

REQUIRED_EXPORTS = {abi.ABI_EXPORT: 0, abi.START_EXPORT: 2, abi.POLL_EXPORT: 1}
_MAX_MANIFEST_BYTES = 1 << 14
_ALIGNMENT = 8
_POLLS = 4
"""Of one turn."""


class ModuleRunner:
    """``Runner`` of one program in ``guest``.

    ``turn_bytes`` bounds what the commands of one turn name in its memory: the host copies it.
    """

    def __init__(self, guest: ModuleGuest, turn_bytes: int) -> None:
        self._guest = guest
        self._turn_bytes = turn_bytes
        self._events: deque[RingEvent] = deque()
        self._waiting: dict[int, Op] = {}
        """Answers to come: the command's own id, and what it was."""
        self._adapters: dict[QueueId, str | None] = {}
        """Of queues whose model is one with an adapter."""
        self._num_untaken = 0
        self._sends: deque[int] = deque()
        """Messages that the client has not taken; of these, sends that wait for room."""
        self._inbox = ModuleInbox()
        self._sleeps = ModuleSleeps()
        self._requests: dict[int, tuple[int, Op]] = {}
        self._client_gone: ErrorRecord | None = None
        self._cancel_reason: str | None = None
        self._host_ids = count(abi.HOST_IDS)
        self._request_numbers = count(1)
        self._services = ModuleServices(self._request_numbers)
        self._answers: Answers
        self._launch: m.GuestLaunch
        self._io: abi.IoArea

    @property
    def cpu_ns(self) -> int:
        return self._guest.cpu_ns

    def attach(self, answers: Answers) -> None:
        self._answers = answers
        self._guest.log = answers.log

    def manifest(self, name: str, limit_s: float, *, has_manifest: bool) -> m.Manifest:
        """What the module says of itself; one that says nothing is called ``name``."""
        if not has_manifest:
            return m.Manifest(name=name)
        address = self._guest.call(abi.MANIFEST_EXPORT, limit_s)
        memory = self._guest.memory()
        text = bytes(memory[address : address + _MAX_MANIFEST_BYTES])
        end = text.find(b"\0")
        try:
            if end < 0:
                raise InvalidArgument("the manifest has no end")
            manifest = msgspec.json.decode(text[:end], type=m.Manifest)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise InvalidArgument(f"the module's manifest cannot be read: {exc}") from exc
        check_versions(manifest.name, manifest.traits)
        return manifest

    def begin(self, launch: m.GuestLaunch, limit_s: float) -> m.Turn:
        self._launch = launch
        self._io = self._read_io(self._guest.call(abi.ABI_EXPORT, limit_s))
        arguments = b"".join(arg.encode("utf-8", "replace") + b"\0" for arg in launch.args)
        if len(arguments) > self._io.inbox_bytes:
            raise InvalidArgument(
                f"{len(arguments)} bytes of arguments do not fit into the program's inbox of "
                f"{self._io.inbox_bytes}"
            )
        inbox = self._io.inbox
        self._guest.memory()[inbox : inbox + len(arguments)] = arguments
        started = self._guest.call(abi.START_EXPORT, limit_s, inbox, len(arguments))
        return self._turn(started, limit_s)

    def wake(self, events: Sequence[m.GuestEvents], limit_s: float) -> m.Turn:
        for event in events:
            self._take(event)
        self._events.extend(self._sleeps.take_due())
        if not self._events:
            return m.Turn(self._own_calls(), self._sleeps.next_s())
        return self._turn(self._poll(limit_s), limit_s)

    def _poll(self, limit_s: float) -> int:
        return self._guest.call(abi.POLL_EXPORT, limit_s, self._write_events())

    def close(self) -> None:
        self._guest.close()

    # -- rings -------------------------------------------------------------------------------------

    def _read_io(self, address: int) -> abi.IoArea:
        memory = Memory(self._guest.memory())
        io = abi.IoArea(*abi.IO.unpack(memory.take(address, abi.IO.size)))
        if not 1 <= io.max_commands <= abi.MAX_RING or not 1 <= io.max_events <= abi.MAX_RING:
            raise InvalidArgument(
                f"rings of {io.max_commands} commands and {io.max_events} events: each has 1 to "
                f"{abi.MAX_RING} entries"
            )
        memory.take(io.commands, io.max_commands * abi.COMMAND.size)
        memory.take(io.events, io.max_events * abi.EVENT.size)
        memory.take(io.inbox, io.inbox_bytes)
        return io

    def _turn(self, num_commands: int, limit_s: float) -> m.Turn:
        """What the guest asks for. It is given answers that are known at once, a few times: now its
        memory is near, another turn would cost as much as this."""
        calls: list[m.GuestCalls] = []
        num_bytes = 0
        for num_left in reversed(range(_POLLS)):
            entries = self._read_commands(num_commands)
            num_bytes += sum(map(abi.named_bytes, entries))
            self._check_bytes(num_bytes)
            if self._carry_out_all(entries, calls):
                return m.Turn(calls)
            if not self._events:
                self._check_waits()
                break
            if num_left:
                num_commands = self._poll(limit_s)
        return m.Turn(calls, 0.0 if self._events else self._sleeps.next_s())

    def _read_commands(self, num_commands: int) -> list[RingCommand]:
        if num_commands > self._io.max_commands:
            raise InvalidArgument(
                f"the program announced {num_commands} commands, its ring has "
                f"{self._io.max_commands}"
            )
        memory = Memory(self._guest.memory())
        ring = memory.take(self._io.commands, num_commands * abi.COMMAND.size)
        return [RingCommand(*fields) for fields in abi.COMMAND.iter_unpack(ring)]

    def _carry_out_all(self, entries: Sequence[RingCommand], calls: list[m.GuestCalls]) -> bool:
        """Put what they ask of others into ``calls``. True: the program has ended."""
        memory = Memory(self._guest.memory())
        calls += self._own_calls()
        for entry in entries:
            call = self._carry_out(entry, memory)
            if call is None:
                self._answers.note_question()  # it counts against the rate of calls all the same
            elif isinstance(call, m.Issue) and calls and _continues(calls[-1], call):
                cast(m.Issue, calls[-1]).commands.extend(call.commands)
            else:
                calls.append(call)
            if isinstance(call, m.Ended):
                return True
        return False

    def _check_bytes(self, num_bytes: int) -> None:
        if num_bytes > self._turn_bytes:
            raise InvalidArgument(
                f"the commands of one turn name {num_bytes} bytes, at most {self._turn_bytes} are "
                "read: spread them over several turns"
            )

    def _check_waits(self) -> None:
        waits = self._waiting, self._sends, self._inbox.num_waiting, self._sleeps, self._requests
        if not any(waits) and not self._services:
            raise ProgramFailed(
                "the program waits for nothing: it returned without a command that has an answer, "
                "and nothing is left to answer"
            )

    def _write_events(self) -> int:
        """As many as there is room for; how many."""
        io, memory = self._io, self._guest.memory()
        used, number = 0, 0
        while self._events and number < io.max_events:
            event = self._events[0]
            if len(event.payload) > io.inbox_bytes:
                size = len(event.payload)
                self._services.undelivered(event)
                event = RingEvent(event.op, event.command, status=Status.TOO_LARGE, c=size)
            elif used + len(event.payload) > io.inbox_bytes:
                break
            self._events.popleft()
            start = io.inbox + used
            memory[start : start + len(event.payload)] = event.payload
            abi.EVENT.pack_into(
                memory, io.events + number * abi.EVENT.size,
                event.op, abi.FLAG_LAST if event.last else 0, event.command, event.status,
                event.a, event.b, event.c, start, len(event.payload),
            )  # fmt: skip
            used += -(-len(event.payload) // _ALIGNMENT) * _ALIGNMENT
            number += 1
        return number

    # -- from the guest ----------------------------------------------------------------------------

    def _carry_out(self, entry: RingCommand, memory: Memory) -> m.GuestCalls | None:
        command = CommandId(entry.id or next(self._host_ids))
        if entry.op == Op.CANCEL and (dropped := self._services.drop(entry.a)) is not None:
            return dropped
        engines = [model.engine for model in self._launch.models]
        call = queue_call(entry, command, memory, engines)
        if call is not None:
            if isinstance(call, m.OpenQueue):
                self._adapters[call.queue] = self._launch.models[entry.b].adapter
            if isinstance(call, m.Issue):
                call = with_adapter(call, self._adapters.get(call.queue))
                if command in self._waiting:
                    raise InvalidArgument(f"the program used the command id {command} twice")
                self._waiting[command] = Op(entry.op)
            return call
        if entry.op in (Op.TOKENIZE, Op.DETOKENIZE, Op.MODEL_INFO):
            self._events.append(self._question(entry, memory))
            return None
        return self._other(entry, memory)

    def _other(self, entry: RingCommand, memory: Memory) -> m.GuestCalls | None:
        match entry.op:
            case Op.SEND:
                return self._send(entry, memory)
            case Op.RECEIVE:
                self._events.extend(self._inbox.receive(entry.id))
                return None
            case Op.LOG:
                text = memory.text(entry.address, entry.length)
                self._answers.log("error" if entry.a else "info", text)
                return None
            case Op.SLEEP:
                self._sleeps.add(entry.id, entry.a / 1000)
                return None
            case Op.HTTP_GET | Op.HTTP_POST:
                return self._fetch(entry, memory)
            case Op.CALL:
                return self._services.start(entry, memory)
            case Op.END:
                return self._end(entry, memory)
        raise InvalidArgument(f"the program asked for operation {entry.op}, which does not exist")

    def _send(self, entry: RingCommand, memory: Memory) -> m.Send | None:
        error: QuireError | None = None
        if self._client_gone is not None:
            error = MailboxClosed(self._client_gone.message)
        elif self._num_untaken >= self._launch.mailbox_limit:
            error = MailboxFull(f"{self._num_untaken} messages wait and nobody reads")
        elif entry.length > self._launch.max_message_bytes:
            error = InvalidArgument(f"a message of {entry.length} bytes is too long")
        if error is not None:
            self._events.append(failed(Op.SEND, entry.id, error.record()))
            return None
        text = memory.text(entry.address, entry.length)
        self._num_untaken += 1
        self._sends.append(entry.id)
        self._pass_sends()
        return m.Send(text)

    def _pass_sends(self) -> None:
        """Those that need not wait are answered."""
        while self._sends and self._num_untaken < self._launch.mailbox_capacity:
            if wanted := self._sends.popleft():
                self._events.append(RingEvent(Op.SEND, wanted))

    def _fetch(self, entry: RingCommand, memory: Memory) -> m.Fetch:
        content = bytes(memory.take(entry.address, entry.length))
        split = entry.a if entry.op == Op.HTTP_POST else len(content)
        number = next(self._request_numbers)
        self._requests[number] = (entry.id, Op(entry.op))
        url = content[:split].decode("utf-8", "replace")
        if entry.op == Op.HTTP_GET:
            return m.Fetch(number, "GET", url, None, None)
        return m.Fetch(number, "POST", url, content[split:], None)

    def _end(self, entry: RingCommand, memory: Memory) -> m.Ended:
        text = memory.text(entry.address, entry.length)
        if self._cancel_reason is not None:
            cancelled = ProgramCancelled(self._cancel_reason).record()
            return m.Ended("cancelled", "null", cancelled, [], [])
        if entry.a:
            return m.Ended("failed", "null", ProgramFailed(text).record(), [], [])
        return m.Ended("finished", text or "null", None, [], [])

    def _question(self, entry: RingCommand, memory: Memory) -> RingEvent:
        given = memory.take(
            entry.address, 4 * entry.b if entry.op == Op.DETOKENIZE else entry.length
        )
        try:
            return self._answered(entry, bytes(given))
        except QuireError as exc:
            return failed(entry.op, entry.id, exc.record())

    def _answered(self, entry: RingCommand, given: bytes) -> RingEvent:
        models = self._launch.models
        if entry.a >= len(models):
            raise InvalidArgument(f"model {entry.a} of {len(models)}: there are fewer")
        model = models[entry.a]
        if entry.op == Op.TOKENIZE:
            tokens = self._answers.tokenize(model.id, given.decode("utf-8", "replace"), True)
            return RingEvent(entry.op, entry.id, u32s(tokens), a=len(tokens))
        if entry.op == Op.DETOKENIZE:
            ids = list(struct.unpack(f"<{entry.b}I", given))
            text = self._answers.detokenize(model.id, ids, bool(entry.c))
            return RingEvent(entry.op, entry.id, text.encode("utf-8", "replace"))
        eos = model.eos_token_ids
        words = [model.vocab_size, model.info.pool.page_size, model.info.max_model_len, len(eos)]
        return RingEvent(entry.op, entry.id, u32s([*words, *eos]), a=len(models), b=abi.MINOR)

    # -- to the guest ------------------------------------------------------------------------------

    def _take(self, event: m.GuestEvents) -> None:
        match event:
            case m.Replied():
                self._replied(event.command, event.reply, event.last)
            case m.CommandFailed():
                op = self._waiting.pop(event.command, None)
                if op is not None and event.command < abi.HOST_IDS:
                    self._events.append(failed(op, event.command, event.error))
            case m.Message():
                self._events.extend(self._inbox.put(event.text))
            case m.Taken():
                self._num_untaken -= event.count
                self._pass_sends()
            case m.ClientGone():
                self._client_gone = event.error
                while self._sends:
                    self._events.append(failed(Op.SEND, self._sends.popleft(), event.error))
            case m.InputClosed():
                self._events.extend(self._inbox.close())
            case m.Fetched():
                command, op = self._requests.pop(event.request)
                self._events.append(RingEvent(op, command, event.body, a=event.status))
            case m.FetchFailed():
                command, op = self._requests.pop(event.request)
                self._events.append(failed(op, command, event.error))
            case m.HostAnswered() | m.HostRefused():
                if (answer := self._services.event(event)) is not None:
                    self._events.append(answer)
            case m.CancelAsked():
                self._cancel_reason = event.reason
                reason = event.reason.encode("utf-8", "replace")
                self._events.append(RingEvent(Op.CANCEL_ASKED, 0, reason))
            case m.Terminated() | m.TimeCome():
                pass

    def _own_calls(self) -> list[m.GuestCalls]:
        """What the host is to know of messages that were read, and what goes back."""
        num_read = self._inbox.take_num_read()
        calls = self._services.take_put_back()
        return [m.Received(num_read), *calls] if num_read else calls

    def _replied(self, command: CommandId, reply: Reply, last: bool) -> None:
        op = self._waiting.pop(command, None) if last else self._waiting.get(command)
        if op is not None and command < abi.HOST_IDS:
            self._events.append(reply_event(op, command, reply, last))


def _continues(last: m.GuestCalls, issue: m.Issue) -> bool:
    """Whether both put commands on the same queue, and so make one call."""
    return isinstance(last, m.Issue) and last.queue == issue.queue


__all__ = ["REQUIRED_EXPORTS", "ModuleRunner"]
