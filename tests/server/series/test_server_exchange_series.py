"""The series of K and V between engines."""

from __future__ import annotations

from quire.control.statistics import ExchangeStatistics
from quire.server.series.exchange import exchange_series


class Engine:
    """As much of ``EngineStatistics`` as the series read."""

    def __init__(self, engine: str, *exchanged: ExchangeStatistics) -> None:
        self.engine, self.model, self.exchanged = engine, "m", exchanged


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
    }
