"""``EngineExchangeSuite``: what every engine that exchanges K and V must do.

Run it by subclassing ``EngineExchangeSuite`` beside ``EngineCoreSuite``; ``make_engines`` returns
two engines that reach one another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from threading import Event

import pytest

from quire.core.batch import CloseReceives, OpenReceive, SendSlots, SwapIn
from quire.core.batch_result import EngineReport, TransfersEnded
from quire.core.engine_info import PoolSpec
from quire.core.exchange import ReceiveEnded, SendEnded, SendTarget
from quire.core.interfaces import EngineCore
from quire.testing.conformance.engine_driver import EngineDriver, Logprobs
from quire.testing.conformance.engine_rows import Holder, RowSpec, ints
from quire.testing.conformance.engine_suite import EngineSuite
from quire.testing.fake_engine import fake_pool

KEY = b"sixteen secret b"
LEASE, SEND = 4, 7
_PATIENCE_S = 60.0
_PAGE_SIZES = ((4, 4), (4, 1), (1, 4), (16, 2))
_NUM_TOKENS = 11


class Pair:
    """Two engines, each with one table of consecutive tokens."""

    def __init__(self, sender: EngineCore, receiver: EngineCore) -> None:
        self.sender, self.receiver = EngineDriver(sender), EngineDriver(receiver)
        self._rung = Event()
        for driver in self.sender, self.receiver:
            driver.engine.wake_by(self._rung.set)
        group = self.sender.info.pool.groups[0]
        assert group.num_host_blocks >= 32, "the sender needs a host tier"
        self.source, self.target = (
            driver.holder(range(driver.pages_for(_NUM_TOKENS + 1)))
            for driver in (self.sender, self.receiver)
        )

    def reports(self, count: int) -> list[EngineReport]:
        """The next reports of both engines; waits for them."""
        found: list[EngineReport] = []
        while len(found) < count:
            self._rung.clear()
            some = [driver.engine.transfer() for driver in (self.receiver, self.sender)]
            found += [report for report in some if report is not None]
            if some == [None, None]:
                assert self._rung.wait(_PATIENCE_S), f"only {found} came"
        return found

    def is_quiet(self) -> bool:
        """Whether the receiver has nothing to report."""
        return self.receiver.engine.transfer() is None

    def opening(self, tokens: Sequence[int]) -> OpenReceive:
        return OpenReceive(lease=LEASE, key=KEY, slots=ints(self.target.flat(tokens)))

    def sending(
        self,
        tokens: Sequence[int],
        first: int = 0,
        key: bytes = KEY,
        on_host: Collection[int] | None = None,
    ) -> SendSlots:
        """Send ``tokens``; those ``on_host`` from the blocks that ``swap_out`` filled."""
        address = self.receiver.info.data_address
        target = SendTarget(address=address, lease=LEASE, key=key, first=first)
        slots = self.source.flat(tokens)
        if on_host is None:
            return SendSlots(send=SEND, slots=ints(slots), target=target)
        are_there = [token in on_host for token in tokens]
        size = self.sender.page_size
        return SendSlots(
            send=SEND,
            slots=ints([-1 if there else s for s, there in zip(slots, are_there, strict=True)]),
            host_slots=ints(
                [
                    self._host_block(token // size) * size + token % size if there else -1
                    for token, there in zip(tokens, are_there, strict=True)
                ]
            ),
            target=target,
        )

    def _host_block(self, page: int) -> int:
        """Not that of the device, and in another order."""
        return 2 * (len(self.source.blocks) - page)

    @property
    def _pages(self) -> range:
        return range(len(self.source.blocks))

    def swap_out(self) -> None:
        """Copy the sender's pages to the host; the device has them still."""
        host_blocks = [self._host_block(page) for page in self._pages]
        self.sender.swap(self.sender.begin_swap_out(self.source.blocks, host_blocks))

    def swapping_in(self) -> SwapIn:
        """The operation that brings them back."""
        host_blocks = [self._host_block(page) for page in self._pages]
        return self.sender.begin_swap_in(host_blocks, self.source.blocks)

    def overwrite(self, tokens: Sequence[int]) -> None:
        """Write other tokens, at other positions, where the sender's are on the device."""
        positions = range(50, 50 + len(tokens))
        holder = self.sender.holder(self.source.blocks)
        self.sender.forward([RowSpec(holder, tokens, positions, range(len(tokens)))])

    def sent(self) -> SendEnded:
        (report,) = self.reports(1)
        assert isinstance(report, SendEnded)
        assert report.send == SEND
        return report


