"""Waiting in relation to service, by class of program, as Prometheus series."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from quire.node import ClassFigures, HistogramSnapshot
from quire.server.series.histograms import buckets

_LABELS = ("class",)
_HISTOGRAMS: tuple[tuple[str, str, Callable[[ClassFigures], HistogramSnapshot]], ...] = (
    (
        "call_waiting_seconds",
        "Seconds in which a call could have run and did not",
        lambda figures: figures.waiting,
    ),
    ("call_service_seconds", "Seconds of engine time of a call", lambda figures: figures.service),
    (
        "program_wait_seconds",
        "Seconds between two calls of a program",
        lambda figures: figures.idle,
    ),
)


def class_series(classes: Mapping[str, ClassFigures]) -> Iterator[Metric]:
    for name, help_, part in _HISTOGRAMS:
        family = HistogramMetricFamily(f"quire_{name}", help_, labels=_LABELS)
        for label, figures in classes.items():
            found = part(figures)
            family.add_metric([label], buckets(found.bounds_s, found.counts), found.sum_s)
        yield family
    ended = CounterMetricFamily(
        "quire_calls_ended", "Calls, by outcome", labels=("class", "outcome")
    )
    for label, figures in classes.items():
        for outcome, count in figures.num_calls.items():
            ended.add_metric([label, outcome], count)
    yield ended
