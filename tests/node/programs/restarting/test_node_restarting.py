"""A program begins again: what its handle does when that cannot be, and with what is half sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from quire.core.errors import (
    Draining,
    EngineLost,
    InvalidArgument,
    MailboxFull,
    ProgramCancelled,
    ProgramTerminated,
)
from quire.core.ids import ProgramId, TenantId
from quire.node.programs.handle import ProgramHandle
from quire.node.programs.message_log import LogLimits
from quire.node.programs.programs import ProgramTable
from quire.node.programs.records import ProgramLaunch, ProgramLimits
from quire.node.programs.restarting.handing_over import Origin
from quire.node.programs.restarting.restarts import Restarts
from quire.programs.library import LIBRARY
from quire.programs.runtime.replay_log import ReplayLog
from quire.programs.runtime.running import ProgramState, RunningProgram
from quire.programs.services.mailbox import Mailbox, MailboxLimits

LOST = EngineLost("the engine was lost").record()


class Incarnations:
    """Programs that end when they are asked to, and run no code."""

    def __init__(self, limits: ProgramLimits | None = None) -> None:
        self.started: list[RunningProgram] = []
        self.refusal: Draining | None = None
        self.ends_at_once = True
        self.restarts = Restarts(ReplayLog())
        self.table = ProgramTable(limits)
        self.handle: ProgramHandle = self.table.launch(
            "again", ProgramLaunch(TenantId("tenant")), self.start, self.restarts
        )

    def start(self) -> RunningProgram:
        if self.refusal is not None:
            raise self.refusal
        number = ProgramId(len(self.started) + 1)
        self.mailbox = Mailbox("again")
        running = RunningProgram(number, "again", self.mailbox, lambda reason: self.asked(running))
        running.advance(ProgramState.RUNNING)
        self.started.append(running)
        return running

    def asked(self, running: RunningProgram) -> None:
        if self.ends_at_once:
            self.end(running)

    def end(self, running: RunningProgram) -> None:
        running.advance(ProgramState.CANCELLED, error=ProgramCancelled("asked to"))

    def lose(self) -> None:
        self.restarts.log.on_loss(LOST)


async def test_a_program_of_which_nothing_is_heard_ends_here() -> None:
    again = Incarnations(ProgramLimits(handed_over_s=0.01))
    again.restarts.log.stop = again.lose
    again.handle.life._origin = Origin(LIBRARY["text_completion"])
    assert (await again.handle.life.hand_over()).id == again.handle.id
    with pytest.raises(ProgramTerminated, match="nobody has said"):
        await again.handle.result()
    again.handle.life.leave()
    again.handle.life.stay()
    assert again.handle.record().state == ProgramState.TERMINATED
    assert again.table.running() == []


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_one_that_cannot_be_started_again_ends() -> None:
    programs = Incarnations()
    programs.refusal = Draining("the node starts no further program")
    programs.lose()
    with pytest.raises(Draining):
        await asyncio.wait_for(programs.handle.result(), 60)
    assert programs.table.running() == []
    await asyncio.wait_for(programs.table.close(), 60)


async def test_it_begins_again_five_times_and_the_sixth_loss_ends_it() -> None:
    programs = Incarnations()
    for number in range(1, 6):
        programs.lose()
        await settled()
        assert len(programs.started) == 1 + number
    programs.lose()
    with pytest.raises(ProgramTerminated, match="the 6th time"):
        await asyncio.wait_for(programs.handle.result(), 60)
    assert len(programs.started) == 6


async def test_a_move_counts_as_no_restart() -> None:
    programs = Incarnations()
    for number in range(1, 4):
        programs.lose()
        await settled()
        assert programs.restarts.log.num_restarts == number
    programs.restarts.take_over(["hello"], {}, is_input_closed=False)
    programs.restarts.begin_again(programs.start())  # as on the node that it has come to
    assert programs.restarts.log.num_restarts == 3
    await programs.table.close()


@pytest.mark.parametrize(
    "end", [lambda handle: handle.terminate(), lambda handle: handle.signal("cancel")]
)
async def test_one_that_was_asked_to_end_does_not_begin_again(
    end: Callable[[ProgramHandle], None],
) -> None:
    programs = Incarnations()
    programs.ends_at_once = False
    end(programs.handle)
    programs.lose()
    await settled()
    assert len(programs.started) == 1
    programs.end(programs.started[0])
    with pytest.raises(ProgramCancelled):
        await asyncio.wait_for(programs.handle.result(), 60)


async def test_one_that_is_lost_is_asked_to_end_and_has_ended_before_it_begins_again() -> None:
    """The table hears of its end first, whose place the next incarnation would have taken."""
    programs = Incarnations()
    programs.ends_at_once = False
    programs.table.soon(lambda: None)  # what follows in this turn is called with it
    programs.lose()
    programs.handle.terminate()
    programs.end(programs.started[0])
    assert programs.handle.record().state == ProgramState.RUNNING
    with pytest.raises(ProgramCancelled):
        await asyncio.wait_for(programs.handle.result(), 60)
    assert programs.handle.record().state == ProgramState.CANCELLED
    assert len(programs.started) == 1


async def test_a_message_that_waits_for_its_readers_is_not_lost() -> None:
    programs = Incarnations(ProgramLimits(messages=LogLimits(max_messages=1, stall_s=1000)))
    reader = programs.handle.attach()
    programs.mailbox.to_client.send("one")
    programs.mailbox.to_client.send("two")
    await settled()  # "two" waits: the reader has not taken "one"
    programs.lose()
    await settled()
    programs.mailbox.to_client.send("one")
    programs.mailbox.to_client.send("two")
    texts = [(await asyncio.wait_for(anext(reader), 60)).text for _ in range(2)]
    assert texts == ["one", "two"]
    programs.handle.terminate()
    await programs.table.close()


async def test_what_is_kept_of_its_messages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that talks for months is not remembered for ever: it can no longer begin again."""
    monkeypatch.setattr("quire.node.programs.restarting.restarts._MAX_SENT", 3)
    again = Incarnations()
    for number in range(10):
        again.mailbox.to_client.send(str(number))
        await settled()
    assert again.handle.record().num_messages == 10
    assert len(again.restarts._sent) == 3
    again.lose()
    with pytest.raises(ProgramTerminated, match="too much was said"):
        await again.handle.result()
    record = again.handle.record()
    assert record.error is not None
    assert (record.state, record.error.code) == (ProgramState.TERMINATED, "program_terminated")


