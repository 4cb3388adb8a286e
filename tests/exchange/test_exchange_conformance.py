"""Every transport of K and V passes the suite."""

from __future__ import annotations

import pytest

from quire.core.kv_transport import KVTransport
from quire.exchange import ExchangeLimits, InProcessExchange, TcpTransport
from quire.testing.conformance import KVTransportSuite


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
