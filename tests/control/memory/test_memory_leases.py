"""Leases: what another engine sends is as if it had been computed here, and nobody sees it before
all of it has arrived."""

from __future__ import annotations

import pytest
from control_world import ENGINE, alone
from leases_world import PROMPT, SIZE, pair, settle

from quire.core.batch import CloseReceives, OpenReceive
from quire.core.calls import Cancel
from quire.core.errors import EngineFault, ErrorRecord
from quire.core.events import ExchangeEnded, ProgramEnded
from quire.core.exchange import ReceiveEnded, SendEnded
from quire.core.ids import ProgramId


def test_what_another_engine_sends_is_as_if_it_had_been_computed_here() -> None:
    sender, receiver = pair()
    end = len(PROMPT) - 1
    lease = receiver.lease(PROMPT[:end])
    pages = sender.computed(PROMPT[:end])
    (sent,) = sender.issue(1, sender.send(pages, 0, end, lease))
    settle(sender, receiver)
    assert (sent.status, sent.reply.num_tokens) == ("done", end)
    assert sent.reply.transport == "in_process"
    decoded = receiver.go_on(lease.lease, PROMPT, end)
    assert decoded.tokens == alone(PROMPT, 8, page_size=SIZE)
    assert receiver.figures.num_tokens < len(PROMPT)


def test_a_lease_shows_nothing_before_all_of_it_has_arrived() -> None:
    sender, receiver = pair()
    lease = receiver.lease(PROMPT)
    assert (receiver.pool.num_held, lease.num_matched, lease.num_tokens) == (3, 0, len(PROMPT))
    pages = sender.computed(PROMPT)
    sender.do(1, sender.send(pages, 0, 6, lease))
    settle(sender, receiver)
    receiver.program(2)
    other = receiver.do(2, receiver.alloc(range(5)), receiver.decode(range(5), PROMPT))[1]
    assert other.tokens == alone(PROMPT, 8, page_size=SIZE)
    assert other.chunks[0].num_cached_tokens == 0
    (early,) = receiver.issue(1, receiver.take(lease.lease, range(3), 6))
    assert early.status == "pending"
    sender.do(1, sender.send(pages, 6, len(PROMPT), lease))
    settle(sender, receiver)
    assert [page.fill for page in early.reply.pages] == [4, 2]
    assert receiver.statistics.num_leases == 0


def test_who_waits_for_a_lease_learns_that_it_has_ended() -> None:
    _, receiver = pair()
    lease = receiver.lease(PROMPT, ttl_s=5.0)
    (early,) = receiver.issue(1, receiver.take(lease.lease, range(3), 6))
    receiver.harness.clock.advance(5.0)
    receiver.tick()
    assert "has expired" in str(early.error)


def test_who_waits_for_a_lease_learns_why_it_could_not_be_received() -> None:
    _, receiver = pair()
    lease = receiver.lease(PROMPT)
    (early,) = receiver.issue(1, receiver.take(lease.lease, range(3), 6))
    ended = ReceiveEnded(
        lease=lease.lease.number, error=ErrorRecord("engine_fault", "a piece is damaged")
    )
    receiver.harness.post(ExchangeEnded(time_s=receiver.harness.now_s, engine=ENGINE, ended=ended))
    receiver.run()
    assert "has failed: a piece is damaged" in str(early.error)
    assert (receiver.statistics.num_leases, receiver.pool.num_held) == (0, 0)


def test_full_pages_that_arrive_are_known_to_the_prefix_index() -> None:
    sender, receiver = pair()
    lease = receiver.lease(PROMPT)
    sender.do(1, sender.send(sender.computed(PROMPT), 0, len(PROMPT), lease))
    settle(sender, receiver)
    decode = receiver.do(1, receiver.alloc(range(5)), receiver.decode(range(5), PROMPT))[1]
    assert decode.chunks[0].num_cached_tokens == 2 * SIZE
    assert decode.tokens == alone(PROMPT, 8, page_size=SIZE)


@pytest.mark.parametrize("begin", [0, SIZE, SIZE + 2])
def test_what_the_receiver_has_is_not_sent_again(begin: int) -> None:
    """Both cases of the paper's 3.5: the receiver's match ends before the sender's begin, and
    beyond it. Several senders make one lease complete."""
    sender, receiver = pair()
    receiver.computed(PROMPT[: SIZE + 1])
    lease = receiver.lease(PROMPT)
    assert lease.num_matched == SIZE
    pages = sender.computed(PROMPT)
    start = max(begin, lease.num_matched)
    sender.do(1, sender.send(pages, start, len(PROMPT), lease))
    if start > lease.num_matched:
        sender.do(1, sender.send(pages, lease.num_matched, start, lease))
    settle(sender, receiver)
    decoded = receiver.go_on(lease.lease, PROMPT, len(PROMPT) - 1)
    assert decoded.tokens == alone(PROMPT, 8, page_size=SIZE)


