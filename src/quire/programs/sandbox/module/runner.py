"""Runs a compiled guest for its host: executes its commands and passes events to it.

Owns the mapping from answers to commands, and the steps of a turn. ``rings`` knows the layout of
commands and events in the guest's memory.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count

import msgspec

from quire.core.actions import ReplyValue
from quire.core.calls import AskService, CreateQueue, Issue
from quire.core.errors import (
    InvalidArgument,
    ProgramCancelled,
    ProgramFailed,
    QuireError,
)
from quire.core.ids import CommandId, QueueId
from quire.programs.inferlet import check_versions
from quire.programs.sandbox import messages as m
from quire.programs.sandbox.answers import Answers
from quire.programs.sandbox.module import abi
from quire.programs.sandbox.module.abi import GuestOp, RingCommand, Status
from quire.programs.sandbox.module.commands import COMMANDS, Build, queue_call, with_adapter
from quire.programs.sandbox.module.events import RingEvent, failed, reply_event, u32s
from quire.programs.sandbox.module.inbox import ModuleInbox
from quire.programs.sandbox.module.memory import GuestMemory
from quire.programs.sandbox.module.outbox import ModuleOutbox
from quire.programs.sandbox.module.rings import ModuleRings
from quire.programs.sandbox.module.services import ModuleServices
from quire.programs.sandbox.module.sleeps import ModuleSleeps
from quire.programs.sandbox.module.wasm_module import ModuleGuest

REQUIRED_EXPORTS = {abi.ABI_EXPORT: 0, abi.START_EXPORT: 2, abi.POLL_EXPORT: 1}
_MAX_MANIFEST_BYTES = 1 << 14
_POLLS = 4
"""The most calls of the guest in one turn."""


class ModuleRunner:
    """``GuestRunner`` of one program in ``guest``.

    ``turn_bytes``: the limit of the payloads of one turn, which the host copies.
    """

    __slots__ = (
        "_adapters", "_answers", "_cancel_reason", "_events", "_guest", "_host_ids", "_inbox",
        "_launch", "_outbox", "_request_numbers", "_requests", "_rings", "_services", "_sleeps",
        "_turn_bytes", "_waiting",
    )  # fmt: skip

    def __init__(self, guest: ModuleGuest, turn_bytes: int) -> None:
        self._guest = guest
        self._turn_bytes = turn_bytes
        self._events: deque[RingEvent] = deque()
        self._waiting: dict[int, int] = {}
        """The operations of commands whose answers are pending, by command id."""
        self._adapters: dict[QueueId, str | None] = {}
        """The adapter of each queue's model, or None."""
        self._inbox = ModuleInbox()
        self._sleeps = ModuleSleeps()
        self._requests: dict[int, tuple[int, GuestOp]] = {}
        self._cancel_reason: str | None = None
        self._host_ids = count(abi.HOST_IDS)
        self._request_numbers = count(1)
        self._services = ModuleServices(self._request_numbers)
        self._answers: Answers
        self._launch: m.GuestLaunch
        self._outbox: ModuleOutbox
        self._rings: ModuleRings

    @property
    def cpu_ns(self) -> int:
        return self._guest.cpu_ns

    @property
    def memory_bytes(self) -> int:
        return len(self._guest.memory())

    def attach(self, answers: Answers) -> None:
        self._answers = answers
        self._guest.log = answers.log

    def manifest(self, name: str, limit_s: float, *, has_manifest: bool) -> m.Manifest:
        """The module's manifest; a module without one is named ``name``."""
        text = self._guest.turn(limit_s, self._manifest, has_manifest)
        if text is None:
            return m.Manifest(name=name)
        end = text.find(b"\0")
        try:
            if end < 0:
                raise InvalidArgument(
                    f"the manifest is not terminated by a zero byte within {_MAX_MANIFEST_BYTES} "
                    "bytes"
                )
            manifest = msgspec.json.decode(text[:end], type=m.Manifest)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise InvalidArgument(f"the module's manifest cannot be read: {exc}") from exc
        check_versions(manifest.name, manifest.traits)
        return manifest

    def _manifest(self, has_manifest: bool) -> bytes | None:
        """The bytes of the manifest and those after it; ``None`` for a module without one, which is
        only started."""
        if not has_manifest:
            return None
        address = self._guest.call(abi.MANIFEST_EXPORT)
        return bytes(self._guest.memory()[address : address + _MAX_MANIFEST_BYTES])

    def begin(self, launch: m.GuestLaunch, limit_s: float) -> m.Turn:
        return self._guest.turn(limit_s, self._begin, launch)

    def _begin(self, launch: m.GuestLaunch) -> m.Turn:
        guest = self._guest
        self._launch = launch
        self._outbox = ModuleOutbox(launch)
        self._rings = ModuleRings(guest, guest.call(abi.ABI_EXPORT))
        arguments = self._rings.put_arguments(launch.args)
        return self._carry_on(guest.call(abi.START_EXPORT, *arguments))

    def wake(self, events: Sequence[m.GuestEvents], limit_s: float) -> m.Turn:
        for event in events:
            self._take(event)
        self._events.extend(self._sleeps.take_due())
        if not self._events:
            return m.Turn(self._own_calls(), self._sleeps.next_s())
        return self._guest.turn(limit_s, lambda: self._carry_on(self._poll()))

    def close(self) -> None:
        self._guest.close()

    # -- a turn ------------------------------------------------------------------------------------

    def _poll(self) -> int:
        number = self._rings.put_events(self._events, self._services.undelivered)
        return self._guest.call(abi.POLL_EXPORT, number)

    def _carry_on(self, num_commands: int) -> m.Turn:
        """Execute the guest's commands. Answers that are available at once are passed to the guest
        within the same turn, up to ``_POLLS`` times, because another turn would cost as much as
        this one."""
        calls: list[m.GuestCalls] = []
        num_bytes = 0
        for num_left in reversed(range(_POLLS)):
            entries = self._rings.commands(num_commands)
            num_bytes += sum(map(abi.named_bytes, entries))
            self._check_bytes(num_bytes)
            if self._carry_out_all(entries, calls):
                return m.Turn(calls)
            if not self._events:
                self._check_waits()
                break
            if num_left:
                num_commands = self._poll()
        return m.Turn(calls, 0.0 if self._events else self._sleeps.next_s())

    def _carry_out_all(self, entries: Sequence[RingCommand], calls: list[m.GuestCalls]) -> bool:
        """Execute the entries, appending calls to others to ``calls``. Return True if the program
        has ended."""
        memory = GuestMemory(self._guest.memory())
        calls += self._own_calls()
        for entry in entries:
            build = COMMANDS.get(entry.op)
            if build is not None:
                self._issue(build, entry, memory, calls)
                continue
            call = _OPERATIONS.get(entry.op, ModuleRunner._queue_call)(self, entry, memory)
            if call is None:
                self._answers.note_question()  # counts against the rate of calls
                continue
            calls.append(call)
            if isinstance(call, m.Ended):
                return True
        return False

    def _check_bytes(self, num_bytes: int) -> None:
        if num_bytes > self._turn_bytes:
            raise InvalidArgument(
                f"the commands of one turn name {num_bytes} bytes; at most {self._turn_bytes} are "
                "allowed: spread them over several turns"
            )

    def _check_waits(self) -> None:
        if not (
            self._inbox.num_waiting
            or self._waiting
            or self._outbox.num_waiting
            or self._sleeps
            or self._requests
            or self._services
        ):
            raise ProgramFailed(
                "the program waits for nothing: it returned, and no command of it has a pending "
                "answer"
            )

    # -- from the guest ----------------------------------------------------------------------------

    def _issue(
        self, build: Build, entry: RingCommand, memory: GuestMemory, calls: list[m.GuestCalls]
    ) -> None:
        """Issue a command on its queue, in one call with preceding commands for the same queue."""
        number = CommandId(entry.id or next(self._host_ids))
        command = build(entry, number, memory)
        if number in self._waiting:
            raise InvalidArgument(f"the program used the command id {number} twice")
        self._waiting[number] = entry.op
        queue = QueueId(entry.a)
        if (adapter := self._adapters.get(queue)) is not None:
            command = with_adapter(command, adapter)
        last = calls[-1] if calls else None
        if isinstance(last, Issue) and last.queue == queue:
            last.commands.append(command)
        else:
            calls.append(Issue(queue, [command]))

    def _queue_call(self, entry: RingCommand, memory: GuestMemory) -> m.GuestCalls:
        call = queue_call(entry, [model.base for model in self._launch.models])
        if call is None:
            raise InvalidArgument(
                f"the program asked for operation {entry.op}, which does not exist"
            )
        if isinstance(call, CreateQueue):
            self._adapters[call.queue] = self._launch.models[entry.b].adapter
        return call

    def _cancel(self, entry: RingCommand, memory: GuestMemory) -> m.GuestCalls:
        return self._services.drop(entry.a) or self._queue_call(entry, memory)

    def _send(self, entry: RingCommand, memory: GuestMemory) -> m.Send | None:
        message, events = self._outbox.send(entry, memory)
        self._events.extend(events)
        return message

    def _receive(self, entry: RingCommand, memory: GuestMemory) -> None:
        self._events.extend(self._inbox.receive(entry.id))

    def _log(self, entry: RingCommand, memory: GuestMemory) -> None:
        text = memory.text(entry.address, entry.length)
        self._answers.log("error" if entry.a else "info", text)

    def _sleep(self, entry: RingCommand, memory: GuestMemory) -> None:
        self._sleeps.add(entry.id, entry.a / 1000)

    def _call(self, entry: RingCommand, memory: GuestMemory) -> AskService:
        return self._services.start(entry, memory)

    def _fetch(self, entry: RingCommand, memory: GuestMemory) -> m.Fetch:
        content = bytes(memory.take(entry.address, entry.length))
        split = entry.a if entry.op == GuestOp.HTTP_POST else len(content)
        number = next(self._request_numbers)
        self._requests[number] = (entry.id, GuestOp(entry.op))
        url = content[:split].decode("utf-8", "replace")
        if entry.op == GuestOp.HTTP_GET:
            return m.Fetch(number, "GET", url, None, None)
        return m.Fetch(number, "POST", url, content[split:], None)

    def _end(self, entry: RingCommand, memory: GuestMemory) -> m.Ended:
        text = memory.text(entry.address, entry.length)
        if self._cancel_reason is not None:
            cancelled = ProgramCancelled(self._cancel_reason).record()
            return m.Ended("cancelled", "null", cancelled, [], [])
        if entry.a:
            return m.Ended("failed", "null", ProgramFailed(text).record(), [], [])
        if (unsent := self._unsent()) is not None:
            return m.Ended("failed", "null", unsent.record(), [], [])
        return m.Ended("finished", text or "null", None, [], [])

    def _unsent(self) -> ProgramFailed | None:
        """The error for refused messages whose refusal the program has not read."""
        refused = [
            event
            for event in self._events
            if event.op == GuestOp.SEND and event.status not in (Status.OK, Status.CLOSED)
        ]
        if not refused:
            return None
        return ProgramFailed(
            "the program ended without waiting for its sends; messages that were not sent: "
            f"{len(refused)} ({refused[0].payload.decode()})"
        )

    def _question(self, entry: RingCommand, memory: GuestMemory) -> None:
        given = memory.take(
            entry.address, 4 * entry.b if entry.op == GuestOp.DETOKENIZE else entry.length
        )
        try:
            event = self._answered(entry, bytes(given))
        except QuireError as exc:
            event = failed(entry.op, entry.id, exc.record())
        self._events.append(event)

    def _answered(self, entry: RingCommand, given: bytes) -> RingEvent:
        models = self._launch.models
        if entry.a >= len(models):
            raise InvalidArgument(f"model {entry.a}: give 0 to {len(models) - 1}")
        model = models[entry.a]
        if entry.op == GuestOp.TOKENIZE:
            tokens = self._answers.tokenize(model.id, given.decode("utf-8", "replace"), True)
            return RingEvent(entry.op, entry.id, u32s(tokens), a=len(tokens))
        if entry.op == GuestOp.DETOKENIZE:
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
                self._events.extend(self._outbox.taken(event.count))
            case m.ClientGone():
                self._events.extend(self._outbox.close(event.error))
            case m.InputClosed():
                self._events.extend(self._inbox.close())
            case m.Fetched():
                command, op = self._requests.pop(event.request)
                self._events.append(RingEvent(op, command, event.body, a=event.status))
            case m.FetchFailed():
                command, op = self._requests.pop(event.request)
                self._events.append(failed(op, command, event.error))
            case m.ServiceAnswered() | m.ServiceRefused():
                if (answer := self._services.event(event)) is not None:
                    self._events.append(answer)
            case m.CancelAsked():
                self._cancel_reason = event.reason
                reason = event.reason.encode("utf-8", "replace")
                self._events.append(RingEvent(GuestOp.CANCEL_ASKED, 0, reason))
            case m.Terminated() | m.TimeCome():
                pass

    def _own_calls(self) -> list[m.GuestCalls]:
        """Calls that report read messages and put back undelivered ones."""
        num_read = self._inbox.take_num_read()
        calls = self._services.take_put_back()
        return [m.Received(num_read), *calls] if num_read else calls

    def _replied(self, command: CommandId, reply: ReplyValue, last: bool) -> None:
        op = self._waiting.pop(command, None) if last else self._waiting.get(command)
        if op is not None and command < abi.HOST_IDS:
            self._events.append(reply_event(op, command, reply, last))


_Operation = Callable[[ModuleRunner, RingCommand, GuestMemory], m.GuestCalls | None]
_OPERATIONS: Mapping[int, _Operation] = {
    GuestOp.SEND: ModuleRunner._send,
    GuestOp.RECEIVE: ModuleRunner._receive,
    GuestOp.LOG: ModuleRunner._log,
    GuestOp.SLEEP: ModuleRunner._sleep,
    GuestOp.HTTP_GET: ModuleRunner._fetch,
    GuestOp.HTTP_POST: ModuleRunner._fetch,
    GuestOp.ASK_SERVICE: ModuleRunner._call,
    GuestOp.END: ModuleRunner._end,
    GuestOp.CANCEL: ModuleRunner._cancel,
    GuestOp.TOKENIZE: ModuleRunner._question,
    GuestOp.DETOKENIZE: ModuleRunner._question,
    GuestOp.MODEL_INFO: ModuleRunner._question,
}
"""All other operations are calls about queues. A result of ``None`` needs no call to others."""
