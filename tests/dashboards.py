"""Grafana dashboards of ``examples/grafana``, and what is wrong with them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

BOARDS = Path(__file__).parents[1] / "examples" / "grafana"
_SERIES = re.compile(r"\b(?:quire_|vllm:)\w+")
_GROUPED = re.compile(r"by \(([^)]*)\)")
_SHOWN = re.compile(r"\{\{(\w+)\}\}")


def panels_of(board: str) -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = json.loads((BOARDS / board).read_text(encoding="utf-8"))[
        "panels"
    ]
    return panels


def labels_of(exposition: str) -> dict[str, set[str]]:
    """The labels of each series that has a sample in ``exposition``."""
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def problems(panels: list[dict[str, Any]], labels: dict[str, set[str]]) -> list[str]:
    """What ``panels`` ask for that is not among the series and ``labels``."""
    found = []
    for panel in panels:
        for target in panel["targets"]:
            names = _SERIES.findall(target["expr"])
            assert names, f"panel {panel['title']!r} asks for no series"
            found += [f"{name} is not exported" for name in names if name not in labels]
            wanted = set(_SHOWN.findall(target["legendFormat"]))
            for group in _GROUPED.findall(target["expr"]):
                wanted |= {label.strip() for label in group.split(",")}
            for name in names:
                missing = wanted - labels.get(name, wanted)
                found += [f"{name} has no label {label}" for label in sorted(missing)]
    return found


def check_places(panels: list[dict[str, Any]]) -> None:
    """Check that panels stand side by side, and have ids of their own."""
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken, f"panel {panel['title']!r} covers another"
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
