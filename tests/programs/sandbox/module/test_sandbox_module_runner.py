"""What a compiled guest's end says of messages that it has not waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from quire.core.errors import MailboxClosed
from quire.core.ids import ProgramId
from quire.core.quotas import Quotas
from quire.programs.sandbox import messages as m
from quire.programs.sandbox.answers import Answers
from quire.programs.sandbox.module import abi
from quire.programs.sandbox.module.abi import GuestOp
from quire.programs.sandbox.module.runner import ModuleRunner
from quire.programs.sandbox.module.wasm_module import ModuleGuest

COMMANDS, EVENTS, INBOX = 256, 4096, 8192
LAUNCH = m.GuestLaunch(
    program=ProgramId(1),
    args=(),
    models=(),
    quotas=Quotas(),
    seed=1,
    mailbox_capacity=2,
    mailbox_limit=3,
    max_message_bytes=16,
    grace_s=1.0,
)


class ScriptedGuest:
    """``ModuleGuest`` whose start, and then each poll, leaves the next of ``turns``: commands."""

    cpu_ns = 0

    def __init__(self, *turns: Sequence[tuple[int, int, bytes]]) -> None:
        self._content = bytearray(1 << 16)
        self._turns = list(turns)
        abi.IO.pack_into(self._content, 0, COMMANDS, 64, EVENTS, 64, INBOX, 1024, 0, 0)

    def turn(self, limit_s: float, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)

    def memory(self) -> memoryview:
        return memoryview(self._content)

    def call(self, name: str, *arguments: int) -> int:
        if name == abi.ABI_EXPORT:
            return 0
        commands = self._turns.pop(0)
        text_at = 1 << 15
        for index, (op, id, text) in enumerate(commands):
            self._content[text_at : text_at + len(text)] = text
            place = COMMANDS + index * abi.COMMAND.size
            abi.COMMAND.pack_into(self._content, place, op, 0, id, 0, 0, 0, 0, text_at, len(text))
            text_at += len(text)
        return len(commands)


def runner_of(*turns: Sequence[tuple[int, int, bytes]]) -> ModuleRunner:
    runner = ModuleRunner(cast(ModuleGuest, ScriptedGuest(*turns)), turn_bytes=1 << 20)
    runner.attach(Answers({}, lambda level, text, fields: None))
    return runner


def sends(count: int, *, id: int = 0, text: bytes = b"a message") -> list[tuple[int, int, bytes]]:
    return [(GuestOp.SEND, id and id + index, text) for index in range(count)]


END = (GuestOp.END, 0, b"")


def ended(turn: m.Turn) -> m.Ended:
    last = turn.calls[-1]
    assert isinstance(last, m.Ended)
    return last


def test_one_that_ends_behind_a_full_mailbox_sends_all_that_fits() -> None:
    turn = runner_of([*sends(3), END]).begin(LAUNCH, 1.0)
    assert turn.calls[:-1] == [m.Send("a message")] * 3
    assert (ended(turn).state, ended(turn).error) == ("finished", None)


@pytest.mark.parametrize("id", [0, 7])
def test_one_that_ends_without_hearing_what_was_refused_has_failed(id: int) -> None:
    turn = runner_of([*sends(5, id=id), END]).begin(LAUNCH, 1.0)
    assert turn.calls[:-1] == [m.Send("a message")] * 3
    end = ended(turn)
    assert end.state == "failed"
    assert end.error is not None
    assert "were not sent: 2 (3 messages wait" in end.error.message


def test_a_message_that_is_too_long_counts_too() -> None:
    end = ended(runner_of([*sends(1, text=b"x" * 17), END]).begin(LAUNCH, 1.0))
    assert end.error is not None
    assert "were not sent: 1 (a message of 17 bytes; at most 16 are allowed" in end.error.message


def test_one_that_has_heard_of_it_ends_as_it_says() -> None:
    turn = runner_of(sends(4, id=7), [END]).begin(LAUNCH, 1.0)
    assert turn.calls[:-1] == [m.Send("a message")] * 3
    assert ended(turn).state == "finished"


def test_nobody_misses_what_comes_after_the_client_has_gone() -> None:
    gone = MailboxClosed("the client has gone").record()
    runner = runner_of([(GuestOp.RECEIVE, 1, b"")], [*sends(2), END])
    runner.begin(LAUNCH, 1.0)
    turn = runner.wake([m.ClientGone(gone), m.Message("go on")], 1.0)
    assert ended(turn).state == "finished"


def test_a_send_beyond_the_mailbox_is_answered_when_the_client_has_read() -> None:
    scripted = ScriptedGuest(sends(3, id=7), [], [END])
    runner = ModuleRunner(cast(ModuleGuest, scripted), turn_bytes=1 << 20)
    runner.attach(Answers({}, lambda level, text, fields: None))
    assert runner.begin(LAUNCH, 1.0).calls == [m.Send("a message")] * 3
    runner.wake([m.Taken(1)], 1.0)
    assert told_sends(scripted) == [7], "two are unread, which fill it"
    runner.wake([m.Taken(2)], 1.0)
    assert told_sends(scripted) == [8, 9]


def told_sends(guest: ScriptedGuest) -> list[int]:
    """The ids of the sends that are answered in this turn, as the guest finds them in its ring."""
    memory = guest.memory()
    found = [abi.EVENT.unpack_from(memory, EVENTS + n * abi.EVENT.size) for n in range(8)]
    return [event[2] for event in found if event[0] == GuestOp.SEND]