def test_a_lease_of_what_is_here_is_complete_at_once() -> None:
    _, receiver = pair()
    receiver.computed(PROMPT)
    lease = receiver.lease(PROMPT[: 2 * SIZE])
    assert lease.num_matched == lease.num_tokens == 2 * SIZE
    assert not any(isinstance(op, OpenReceive) for op in receiver.operations())
    decoded = receiver.go_on(lease.lease, PROMPT, 2 * SIZE)
    assert decoded.tokens == alone(PROMPT, 8, page_size=SIZE)
    nothing = receiver.lease([])
    assert (nothing.num_matched, nothing.num_tokens) == (0, 0)


def test_an_expired_lease_is_fenced_before_its_blocks_are_free() -> None:
    sender, receiver = pair()
    lease = receiver.lease(PROMPT, ttl_s=5.0)
    pages = sender.computed(PROMPT)
    receiver.harness.clock.advance(5.0)
    receiver.tick()
    assert receiver.statistics.num_leases == 0
    assert receiver.pool.num_held == 3, "the engine may still write"
    receiver.run()
    assert receiver.pool.num_held == 0
    assert any(isinstance(op, CloseReceives) for op in receiver.operations())
    (late,) = sender.do(1, sender.send(pages, 0, len(PROMPT), lease))
    assert late.status == "failed"
    assert "is not open" in str(late.error)
    taken = receiver.do(1, receiver.take(lease.lease, range(3), 4))[0]
    assert "has expired" in str(taken.error)


def test_what_arrives_before_the_fence_changes_nothing() -> None:
    sender, receiver = pair()
    lease = receiver.lease(PROMPT, ttl_s=5.0)
    sender.do(1, sender.send(sender.computed(PROMPT), 0, len(PROMPT), lease))
    receiver.harness.clock.advance(5.0)
    receiver.tick()  # the engine has all of it, control has not heard of it
    settle(sender, receiver)
    assert (receiver.pool.num_held, receiver.pool.num_cached) == (0, 0)


def test_a_complete_lease_expires_and_leaves_its_pages_to_the_index() -> None:
    sender, receiver = pair()
    lease = receiver.lease(PROMPT, ttl_s=5.0)
    sender.do(1, sender.send(sender.computed(PROMPT), 0, len(PROMPT), lease))
    settle(sender, receiver)
    receiver.harness.clock.advance(5.0)
    receiver.tick()
    receiver.run()
    assert (receiver.pool.num_held, receiver.pool.num_cached) == (0, 2)


def test_a_renewed_lease_lives_on() -> None:
    _, receiver = pair()
    lease = receiver.lease(PROMPT, ttl_s=5.0)
    receiver.harness.clock.advance(4.0)
    assert receiver.do(1, receiver.renew(lease.lease, 5.0))[0].status == "done"
    receiver.harness.clock.advance(4.0)
    receiver.tick()
    assert receiver.statistics.num_leases == 1
    receiver.harness.clock.advance(1.0)
    receiver.tick()
    assert receiver.statistics.num_leases == 0


def test_a_lease_that_is_renewed_again_and_again_takes_no_more_memory() -> None:
    """Long and short terms alternate, so the expiry of a long one is never the next."""
    _, receiver = pair()
    lease = receiver.lease(PROMPT, ttl_s=5.0)
    for ttl_s in [60.0, 5.0] * 200:
        receiver.do(1, receiver.renew(lease.lease, ttl_s))
    leases = receiver.harness.controller._host.leases
    assert len(leases._expiries) < 80
    assert leases.next_expiry_s() == pytest.approx(5.0, abs=0.1)


@pytest.mark.parametrize("state", ["waiting", "partly", "complete"])
def test_a_lease_is_cancelled_in_every_state(state: str) -> None:
    sender, receiver = pair()
    lease = receiver.lease(PROMPT)
    pages = sender.computed(PROMPT)
    if state != "waiting":
        end = len(PROMPT) if state == "complete" else 5
        sender.do(1, sender.send(pages, 0, end, lease))
        settle(sender, receiver)
    assert receiver.do(1, receiver.close(lease.lease))[0].status == "done"
    receiver.run()
    assert receiver.pool.num_held == 0
    again = receiver.do(1, receiver.close(lease.lease))[0]
    assert "was cancelled" in str(again.error)


