"""A compiled guest's calls of services by name, and their answers.

Owns the mapping from answers to commands. An answer that has taken a message (of a work queue, a
topic or a child) and cannot be given to the guest is put back, so that no message is lost.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from quire.core.calls import AskService, DropAnswer
from quire.core.errors import InvalidArgument
from quire.programs.sandbox import messages as m
from quire.programs.sandbox.module.abi import GuestOp, RingCommand
from quire.programs.sandbox.module.commands import service_call
from quire.programs.sandbox.module.events import RingEvent, failed
from quire.programs.sandbox.module.memory import GuestMemory

_TAKING = frozenset({"queue.pull", "topic.take", "child.receive"})
"""Each has an operation ``NAME.undo`` that puts its answer back."""


class ModuleServices:
    """The service calls of one guest. ``numbers``: the numbers of its questions to its host."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._asked: dict[int, tuple[int, AskService]] = {}
        """Command id and call, by the call's number."""
        self._put_back: list[m.GuestCalls] = []

    def __len__(self) -> int:
        """The number of pending questions."""
        return len(self._asked)

    def start(self, entry: RingCommand, memory: GuestMemory) -> AskService:
        """The call of ``entry``. Raises ``InvalidArgument`` if it is not valid, or its command id
        is in use."""
        call = service_call(entry, next(self._numbers) if entry.id else 0, memory)
        if entry.id:
            if self._number_of(entry.id) is not None:
                raise InvalidArgument(f"the program used the command id {entry.id} twice")
            self._asked[call.number] = entry.id, call
        return call

    def drop(self, command: int) -> DropAnswer | None:
        """The call that drops the answer of ``command``; ``None`` if that is not a service call. An
        answer still follows: the service's result, or that it was cancelled without effect."""
        number = self._number_of(command)
        return None if number is None else DropAnswer(number)

    def event(self, answer: m.ServiceAnswered | m.ServiceRefused) -> RingEvent | None:
        command, call = self._asked.pop(answer.number, (0, None))
        if call is None:
            return None
        if isinstance(answer, m.ServiceRefused):
            return failed(GuestOp.ASK_SERVICE, command, answer.error)
        return RingEvent(
            GuestOp.ASK_SERVICE,
            command,
            msgspec.json.encode(answer.value),
            undo=_undo(call, answer.value),
        )

    def undelivered(self, event: RingEvent) -> None:
        """Put back what ``event`` has taken: it is larger than the guest's inbox."""
        if event.undo is not None:
            self._put_back.append(event.undo)

    def take_put_back(self) -> list[m.GuestCalls]:
        calls, self._put_back = self._put_back, []
        return calls

    def _number_of(self, command: int) -> int | None:
        return next(
            (number for number, (asked, _) in self._asked.items() if asked == command), None
        )


def _undo(call: AskService, answer: object) -> AskService | None:
    if call.name not in _TAKING:
        return None
    return AskService(0, f"{call.name}.undo", {**call.arguments, "answer": answer})
