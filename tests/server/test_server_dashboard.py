"""The Grafana dashboard names series that a node exports, by labels that these have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from scripted_server import MODEL

BOARD = Path(__file__).parents[2] / "examples" / "grafana" / "quire.json"
PANELS = json.loads(BOARD.read_text(encoding="utf-8"))["panels"]
SERIES = re.compile(r"\b(?:quire_|vllm:)\w+")
GROUPED = re.compile(r"by \(([^)]*)\)")
SHOWN = re.compile(r"\{\{(\w+)\}\}")


def exported(http: httpx.Client) -> dict[str, set[str]]:
    """The labels of each series of a node that has served something."""
    body = {"model": MODEL, "prompt": "say yes", "max_tokens": 8}
    for _ in range(2):
        headers = {"x-quire-program-id": "shown"}
        http.post("/v1/completions", json=body, headers=headers).raise_for_status()
    launch = {"program": "text_completion", "args": ["Hello", "2"], "wait": True}
    http.post("/v1/programs", json=launch).raise_for_status()
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(http.get("/metrics").text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def problems(panels: list[dict[str, Any]], labels: dict[str, set[str]]) -> list[str]:
    found = []
    for panel in panels:
        for target in panel["targets"]:
            names = SERIES.findall(target["expr"])
            assert names, f"panel {panel['title']!r} asks for no series"
            found += [f"{name} is not exported" for name in names if name not in labels]
            wanted = set(SHOWN.findall(target["legendFormat"]))
            for group in GROUPED.findall(target["expr"]):
                wanted |= {label.strip() for label in group.split(",")}
            for name in names:
                missing = wanted - labels.get(name, wanted)
                found += [f"{name} has no label {label}" for label in sorted(missing)]
    return found


def test_every_series_of_the_dashboard_is_exported(http: httpx.Client) -> None:
    labels = exported(http)
    assert problems(PANELS, labels) == []
    invented = [{"title": "x", "targets": [{"expr": "rate(quire_x[1m])", "legendFormat": ""}]}]
    assert problems(invented, labels) == ["quire_x is not exported"]
    mislabelled = [
        {"title": "x", "targets": [{"expr": "quire_calls", "legendFormat": "{{model}}"}]}
    ]
    assert problems(mislabelled, labels) == ["quire_calls has no label model"]


def test_panels_stand_side_by_side() -> None:
    taken = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken, f"panel {panel['title']!r} covers another"
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


@pytest.mark.parametrize("title", ["Waiting of a call, by class", "Service of a call, by class"])
def test_waiting_and_service_are_shown_by_class(title: str) -> None:
    [panel] = [panel for panel in PANELS if panel["title"] == title]
    assert all("class" in target["expr"] for target in panel["targets"])
