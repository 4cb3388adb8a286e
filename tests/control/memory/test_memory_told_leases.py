"""A lease is told of when its engine begins with the message that opens it, and not at the end of
that message: what holds in between."""

from __future__ import annotations

from control_world import ENGINE, alone
from leases_world import PROMPT, SIZE, LeaseWorld, pair, settle

from quire.core.calls import Cancel, CloseQueue
from quire.core.errors import ErrorRecord
from quire.core.events import ExchangeEnded, ProgramEnded
from quire.core.exchange import ReceiveEnded
from quire.core.ids import ProgramId, QueueId
from quire.core.lease_commands import Leased
from quire.testing.harness import CommandOutcome

NOTHING = 0, 0


def told(world: LeaseWorld) -> Leased:
    """Open a lease; its message is still with the engine."""
    (outcome,) = world.issue(1, world.open(PROMPT))
    assert world.harness.num_in_flight(ENGINE) == 1
    assert isinstance(outcome.reply, Leased), "no reply before the message has run"
    return outcome.reply


def behind_another_message(world: LeaseWorld) -> CommandOutcome:
    """Open a lease; its message is sent behind one that has not run."""
    world.issue(1, world.open([9, *PROMPT[:3]]))
    (outcome,) = world.issue(1, world.open(PROMPT))
    assert world.harness.num_in_flight(ENGINE) == 2
    assert outcome.status == "pending"
    return outcome


def left(world: LeaseWorld) -> tuple[int, int]:
    """The leases, and the blocks that someone holds."""
    return world.statistics.num_leases, world.pool.num_held


def test_a_lease_is_told_of_while_its_message_runs() -> None:
    sender, receiver = pair()
    lease = told(receiver)
    pages = sender.computed(PROMPT)
    (sent,) = sender.issue(1, sender.send(pages, 0, len(PROMPT), lease))
    sender.run()
    assert sent.status == "pending", "the receiver has not opened the lease yet"
    settle(sender, receiver)
    assert sent.status == "done"
    decoded = receiver.go_on(lease.lease, PROMPT, len(PROMPT) - 1)
    assert decoded.tokens == alone(PROMPT, 8, page_size=SIZE)


def test_a_lease_behind_another_message_is_told_of_when_that_has_run() -> None:
    _, receiver = pair()
    outcome = behind_another_message(receiver)
    assert receiver.harness.step_engine(ENGINE)
    assert receiver.harness.num_in_flight(ENGINE) == 1
    assert outcome.status == "done"
    receiver.run()
    assert receiver.statistics.num_leases == 2


def test_a_lease_that_was_told_of_outlives_its_call_and_its_program() -> None:
    for end in ("queue", "program"):
        sender, receiver = pair()
        lease = told(receiver)
        if end == "queue":
            receiver.harness.call(ProgramId(1), CloseQueue(QueueId(1)))
        else:
            receiver.harness.post(ProgramEnded(time_s=receiver.harness.now_s, program=ProgramId(1)))
        receiver.run()
        assert receiver.statistics.num_leases == 1
        sender.do(1, sender.send(sender.computed(PROMPT), 0, len(PROMPT), lease))
        settle(sender, receiver)
        receiver.program(5)
        taken = receiver.do(5, receiver.take(lease.lease, range(3), len(PROMPT)))[0]
        assert taken.status == "done"


def test_who_cancels_before_a_lease_is_told_of_leaves_nothing() -> None:
    for way in ("cancel", "close", "end"):
        _, receiver = pair()
        outcome = behind_another_message(receiver)
        now_s, one = receiver.harness.now_s, ProgramId(1)
        if way == "cancel":
            receiver.harness.call(one, Cancel(outcome.command.id))
        elif way == "close":
            receiver.harness.call(one, CloseQueue(QueueId(1)))
        else:
            receiver.harness.post(ProgramEnded(time_s=now_s, program=one))
        receiver.run()
        assert outcome.status == "cancelled"
        assert left(receiver) == (1, 1), f"{way}: the lease before it alone"


def test_who_names_a_lease_whose_engine_was_lost_before_it_was_open_learns_it() -> None:
    """The answer promises memory in one life of the engine, and nothing of the message."""
    sender, receiver = pair()
    lease = told(receiver)
    pages = sender.computed(PROMPT)
    (sent,) = sender.issue(1, sender.send(pages, 0, len(PROMPT), lease))
    receiver.program(2)
    (early,) = receiver.issue(2, receiver.take(lease.lease, range(3), 6))
    assert early.status == "pending"
    receiver.harness.lose_engine(ENGINE)
    assert "was lost with its engine" in str(early.error)
    settle(sender)
    assert sent.status == "failed"
    receiver.restart()
    receiver.run()
    receiver.program(3)
    (late,) = receiver.do(3, receiver.take(lease.lease, range(3), 6))
    assert "was lost with its engine" in str(late.error)
    assert left(receiver) == NOTHING


def test_who_waits_for_a_lease_learns_at_once_that_its_engine_was_lost() -> None:
    """Though nothing else of the engine ends with it."""
    _, receiver = pair()
    lease = receiver.lease(PROMPT)
    receiver.program(2)
    (early,) = receiver.issue(2, receiver.take(lease.lease, range(3), 6))
    assert early.status == "pending"
    receiver.harness.lose_engine(ENGINE)
    assert "was lost with its engine" in str(early.error)


def test_who_names_a_lease_that_was_refused_after_it_was_told_of_learns_why() -> None:
    _, receiver = pair()
    lease = told(receiver)
    (early,) = receiver.issue(1, receiver.take(lease.lease, range(3), 6))
    refused = ReceiveEnded(lease=lease.lease.number, error=ErrorRecord("engine_fault", "no slots"))
    receiver.harness.post(
        ExchangeEnded(time_s=receiver.harness.now_s, engine=ENGINE, ended=refused)
    )
    receiver.run()
    assert "has failed: no slots" in str(early.error)
    assert left(receiver) == NOTHING


def test_a_lease_that_is_closed_before_it_is_open_is_closed_behind_its_opening() -> None:
    sender, receiver = pair()
    lease = told(receiver)
    receiver.program(2)
    closed = receiver.issue(2, receiver.close(lease.lease))[0]
    pages = sender.computed(PROMPT)
    (sent,) = sender.issue(1, sender.send(pages, 0, len(PROMPT), lease))
    receiver.run()
    settle(sender)
    assert closed.status == "done"
    kinds = [type(op).__name__ for op in receiver.operations()]
    assert kinds.index("OpenReceive") < kinds.index("CloseReceives")
    assert left(receiver) == NOTHING
    assert sent.status == "failed"


def test_replies_of_one_queue_keep_their_order() -> None:
    """A lease behind a command that has not ended is told of behind it."""
    _, receiver = pair()
    first, second = receiver.issue(1, receiver.open(PROMPT), receiver.open([9, *PROMPT[:4]]))
    assert first.status == "done"
    assert second.status == "pending"
    receiver.run()
    assert second.status == "done"