async def test_a_message_that_a_full_mailbox_refuses_is_not_told_again() -> None:
    programs = Incarnations()
    taken = MailboxLimits().limit
    for number in range(taken):
        programs.handle.signal("message", f"message {number}")
    with pytest.raises(MailboxFull):
        programs.handle.signal("message", "one too many")
    assert programs.restarts.received == [f"message {number}" for number in range(taken)]
    programs.lose()
    await settled()
    told = [await programs.mailbox.to_program.receive() for _ in range(taken)]
    await settled()
    assert told == programs.restarts.received
    assert not len(programs.mailbox.to_program)


async def test_while_it_begins_again_messages_are_refused_as_its_mailbox_would() -> None:
    programs = Incarnations()
    programs.handle.signal("message", "before")
    programs.lose()
    await settled()
    for number in range(MailboxLimits().capacity):
        programs.handle.signal("message", f"fills it {number}")
    programs.lose()
    await settled()  # nobody reads, so that the recorded messages are still being told
    with pytest.raises(InvalidArgument, match="send it in parts"):
        programs.handle.signal("message", "x" * (MailboxLimits().max_message_bytes + 1))
    kept = programs.restarts.received
    while len(kept) < MailboxLimits().capacity + MailboxLimits().limit:
        programs.handle.signal("message", f"after {len(kept)}")
    with pytest.raises(MailboxFull, match="being restarted"):
        programs.handle.signal("message", "one too many")
    expected = list(kept)
    told = [await programs.mailbox.to_program.receive() for _ in expected]
    assert told == expected
