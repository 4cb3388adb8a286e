"""Encoders in /metrics: what waits for each, and what each of its instances has done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from quire.control import EncoderStatistics, InstanceStatistics

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
    ("sequences", "Sequences sent to the encoder", lambda i: i.num_sequences),
    ("tokens", "Tokens sent to the encoder", lambda i: i.num_tokens),
    (
        "busy_seconds",
        "Seconds that the instance has worked on batches that have ended",
        lambda i: i.busy_s,
    ),
)


def encoder_series(encoders: Sequence[EncoderStatistics]) -> Iterator[Metric]:
    """One series per encoder, or per instance, and name."""
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
