"""Speculation of workflows in /metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from quire.programs.workflow.speculation import SpeculationFigures


def speculation_series(figures: SpeculationFigures) -> Iterator[Metric]:
    """Yield the series of primitives that ran before it was known whether they were needed, by
    outcome."""
    counter = CounterMetricFamily(
        "quire_workflow_speculated",
        "Primitives of workflows that ran before it was known that they must: kept because they "
        "were needed, or dropped",
        labels=["outcome"],
    )
    counter.add_metric(["kept"], figures.num_kept)
    counter.add_metric(["dropped"], figures.num_dropped)
    yield counter
    yield CounterMetricFamily(
        "quire_workflow_speculated_dropped_tokens",
        "Tokens that models have written in primitives that were dropped",
        value=figures.num_dropped_tokens,
    )
