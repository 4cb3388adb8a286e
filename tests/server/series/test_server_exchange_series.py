"""The series of K and V between engines."""

from __future__ import annotations

from quire.control.statistics import ExchangeStatistics
from quire.server.series.exchange import exchange_series


class Engine:
    """As much of ``EngineStatistics`` as the series read."""

    def __init__(self, engine: str, *exchanged: ExchangeStatistics) -> None:
        self.engine, self.model, self.exchanged = engine, "m", exchanged
        self.num_device_tokens_sent = 0
        self.num_host_tokens_sent = 0


def test_bytes_and_transfers_have_direction_transport_and_outcome() -> None:
    engines = [
        Engine(
            "m#0",
            ExchangeStatistics("received", "nixl", 2, 0, 300),
            ExchangeStatistics("sent", "", 0, 1, 0),
        ),
        Engine("m#1"),
    ]
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in exchange_series(engines)  # type: ignore[arg-type]
        for sample in family.samples
    }
    assert found == {
        ("quire_kv_transfers_total", "m", "m#0", "received", "nixl", "done"): 2,
        ("quire_kv_transfers_total", "m", "m#0", "received", "nixl", "failed"): 0,
        ("quire_kv_transfers_total", "m", "m#0", "sent", "none", "done"): 0,
        ("quire_kv_transfers_total", "m", "m#0", "sent", "none", "failed"): 1,
        ("quire_kv_transfer_bytes_total", "m", "m#0", "received", "nixl"): 300,
        ("quire_kv_transfer_bytes_total", "m", "m#0", "sent", "none"): 0,
        ("quire_kv_sent_tokens_total", "m", "m#0", "device"): 0,
        ("quire_kv_sent_tokens_total", "m", "m#0", "host"): 0,
    }


def test_sent_tokens_have_the_tier_that_they_came_from() -> None:
    sent = ExchangeStatistics("sent", "tcp", 1, 0, 300)
    one, other = Engine("m#0", sent), Engine("m#1")  # the other one is in no cluster
    one.num_device_tokens_sent, one.num_host_tokens_sent = 40, 7
    found = {
        tuple(sample.labels.values()): sample.value
        for family in exchange_series([one, other])  # type: ignore[list-item]
        for sample in family.samples
        if sample.name == "quire_kv_sent_tokens_total"
    }
    assert found == {("m", "m#0", "device"): 40, ("m", "m#0", "host"): 7}
