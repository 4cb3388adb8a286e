"""``EngineExchangeSuite``: what every engine that exchanges K and V must do.

Run it by subclassing ``EngineExchangeSuite`` beside ``EngineCoreSuite``; ``make_engines`` returns
two engines that reach one another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Event

import pytest

from quire.core.batch import CloseReceives, OpenReceive, SendSlots
from quire.core.batch_result import EngineReport
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

    def sending(self, tokens: Sequence[int], first: int = 0, key: bytes = KEY) -> SendSlots:
        address = self.receiver.info.data_address
        target = SendTarget(address=address, lease=LEASE, key=key, first=first)
        return SendSlots(send=SEND, slots=ints(self.source.flat(tokens)), target=target)

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
