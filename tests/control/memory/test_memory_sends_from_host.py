"""Pages on the host are sent from there: without a block of the device, and whatever becomes of
them meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from control_world import ENGINE, alone
from leases_world import KEY, PROMPT, SIZE, LeaseWorld, settle

from quire.core import commands as c
from quire.core.batch import SendSlots, SwapIn
from quire.core.calls import Cancel
from quire.core.decoding import StopSpec
from quire.core.events import ExchangeEnded, ProgramEnded
from quire.core.exchange import SendEnded
from quire.core.ids import ProgramId
from quire.core.lease_commands import Leased
from quire.testing.fake_engine.network import FakeNetwork
from quire.testing.harness import CommandOutcome

END = len(PROMPT)
NUM_PAGES = 3


class Sender(LeaseWorld):
    """``pages``: those of ``PROMPT``, of program 1, all of them on the host. The program has two
    queues."""

    def __init__(self, network: FakeNetwork, **pool: Any) -> None:
        super().__init__(network, **{"num_blocks": 6, "num_host_blocks": 8, **pool})
        self.queue(1, 2)
        self.pages = self.computed(PROMPT)
        self.push_out()

    @property
    def exchange(self) -> Any:
        assert self.engine.exchange is not None
        return self.engine.exchange

    def push_out(self, program: int = 2, num_tokens: int = 24) -> None:
        """Fill the device with the pages of another program, which then ends."""
        self.program(program)
        pages = range(6)
        (_, decoded) = self.do(
            program, self.alloc(pages), self.decode(pages, [program, *PROMPT], num_tokens)
        )
        assert decoded.status == "done"
        self.end(program)

    def end(self, program: int) -> None:
        self.harness.post(ProgramEnded(time_s=self.harness.now_s, program=ProgramId(program)))

    def begin(self, lease: Leased, begin: int = 0, end: int = END) -> CommandOutcome:
        """Begin to send, and let the message run that does; ``exchange.deliver`` delivers."""
        self.exchange.is_slow = True
        (outcome,) = self.do(1, self.send(self.pages, begin, end, lease))
        assert outcome.status == "pending"
        return outcome

    def deliver(self) -> None:
        self.exchange.is_slow = False
        self.run()

    @property
    def sent(self) -> SendSlots:
        """The only send."""
        (found,) = [op for op in self.operations() if isinstance(op, SendSlots)]
        return found

    @property
    def num_swap_ins(self) -> int:
        return sum(isinstance(op, SwapIn) for op in self.operations())

    @property
    def num_host_taken(self) -> int:
        return self.pool.num_host_blocks - self.pool.num_host_free


def nodes(**pool: Any) -> tuple[Sender, LeaseWorld]:
    network = FakeNetwork()
    sender = Sender(network, **pool)
    assert sender.pool.num_swapped_out == NUM_PAGES
    return sender, LeaseWorld(network)


def arrived(receiver: LeaseWorld, lease: Leased, tokens: Sequence[int] = PROMPT) -> None:
    """Assert that what came is what the sender had."""
    settle(receiver)
    decoded = receiver.go_on(lease.lease, tokens, len(tokens) - 1)
    assert decoded.tokens == alone(tokens, 8, page_size=SIZE)


@pytest.mark.parametrize(("begin", "num_pages"), [(0, 3), (1, 3), (SIZE, 2), (SIZE + 1, 2), (8, 1)])
def test_nothing_is_swapped_in_to_be_sent(begin: int, num_pages: int) -> None:
    sender, receiver = nodes()
    lease = receiver.lease(PROMPT)
    num_free = sender.pool.num_free
    outcome = sender.begin(lease, begin)
    assert sender.pool.num_free == num_free, "no block of the device is used"
    assert (sender.num_swap_ins, sender.pool.num_swapped_in, sender.pool.num_transfers) == (0, 0, 0)
    assert set(sender.sent.slots.tolist()) == {-1}
    assert len({slot // SIZE for slot in sender.sent.host_slots.tolist()}) == num_pages
    sender.deliver()
    assert outcome.reply.num_tokens == END - begin
    assert sender.pool.num_swapped_in == 0
    if begin:
        sender.do(1, sender.send(sender.pages, 0, begin, lease))
    arrived(receiver, lease)


def test_a_full_device_sends_what_is_on_the_host() -> None:
    """No block is free, none can be made so, and none is needed."""
    sender, receiver = nodes()
    lease = receiver.lease(PROMPT)
    sender.program(3)
    pages = range(6)
    running = sender.issue(3, sender.alloc(pages), sender.decode(pages, [8, *PROMPT], 12))[1]
    while not running.tokens:
        sender.harness.step()
    (sent,) = sender.issue(1, sender.send(sender.pages, 0, END, lease))
    settle(sender, receiver)
    assert (sent.status, running.status) == ("done", "done")
    assert sender.num_swap_ins == 0
    arrived(receiver, lease)


def test_pages_of_both_tiers_go_in_one_send() -> None:
    """The page in the middle is used again before, which brings it back."""
    sender, receiver = nodes()
    lease = receiver.lease(PROMPT)
    copy = c.CopyPage(
        id=sender.id(),
        source=sender.pages[1],
        source_offset=0,
        target=300,
        target_offset=0,
        num_slots=SIZE,
    )
    sender.do(1, sender.alloc([300]), copy)
    assert sender.num_swap_ins == 1
    sender.begin(lease)
    are_on_host = [slot < 0 for slot in sender.sent.slots.tolist()]
    assert are_on_host == [True] * SIZE + [False] * SIZE + [True] * 3
    sender.deliver()
    assert sender.num_swap_ins == 1
    assert (sender.figures.num_device_tokens_sent, sender.figures.num_host_tokens_sent) == (4, 7)
    arrived(receiver, lease)


def test_what_is_appended_in_the_same_message_goes_with_what_is_on_the_host() -> None:
    sender, receiver = nodes()
    more = [33, 34, 35, 36, 37]
    lease = receiver.lease([*PROMPT, *more])
    pages = [*sender.pages, 200]
    sender.exchange.is_slow = True
    decode = sender.decode(pages, more, position=END, stop=StopSpec(max_tokens=0))
    outcomes = sender.do(
        1, sender.alloc([200]), decode, sender.send(pages, 0, END + len(more), lease)
    )
    assert [one.status for one in outcomes] == ["done", "done", "pending"]
    assert not (sender.sent.slots < 0).any(), "the decode has read what is before it"
    sender.deliver()
    arrived(receiver, lease, [*PROMPT, *more])


def test_what_is_on_the_disk_comes_to_the_device_first() -> None:
    network = FakeNetwork()
    sender = Sender(network, num_host_blocks=2, num_disk_blocks=8)
    receiver = LeaseWorld(network)
    assert (sender.num_host_taken, sender.pool.num_disk_free) == (1, 6), "a reserve is free"
    lease = receiver.lease(PROMPT)
    sender.begin(lease)
    assert sender.pool.num_disk_read == 2
    assert sender.num_swap_ins == 0
    assert (sender.sent.slots < 0).sum() in (3, 4), "the page on the host is sent from there"
    sender.deliver()
    arrived(receiver, lease)


def test_room_for_what_is_on_the_disk_is_not_made_of_what_is_on_the_host() -> None:
    """Both are of one send. The host and the disk are full: what makes way can only be dropped."""
    network = FakeNetwork()
    sender = Sender(network, num_host_blocks=2, num_disk_blocks=2)
    receiver = LeaseWorld(network)
    assert (sender.num_host_taken, sender.pool.num_disk_free) == (1, 0)
    sender.program(3)
    decode = sender.decode(range(6), [8, *PROMPT], 12)
    assert sender.do(3, sender.alloc(range(6)), decode)[1].status == "done"
    lease = receiver.lease(PROMPT)
    num_tokens = sender.figures.num_tokens
    sender.begin(lease)
    assert (sender.sent.slots < 0).any()
    assert sender.figures.num_tokens == num_tokens, "nothing is computed again"
    sender.deliver()
    arrived(receiver, lease)


def test_its_pages_may_end_meanwhile() -> None:
    """The blocks are not used again before the send has ended."""
    sender, receiver = nodes(num_host_blocks=NUM_PAGES)
    lease = receiver.lease(PROMPT)
    outcome = sender.begin(lease)
    sender.end(1)
    sender.run()
    assert (outcome.status, sender.num_host_taken) == ("cancelled", NUM_PAGES)
    sender.program(3)
    pages = range(6)
    decoded = sender.do(3, sender.alloc(pages), sender.decode(pages, [9, *PROMPT[:6]], 4))[1]
    assert decoded.tokens == alone([9, *PROMPT[:6]], 4, page_size=SIZE)
    assert sender.pool.num_swapped_out == NUM_PAGES, "the host has no block for another one"
    sender.deliver()
    arrived(receiver, lease)
    sender.controller.check_invariants()
    assert sender.num_host_taken == sender.pool.num_host_cached


def test_they_may_come_back_meanwhile_and_be_written() -> None:
    sender, receiver = nodes()
    lease = receiver.lease(PROMPT)
    sender.begin(lease)
    held = sender.num_host_taken
    decode = sender.decode([*sender.pages, 200, 201], [7], 4, position=END)
    decoded = sender.do(1, sender.alloc([200, 201]), decode, queue=2)[1]
    assert decoded.tokens == alone([*PROMPT, 7], 4, page_size=SIZE)
    assert sender.pool.num_swapped_in == NUM_PAGES
    assert sender.num_host_taken == held, "the send reads them there"
    assert sender.pool.num_free + sender.pool.num_cached == 6 - 4, "no page is copied to be written"
    sender.deliver()
    assert sender.num_host_taken == held - NUM_PAGES
    arrived(receiver, lease)


def test_no_page_that_is_sent_makes_way_on_the_host() -> None:
    """What is pushed out meanwhile is dropped, or goes where nothing is sent from."""
    sender, receiver = nodes(num_host_blocks=NUM_PAGES + 1, num_disk_blocks=8)
    lease = receiver.lease(PROMPT)
    sender.begin(lease)
    sender.program(3)
    pages = range(3)
    prefill = sender.decode(pages, [5, *PROMPT], stop=StopSpec(max_tokens=0))
    assert sender.do(3, sender.alloc(pages), prefill)[1].status == "done"
    sender.push_out(4)
    assert sender.pool.num_disk_written > 0
    sender.deliver()
    arrived(receiver, lease)
    assert sender.num_swap_ins == 0


@pytest.mark.parametrize("ends", [True, False])
def test_who_finds_no_room_on_the_host_is_tried_again_when_the_send_ends(ends: bool) -> None:
    """Opaque pages can go nowhere else: a command that needs their blocks waits for the send. What
    it has sent is then dropped, or has ended before."""
    sender, receiver = nodes(num_host_blocks=NUM_PAGES)
    lease = receiver.lease(PROMPT)
    sender.begin(lease)
    if ends:
        sender.end(1)
    sender.program(3)
    pages = list(range(500, 504))
    embeds = range(len(pages) * SIZE)
    opaque = [
        sender.alloc(pages),
        sender.alloc_embeds(embeds),
        sender.embed(embeds, [3] * len(embeds), position=5),
        sender.forward([], embeds, pages),
    ]
    assert [one.status for one in sender.do(3, *opaque)] == ["done"] * 4
    sender.program(4)
    four = range(4)
    waiting = sender.issue(4, sender.alloc(four), sender.decode(four, PROMPT, 4))[1]
    settle(sender)
    assert waiting.status == "pending", waiting.error
    sender.deliver()
    assert waiting.tokens == alone(PROMPT, 4, page_size=SIZE)
    arrived(receiver, lease)


def test_two_sends_of_one_page_hold_it_until_both_have_ended() -> None:
    sender, receiver = nodes()
    lease = receiver.lease(PROMPT[:SIZE])
    other = receiver.lease([1, *PROMPT[: SIZE - 1]], key=b"o" * 16)
    sender.exchange.is_slow = True
    for queue, to in enumerate((lease, other), 1):
        (sent,) = sender.do(1, sender.send(sender.pages, 0, SIZE, to), queue=queue)
        assert sent.status == "pending"
    sender.end(1)
    sender.run()
    taken = sender.num_host_taken
    sender.exchange.deliver()
    ended = sender.engine.transfer()
    assert isinstance(ended, SendEnded)
    sender.harness.post(ExchangeEnded(time_s=sender.harness.now_s, engine=ENGINE, ended=ended))
    assert sender.num_host_taken == taken, "the second one reads it still"
    sender.deliver()
    sender.controller.check_invariants()
    assert sender.num_host_taken == sender.pool.num_host_cached
    assert receiver.figures.num_tokens == 0


def test_a_cancelled_send_holds_its_pages_until_the_engine_has_ended_it() -> None:
    sender, receiver = nodes()
    lease = receiver.lease(PROMPT)
    outcome = sender.begin(lease)
    sender.harness.call(ProgramId(1), Cancel(outcome.command.id))
    sender.do(1, sender.dealloc(sender.pages), queue=2)
    taken = sender.num_host_taken
    assert outcome.status == "cancelled"
    sender.push_out(3)
    assert sender.num_host_taken >= taken
    sender.deliver()
    arrived(receiver, lease)
    sender.controller.check_invariants()


def test_an_engine_that_is_lost_has_nothing_lent() -> None:
    sender, receiver = nodes()
    lease = receiver.lease(PROMPT)
    outcome = sender.begin(lease)
    sender.harness.lose_engine(ENGINE)
    assert outcome.status == "failed"
    sender.restart()
    sender.run()
    assert sender.num_host_taken == 0
    sender.controller.check_invariants()
    again = receiver.lease([4, *PROMPT], key=KEY)
    (sent,) = sender.do(1, sender.send(sender.pages, 0, END, again), queue=2)
    assert sent.status == "done"
    assert sender.num_swap_ins == 0


def test_what_can_be_found_by_content_is_sent_from_the_host_too() -> None:
    """As ``remote_send`` does it: it maps what is cached, and sends that at once."""
    sender, receiver = nodes()
    sender.end(1)
    sender.program(3)
    lease = receiver.lease(PROMPT[: 2 * SIZE])
    found = c.ImportPrefix(id=sender.id(), tokens=PROMPT, pages=[600, 601])
    sent = sender.do(3, found, sender.send([600, 601], 0, 2 * SIZE, lease))
    assert [one.status for one in sent] == ["done", "done"]
    assert sent[0].reply.num_tokens == 2 * SIZE
    assert (sender.num_swap_ins, sender.figures.num_host_tokens_sent) == (0, 2 * SIZE)
    arrived(receiver, lease, PROMPT[: 2 * SIZE])
