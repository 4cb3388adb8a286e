"""The fake engine passes the suite that every engine must pass."""

from __future__ import annotations

from quire.core.engine_info import PoolSpec
from quire.core.interfaces import EngineCore, Tokenizer
from quire.testing import FakeEngine, FakeTokenizer
from quire.testing.conformance import EngineCoreSuite, EngineExchangeSuite
from quire.testing.fake_engine.network import FakeNetwork


class TestFakeEngine(EngineCoreSuite):
    tolerance = 0.0

    def make_engine(self, pool: PoolSpec) -> EngineCore:
        return FakeEngine(pool, adapters=["formal", "brief"])

    def make_tokenizer(self) -> Tokenizer:
        return FakeTokenizer()


class TestFakeExchange(EngineExchangeSuite):
    tolerance = 0.0

    def make_engines(self, sender: PoolSpec, receiver: PoolSpec) -> tuple[EngineCore, EngineCore]:
        network = FakeNetwork(seed=1)
        return FakeEngine(sender, network=network), FakeEngine(receiver, network=network)