def test_a_lease_is_taken_once() -> None:
    sender, receiver = pair()
    lease = receiver.lease(PROMPT)
    sender.do(1, sender.send(sender.computed(PROMPT), 0, len(PROMPT), lease))
    settle(sender, receiver)
    taken, again = receiver.do(
        1,
        receiver.take(lease.lease, range(3), len(PROMPT)),
        receiver.take(lease.lease, range(3, 6), len(PROMPT)),
    )
    assert [page.fill for page in taken.reply.pages] == [4, 4, 3]
    assert "was taken" in str(again.error)


def test_a_lost_receiver_ends_its_leases_and_a_lost_sender_its_sends() -> None:
    sender, receiver = pair()
    lease = receiver.lease(PROMPT)
    pages = sender.computed(PROMPT)
    sender.engine.exchange.is_slow = True
    (send,) = sender.do(1, sender.send(pages, 0, len(PROMPT), lease))
    assert send.status == "pending"
    sender.harness.lose_engine(ENGINE)
    assert send.error is not None
    assert send.error.code == "engine_lost"
    receiver.harness.lose_engine(ENGINE)
    assert (receiver.pool.num_held, receiver.statistics.num_leases) == (0, 0)
    receiver.restart()
    taken = receiver.do(1, receiver.take(lease.lease, range(3), 4))[0]
    assert "was lost with its engine" in str(taken.error)


def test_a_lease_of_the_engine_before_is_unknown() -> None:
    _, receiver = pair()
    receiver.harness.lose_engine(ENGINE)
    receiver.restart()
    assert receiver.lease(PROMPT).lease.epoch == 1


def test_what_is_sent_stays_as_it_is_whatever_its_program_does() -> None:
    """A cancelled send, a page that is written on, a program that ends."""
    sender, receiver = pair()
    lease = receiver.lease(PROMPT)
    pages = sender.computed(PROMPT)
    sender.engine.exchange.is_slow = True
    (send,) = sender.do(1, sender.send(pages, 0, len(PROMPT), lease))
    sender.harness.call(ProgramId(1), Cancel(send.command.id))
    assert send.status == "cancelled"
    (more,) = sender.do(1, sender.decode(pages, [99], 0, position=len(PROMPT)))
    assert more.status == "done"
    sender.harness.post(ProgramEnded(time_s=sender.harness.now_s, program=ProgramId(1)))
    sender.run()
    assert sender.pool.num_held == 3, "the engine still reads"
    sender.engine.exchange.is_slow = False
    settle(sender, receiver)
    assert sender.pool.num_held == 0
    decoded = receiver.go_on(lease.lease, PROMPT, len(PROMPT) - 1)
    assert decoded.tokens == alone(PROMPT, 8, page_size=SIZE)


def test_leases_give_way_to_programs() -> None:
    """A complete one is moved out; one that waits for tokens is closed when nobody can go on."""
    sender, receiver = pair(num_blocks=8, num_host_blocks=0)
    lease = receiver.lease(PROMPT)
    sender.do(1, sender.send(sender.computed(PROMPT), 0, len(PROMPT), lease))
    settle(sender, receiver)
    waiting = receiver.lease([9, *PROMPT[: 2 * SIZE]], key=b"k" * 16)
    receiver.program(2)
    pages = range(8)
    decode = receiver.do(2, receiver.alloc(pages), receiver.decode(pages, [7, *PROMPT], 20))[1]
    assert decode.tokens == alone([7, *PROMPT], 20, page_size=SIZE)
    receiver.program(3)
    closed = receiver.do(3, receiver.take(waiting.lease, range(3), 4))[0]
    assert "needed its blocks" in str(closed.error)
    receiver.harness.post(ProgramEnded(time_s=receiver.harness.now_s, program=ProgramId(2)))
    decoded = receiver.go_on(lease.lease, PROMPT, len(PROMPT) - 1)
    assert decoded.tokens == alone(PROMPT, 8, page_size=SIZE)


def test_an_engine_that_reports_what_it_was_not_asked_for_is_lost() -> None:
    _, receiver = pair()
    for ended in (SendEnded(send=7), ReceiveEnded(lease=7)):
        with pytest.raises(EngineFault, match="7, "):
            receiver.harness.post(
                ExchangeEnded(time_s=receiver.harness.now_s, engine=ENGINE, ended=ended)
            )
