"""A program's record told in parts is, put together, the record."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from quire.core.commands import AllocPages, Command, DeallocPages, ExportPages, Sampled
from quire.core.errors import EngineLost, InvalidArgument, PageLost
from quire.core.ids import CommandId, PageId, QueueId, TenantId
from quire.node.programs.records import ProgramLaunch
from quire.node.programs.restarting.handing_over import HandedProgram, Origin, handed
from quire.node.programs.restarting.restarts import Restarts
from quire.node.programs.restarting.told_family import ToldFamily, program_of
from quire.node.programs.restarting.told_record import ToldRecord
from quire.programs.library import LIBRARY
from quire.programs.runtime.arrivals import RecordedInput
from quire.programs.runtime.replay_log import (
    MAX_ANSWERS,
    IssuedCommand,
    RecordedQuestion,
    RecordedReply,
    ReplayLog,
)
from quire.programs.services.network import HttpReply

LAUNCH = ProgramLaunch(TenantId("tenant"), ("one", "two"), "client", priority=2, seed=7)
ORIGIN = Origin(LIBRARY["text_completion"])
QUEUE = QueueId(1)


class Life:
    """A program's record as it grows."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.log = ReplayLog()
        self.restarts = Restarts(self.log)
        self.told = ToldFamily(
            ToldRecord("prog-1", "text_completion", LAUNCH, ORIGIN, self.restarts)
        )
        self.parts: list[bytes] = []

    def step(self) -> None:
        """One thing happens."""
        self.random.choice(
            [
                self.issue, self.hear, self.ask, self.answer, self.arrive, self.request, self.look,
                self.receive, self.read,
            ]
        )()  # fmt: skip

    def issue(self) -> None:
        number = CommandId(len(self.log.issued) + 1)
        command: Command = AllocPages(id=number, pages=[PageId(number)])
        if self.random.random() < 0.5:
            command = DeallocPages(id=number, pages=[PageId(number)])
        self.log.begun(IssuedCommand(QUEUE, command, command))

    def hear(self) -> None:
        going = [one for one in self.log.issued.values() if not one.ended]
        if going:
            one = self.random.choice(going)
            error = None if self.random.random() < 0.8 else PageLost("it is lost").record()
            reply = Sampled([self.random.randrange(99)]) if error is None else None
            last = error is not None or self.random.random() < 0.5
            self.log.note(len(self.log.heard), one.asked.id, reply, error, last)

    def ask(self) -> None:
        self.log.calls.append(RecordedQuestion(("documents.split", (("text", "a text"),))))

    def answer(self) -> None:
        going = [one for one in (*self.log.calls, *self.log.requests) if not one.answered]
        if going:
            one = self.random.choice(going)
            if self.random.random() < 0.2:
                one.error = EngineLost("no")
            else:
                is_host = any(one is request for request in self.log.requests)
                one.answer = _reply() if is_host else [1, "two"]
            one.answered = True

    def arrive(self) -> None:
        """An answer reaches the program."""
        coming = [one for one in (*self.log.calls, *self.log.requests) if one.answered]
        if coming:
            self.log.arrivals.came(self.random.choice(coming))

    def read(self) -> None:
        """A message reaches the program."""
        if len(self.log.inputs) < len(self.restarts.received):
            self.log.arrivals.acted()
            self.log.inputs.append(RecordedInput())
            self.log.arrivals.came(self.log.inputs[-1])

    def request(self) -> None:
        self.log.requests.append(RecordedQuestion(("GET", "http://host/")))

    def look(self) -> None:
        self.log.readings.append(self.random.random())

    def receive(self, word: str = "a word") -> None:
        self.restarts._keep(word)

    def tell(self) -> None:
        told = self.told.part()
        if told is not None:
            assert told.is_first is (not self.parts)
            self.parts.append(told.part)

    def whole(self) -> HandedProgram:
        return handed("prog-1", "text_completion", ORIGIN, LAUNCH, self.restarts)


def _reply() -> HttpReply:
    reply = HttpReply("said")
    reply.status, reply.headers, reply.body = 200, {"a": "b"}, b"said"
    return reply


_REPLY = RecordedReply(0, CommandId(1), None, None, False)


def _failed() -> RecordedQuestion:
    return RecordedQuestion(("GET", "http://host/"), error=ValueError("odd"), answered=True)


def _export() -> IssuedCommand:
    export = ExportPages(id=CommandId(99), pages=[], name="a name")
    return IssuedCommand(QUEUE, export, export)


def shown(program: HandedProgram) -> dict[str, Any]:
    found = msgspec.structs.asdict(program)
    found["issued"] = {
        id: (one.replies, one.error, one.ended) for id, one in found["issued"].items()
    }
    return found


@pytest.mark.parametrize("seed", range(12))
def test_the_parts_are_the_record(seed: int) -> None:
    life = Life(seed)
    for _ in range(120):
        life.step()
        if life.random.random() < 0.3:
            life.tell()
        if life.random.random() < 0.02:  # whoever kept them is gone
            life.told.anew()
            life.parts.clear()
    life.restarts._input_closed = True
    life.tell()
    whole = msgspec.structs.replace(life.whole(), num_restarts=1)
    assert shown(program_of(life.parts)) == shown(whole)


def test_nothing_is_told_twice_and_an_answer_where_its_question_was() -> None:
    life = Life()
    life.ask()
    life.ask()
    life.tell()
    life.tell()
    assert len(life.parts) == 1
    life.log.calls[0].answer, life.log.calls[0].answered = "late", True
    life.tell()
    life.tell()
    assert len(life.parts) == 2
    assert [one.answer for one in program_of(life.parts).calls] == ["late", None]


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (lambda life: life.log.calls.append(RecordedQuestion(("store.put", ()))), "the store"),
        (lambda life: life.log.requests.append(_failed()), "cannot be told"),
        (lambda life: life.log.begun(_export()), "by name"),
        (lambda life: life.receive("\ud800"), "cannot be told"),
        (lambda life: life.log.heard.extend([_REPLY] * MAX_ANSWERS), "more than is recorded"),
    ],
)
def test_what_keeps_it_here_is_said_and_nothing_more_told(
    happens: Callable[[Life], object], why: str
) -> None:
    life = Life()
    life.issue()
    life.tell()
    assert life.told.stays is None
    happens(life)
    for _ in range(2):
        told = life.told.part()
        assert told is not None
        assert (told.part, told.is_first) == (b"", True)
        assert why in (told.stays or "")
        life.issue()


def test_one_that_is_not_restartable_stays() -> None:
    told = ToldFamily(ToldRecord("prog-1", "text_completion", LAUNCH, ORIGIN, None)).part()
    assert told is not None
    assert "restartable=True" in (told.stays or "")


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (lambda parts: [], "no parts"),
        (lambda parts: parts[1:], "not those from its first"),
        (lambda parts: [*parts, parts[0]], "not those from its first"),
        (lambda parts: [b"\x90", *parts], "no part"),
        (lambda parts: [parts[0][:-2]], "no part"),
    ],
)
def test_other_parts_are_refused(broken: Callable[[list[bytes]], list[bytes]], why: str) -> None:
    life = Life()
    for _ in range(2):
        life.issue()
        life.tell()
    with pytest.raises(InvalidArgument, match=why):
        program_of(broken(life.parts))
