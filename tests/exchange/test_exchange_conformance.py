"""Every transport of K and V passes the suite."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from quire.core.kv_transport import KVTransport
from quire.exchange import ExchangeLimits, InProcessExchange, TcpTransport
from quire.testing.conformance import KVTransportSuite

HAS_NIXL = find_spec("nixl_cu12") is not None


class TestSharedMemory(KVTransportSuite):
    def make_transport(self) -> KVTransport:
        return TcpTransport()


class TestTcp(KVTransportSuite):
    def make_transport(self) -> KVTransport:
        return TcpTransport(limits=ExchangeLimits(shares_memory=False))


class TestInProcess(KVTransportSuite):
    @pytest.fixture(autouse=True)
    def exchange(self) -> None:
        self._exchange = InProcessExchange()

    def make_transport(self) -> KVTransport:
        return self._exchange.join()


@pytest.mark.skipif(not HAS_NIXL, reason="needs NIXL: pip install 'quire[nixl]'")
class TestNixl(KVTransportSuite):
    def make_transport(self) -> KVTransport:
        return TcpTransport(limits=ExchangeLimits(shares_memory=False), has_nixl=True)
