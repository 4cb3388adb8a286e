"""Encoders in /metrics: the requests that wait for each, and the work that each instance has
done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from quire.control import EncoderStatistics, InstanceStatistics
from quire.node.encoders.kept_rows import KeptRowsStatistics

_WAITING: tuple[tuple[str, str, Callable[[EncoderStatistics], float]], ...] = (
    (
        "requests_waiting",
        "Requests that wait to be sent to the encoder",
        lambda e: e.num_waiting,
    ),
    (
        "sequences_pending",
        "Sequences of requests that have not ended",
        lambda e: e.num_pending_sequences,
    ),
)
_COUNTERS: tuple[tuple[str, str, Callable[[InstanceStatistics], float]], ...] = (
    ("batches", "Batches sent to the encoder", lambda i: i.num_batches),
    (
        "short_batches",
        "Batches sent with room in them, though others waited",
        lambda i: i.num_short_batches,
    ),
    ("sequences", "Sequences sent to the encoder", lambda i: i.num_sequences),
    ("tokens", "Tokens sent to the encoder", lambda i: i.num_tokens),
    (
        "reused_tokens",
        "Tokens of texts that the instance had kept and did not compute, for late interaction",
        lambda i: i.num_reused_tokens,
    ),
    (
        "busy_seconds",
        "Seconds that the instance has worked on batches that have ended",
        lambda i: i.busy_s,
    ),
)


def encoder_series(encoders: Sequence[EncoderStatistics]) -> Iterator[Metric]:
    """Yield one series for each figure, by encoder or by instance."""
    for name, help_, waiting in _WAITING:
        gauge = GaugeMetricFamily(f"quire_encoder_{name}", help_, labels=["model_name"])
        for encoder in encoders:
            gauge.add_metric([encoder.model], waiting(encoder))
        yield gauge
    for name, help_, done in _COUNTERS:
        counter = CounterMetricFamily(
            f"quire_encoder_{name}", help_, labels=["model_name", "engine"]
        )
        for encoder in encoders:
            for instance in encoder.instances:
                counter.add_metric([encoder.model, instance.engine], done(instance))
        yield counter
    kept = GaugeMetricFamily(
        "quire_encoder_token_cache_bytes",
        "Kept vectors of tokens, for late interaction",
        labels=["model_name", "engine"],
    )
    for encoder in encoders:
        for instance in encoder.instances:
            kept.add_metric([encoder.model, instance.engine], instance.cache_bytes)
    yield kept


def kept_row_series(kept: KeptRowsStatistics) -> Iterator[Metric]:
    """Yield the series of rows that programs asked encoders for: how each was obtained, and how
    many are kept."""
    counter = CounterMetricFamily(
        "quire_encoder_rows",
        "Vectors and scores that programs asked for: computed, kept from an equal text, or "
        "in_flight for an equal one",
        labels=["source"],
    )
    for source, num in (
        ("computed", kept.num_computed),
        ("kept", kept.num_found),
        ("in_flight", kept.num_waited),
    ):
        counter.add_metric([source], num)
    yield counter
    yield GaugeMetricFamily(
        "quire_encoder_rows_bytes", "Kept vectors and scores", value=kept.num_bytes
    )
