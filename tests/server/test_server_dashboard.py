"""The Grafana dashboard names series that a node exports, by labels that these have."""

from __future__ import annotations

import httpx
import pytest
from dashboards import check_places, labels_of, panels_of, problems
from prometheus_client import CollectorRegistry, generate_latest
from scripted_server import MODEL

from quire.control.statistics import ExchangeStatistics
from quire.server.series.exchange import exchange_series

PANELS = panels_of("quire.json")


class Exchanging:
    """As much of ``EngineStatistics`` as the series of an engine's transfers read."""

    model, engine = "m", "m#0"
    exchanged = (ExchangeStatistics("received", "tcp", 1, 0, 300),)
    num_device_tokens_sent = num_host_tokens_sent = 0


class Exchanges:
    """A collector of what a node of a cluster exports beside."""

    def collect(self) -> object:
        return exchange_series([Exchanging()])  # type: ignore[list-item]


def exported(http: httpx.Client) -> dict[str, set[str]]:
    """The labels of each series of a node that has served something, and has received K and V."""
    body = {"model": MODEL, "prompt": "say yes", "max_tokens": 8}
    for _ in range(2):
        headers = {"x-quire-program-id": "shown"}
        http.post("/v1/completions", json=body, headers=headers).raise_for_status()
    launch = {"program": "text_completion", "args": ["Hello", "2"], "wait": True}
    http.post("/v1/programs", json=launch).raise_for_status()
    registry = CollectorRegistry()
    registry.register(Exchanges())  # type: ignore[arg-type]
    return labels_of(http.get("/metrics").text) | labels_of(generate_latest(registry).decode())


def test_every_series_of_the_dashboard_is_exported(http: httpx.Client) -> None:
    labels = exported(http)
    assert problems(PANELS, labels) == []
    invented = [{"title": "x", "targets": [{"expr": "rate(quire_x[1m])", "legendFormat": ""}]}]
    assert problems(invented, labels) == ["quire_x is not exported"]
    mislabelled = [
        {"title": "x", "targets": [{"expr": "quire_calls", "legendFormat": "{{model}}"}]}
    ]
    assert problems(mislabelled, labels) == ["quire_calls has no label model"]


def test_a_node_exports_the_families_of_its_transfers_before_the_first(http: httpx.Client) -> None:
    text = http.get("/metrics").text
    for name in ("quire_kv_transfers", "quire_kv_transfer_bytes"):
        assert f"# TYPE {name}_total counter" in text


def test_panels_stand_side_by_side() -> None:
    check_places(PANELS)


@pytest.mark.parametrize("title", ["Waiting of a call, by class", "Service of a call, by class"])
def test_waiting_and_service_are_shown_by_class(title: str) -> None:
    [panel] = [panel for panel in PANELS if panel["title"] == title]
    assert all("class" in target["expr"] for target in panel["targets"])