class EngineExchangeSuite(EngineSuite):
    """See the module docstring."""

    def make_engines(self, sender: PoolSpec, receiver: PoolSpec) -> tuple[EngineCore, EngineCore]:
        """Two fresh engines of one model, with these pools, that reach one another."""
        raise NotImplementedError("say how to make two engines that exchange")

    @pytest.fixture(params=_PAGE_SIZES, ids=lambda sizes: f"pages of {sizes[0]} and {sizes[1]}")
    def pair(self, request: pytest.FixtureRequest) -> Iterator[Pair]:
        pools = [
            fake_pool(page_size=size, num_blocks=max(16, 96 // size)) for size in request.param
        ]
        engines = self.make_engines(*pools)
        yield Pair(*engines)
        for engine in engines:
            engine.close()

    def after(self, driver: EngineDriver, holder: Holder) -> Logprobs:
        """The log probabilities after one more token behind the prompt."""
        holder.show(0, _NUM_TOKENS)
        (found,) = driver.forward([RowSpec(holder, [5], [_NUM_TOKENS])])
        return found

    def assert_arrived(self, pair: Pair) -> None:
        expected, found = (
            self.after(driver, holder)
            for driver, holder in ((pair.sender, pair.source), (pair.receiver, pair.target))
        )
        self.assert_same(found, expected)

    def test_an_address_is_told(self, pair: Pair) -> None:
        assert pair.sender.info.data_address != pair.receiver.info.data_address
        assert pair.sender.info.content == pair.receiver.info.content

    def test_what_comes_is_what_was_computed(self, pair: Pair) -> None:
        tokens = range(_NUM_TOKENS)
        pair.sender.prefill(pair.source, self.prompt(pair.sender, _NUM_TOKENS))
        pair.receiver.execute(operations=[pair.opening(tokens)])
        assert pair.is_quiet()
        pair.sender.execute(operations=[pair.sending(tokens)])
        received, sent = sorted(pair.reports(2), key=lambda report: isinstance(report, SendEnded))
        assert isinstance(received, ReceiveEnded)
        assert isinstance(sent, SendEnded)
        assert (received.lease, received.num_tokens) == (LEASE, _NUM_TOKENS)
        assert (sent.send, sent.num_bytes) == (SEND, received.num_bytes)
        assert received.error is None
        assert sent.error is None
        self.assert_arrived(pair)

    def test_it_comes_in_parts_and_in_any_order(self, pair: Pair) -> None:
        pair.sender.prefill(pair.source, self.prompt(pair.sender, _NUM_TOKENS))
        pair.receiver.execute(operations=[pair.opening(range(_NUM_TOKENS))])
        pair.sender.execute(operations=[pair.sending(range(6, _NUM_TOKENS), first=6)])
        assert pair.sent().error is None
        assert pair.is_quiet(), "tokens are missing"
        pair.sender.execute(operations=[pair.sending(range(6))])
        pair.reports(2)
        self.assert_arrived(pair)

    def send_whole(self, pair: Pair, on_host: Collection[int]) -> None:
        """Send all tokens, those ``on_host`` from there, and wait for both ends."""
        tokens = range(_NUM_TOKENS)
        pair.receiver.execute(operations=[pair.opening(tokens)])
        result = pair.sender.execute(operations=[pair.sending(tokens, on_host=on_host)])
        assert not result.failures, result.failures
        for report in pair.reports(2):
            assert isinstance(report, ReceiveEnded | SendEnded)
            assert report.error is None

    def test_what_is_on_the_host_is_sent_from_there(self, pair: Pair) -> None:
        """With the positions that it had: the device has something else in these blocks."""
        pair.sender.prefill(pair.source, self.prompt(pair.sender, _NUM_TOKENS))
        expected = self.after(pair.sender, pair.source)
        pair.swap_out()
        pair.overwrite(self.prompt(pair.sender, _NUM_TOKENS, seed=9))
        self.assert_different(self.after(pair.sender, pair.source), expected)
        self.send_whole(pair, range(_NUM_TOKENS))
        self.assert_same(self.after(pair.receiver, pair.target), expected)

    @pytest.mark.parametrize("on_host", [range(4), range(4, 8), range(0, _NUM_TOKENS, 2)])
    def test_tokens_of_both_tiers_arrive_in_order(
        self, pair: Pair, on_host: Collection[int]
    ) -> None:
        pair.sender.prefill(pair.source, self.prompt(pair.sender, _NUM_TOKENS))
        pair.swap_out()
        self.send_whole(pair, on_host)
        self.assert_arrived(pair)

    def test_what_is_sent_from_the_host_may_come_back_meanwhile(self, pair: Pair) -> None:
        tokens = range(_NUM_TOKENS)
        pair.sender.prefill(pair.source, self.prompt(pair.sender, _NUM_TOKENS))
        expected = self.after(pair.sender, pair.source)
        pair.swap_out()
        pair.overwrite(self.prompt(pair.sender, _NUM_TOKENS, seed=9))
        pair.receiver.execute(operations=[pair.opening(tokens)])
        coming = pair.swapping_in()
        pair.sender.execute(operations=[pair.sending(tokens, on_host=tokens), coming])
        ended: list[int] = []
        reports: list[EngineReport] = []
        while len(ended) < len(coming.transfers) or len(reports) < 2:
            for report in pair.reports(1):
                if isinstance(report, TransfersEnded):
                    ended += report.transfers.tolist()
                else:
                    reports.append(report)
        self.assert_same(self.after(pair.receiver, pair.target), expected)
        self.assert_same(self.after(pair.sender, pair.source), expected)

    def test_a_message_computes_behind_what_it_sends_from_the_host(self, pair: Pair) -> None:
        prompt, tokens = self.prompt(pair.sender, _NUM_TOKENS), range(_NUM_TOKENS)
        pair.sender.prefill(pair.source, prompt[:6])
        pair.swap_out()
        pair.receiver.execute(operations=[pair.opening(tokens)])
        span = range(6, _NUM_TOKENS)
        row = RowSpec(pair.source, prompt[6:], span, span)
        pair.sender.forward([row], [pair.sending(tokens, on_host=range(6))])
        for report in pair.reports(2):
            assert isinstance(report, ReceiveEnded | SendEnded)
            assert report.error is None
        self.assert_arrived(pair)

    def test_rows_that_keep_nothing_disturb_no_send_from_the_host(self, pair: Pair) -> None:
        """They have no slot, and neither has the device of what is sent."""
        tokens = range(_NUM_TOKENS)
        pair.sender.prefill(pair.source, self.prompt(pair.sender, _NUM_TOKENS))
        expected = self.after(pair.sender, pair.source)
        pair.swap_out()
        pair.receiver.execute(operations=[pair.opening(tokens)])
        row = RowSpec(pair.source, [5], [_NUM_TOKENS])
        pair.sender.forward([row], [pair.sending(tokens, on_host=tokens)])
        for report in pair.reports(2):
            assert isinstance(report, ReceiveEnded | SendEnded)
            assert report.error is None
        self.assert_same(self.after(pair.receiver, pair.target), expected)

    def test_another_key_writes_nothing(self, pair: Pair) -> None:
        tokens = range(_NUM_TOKENS)
        pair.sender.prefill(pair.source, self.prompt(pair.sender, _NUM_TOKENS))
        pair.receiver.execute(operations=[pair.opening(tokens)])
        pair.sender.execute(operations=[pair.sending(tokens, key=b"another secret b")])
        assert pair.sent().error is not None
        assert pair.is_quiet()
        pair.sender.execute(operations=[pair.sending(tokens)])
        pair.reports(2)
        self.assert_arrived(pair)

    def test_after_a_close_nothing_is_written(self, pair: Pair) -> None:
        tokens, prompt = range(_NUM_TOKENS), self.prompt(pair.receiver, _NUM_TOKENS, seed=3)
        pair.sender.prefill(pair.source, self.prompt(pair.sender, _NUM_TOKENS))
        pair.receiver.execute(operations=[pair.opening(tokens)])
        pair.receiver.execute(operations=[CloseReceives(leases=[LEASE, LEASE + 1])])
        pair.receiver.prefill(pair.target, prompt)
        before = self.after(pair.receiver, pair.target)
        pair.sender.execute(operations=[pair.sending(tokens)])
        assert pair.sent().error is not None
        assert pair.is_quiet()
        self.assert_same(self.after(pair.receiver, pair.target), before)
