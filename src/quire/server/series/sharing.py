"""Shared results of workflows in /metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from quire.programs.workflow.sharing import SharingStatistics


def sharing_series(sharing: SharingStatistics) -> Iterator[Metric]:
    """Yield the series of pure primitives of workflows: how each result was obtained, and how many
    are kept."""
    counter = CounterMetricFamily(
        "quire_workflow_results",
        "Results of workflows' pure primitives: computed, kept from an equal one, or in_flight of "
        "an equal one",
        labels=["source"],
    )
    for source, num in (
        ("computed", sharing.num_computed),
        ("kept", sharing.num_kept),
        ("in_flight", sharing.num_waited),
    ):
        counter.add_metric([source], num)
    yield counter
    yield GaugeMetricFamily(
        "quire_workflow_results_bytes", "Kept results of pure primitives", value=sharing.num_bytes
    )
