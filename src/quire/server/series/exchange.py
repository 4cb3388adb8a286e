"""Series of K and V between engines: bytes and transfers by what has carried them.

Owns their names. What moves between the tiers of one engine are other series.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, Metric

from quire.control import EngineStatistics

_LABELS = ("model_name", "engine", "direction", "transport")
_UNKNOWN = "none"
"""The transport of what ended before any byte went."""


def exchange_series(engines: Sequence[EngineStatistics]) -> Iterator[Metric]:
    """Yield the series of all ``engines``: those of an engine appear with its first transfer."""
    transfers = CounterMetricFamily(
        "quire_kv_transfers",
        "Transfers of K and V to (sent) and from (received) other engines that have ended, by what "
        "carried them (nixl, shared_memory, tcp, in_process) and outcome (done, failed)",
        labels=(*_LABELS, "outcome"),
    )
    num_bytes = CounterMetricFamily(
        "quire_kv_transfer_bytes",
        "Bytes of K and V to (sent) and from (received) other engines, by what carried them",
        labels=_LABELS,
    )
    tokens = CounterMetricFamily(
        "quire_kv_sent_tokens",
        "Tokens that other engines have received, by the tier that they were sent from "
        "(device, host)",
        labels=("model_name", "engine", "tier"),
    )
    for engine in engines:
        sent = ("device", engine.num_device_tokens_sent), ("host", engine.num_host_tokens_sent)
        for tier, num_tokens in sent if engine.exchanged else ():
            tokens.add_metric([engine.model, engine.engine, tier], num_tokens)
        for one in engine.exchanged:
            labels = [engine.model, engine.engine, one.direction, one.transport or _UNKNOWN]
            num_bytes.add_metric(labels, one.num_bytes)
            for outcome, count in (("done", one.num_done), ("failed", one.num_failed)):
                transfers.add_metric([*labels, outcome], count)
    yield transfers
    yield num_bytes
    yield tokens
