"""Who waits for memory that sends hold: until when, and that the end of a send is noticed."""

from __future__ import annotations

import pytest
from control_world import ENGINE, alone
from leases_world import PROMPT, LeaseWorld, settle

from quire.core.calls import Cancel
from quire.core.events import ExchangeEnded
from quire.core.exchange import SendEnded
from quire.core.ids import CommandId, ProgramId
from quire.core.lease_commands import Leased
from quire.testing.fake_engine.network import FakeNetwork


class SlowSender(LeaseWorld):
    """Its sends end one by one, when a test ends them. ``pages``: those of ``PROMPT``, of program
    1, which has two queues."""

    def __init__(self, network: FakeNetwork, **pool: int) -> None:
        super().__init__(network, **{"num_host_blocks": 0, **pool})
        self.queue(1, 2)
        self.pages = self.computed(PROMPT)
        assert self.engine.exchange is not None
        self.exchange = self.engine.exchange
        self.exchange.is_slow = True

    def begin(self, lease: Leased, queue: int = 1) -> CommandId:
        (sent,) = self.do(1, self.send(self.pages, 0, len(PROMPT), lease), queue=queue)
        assert sent.status == "pending"
        return sent.command.id

    def end_oldest(self) -> None:
        """End the send that has waited longest."""
        assert self.exchange.deliver()
        ended = self.exchange.next_report()
        assert isinstance(ended, SendEnded)
        assert ended.error is None
        self.harness.post(ExchangeEnded(time_s=self.harness.now_s, engine=ENGINE, ended=ended))


def test_nobody_waits_for_sends_that_begin_later() -> None:
    """A program whose sends overlap always has one under way."""
    network = FakeNetwork()
    sender, receiver = SlowSender(network, num_blocks=6), LeaseWorld(network, num_blocks=64)
    leases = [receiver.lease([9, *PROMPT[1:]], key=bytes([n]) * 16) for n in range(3)]
    sender.begin(leases[0])
    sender.program(2)
    waiting = sender.issue(2, sender.alloc(range(6)), sender.decode(range(6), [5, *PROMPT], 6))[1]
    settle(sender)
    assert waiting.status == "pending", waiting.error
    sender.begin(leases[1], queue=2)
    assert waiting.status == "pending", "the first one may free what it needs"
    sender.end_oldest()
    settle(sender)
    assert waiting.error is not None, "it waits for the second one"
    assert waiting.error.code == "pool_exhausted"


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_the_end_of_a_send_is_noticed_beside_a_decode_that_goes_on(is_cancelled: bool) -> None:
    """Nothing becomes free, but its pages may make way again."""
    network = FakeNetwork()
    sender = SlowSender(network, page_size=64, num_blocks=3)
    receiver = LeaseWorld(network, num_blocks=64)
    send = sender.begin(receiver.lease(PROMPT))
    if is_cancelled:  # its program is idle from then on
        sender.harness.call(ProgramId(1), Cancel(send))
    sender.program(2)
    running = sender.issue(2, sender.alloc([0]), sender.decode([0], [5, 6], 58))[1]
    while not running.tokens:
        sender.harness.step()
    sender.program(3)
    prompt = [7, *range(1, 70)]
    waiting = sender.issue(3, sender.alloc([0, 1]), sender.decode([0, 1], prompt, 2))[1]
    for _ in range(4):
        sender.harness.step()
    assert (waiting.tokens, running.status) == ([], "pending")
    sender.end_oldest()
    while not waiting.tokens and running.status == "pending":
        sender.harness.step()
    assert running.status == "pending", "it had to end first"
    settle(sender)
    assert waiting.tokens == alone(prompt, 2, page_size=64)
