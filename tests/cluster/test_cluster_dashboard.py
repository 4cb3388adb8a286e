"""The router's Grafana dashboard names series that a router exports, by labels that these have."""

from __future__ import annotations

from dashboards import check_places, labels_of, panels_of, problems
from router_world import world

PANELS = panels_of("quire-router.json")


async def test_every_series_of_the_dashboard_is_exported() -> None:
    async with world(2) as w:
        assert (await w.complete()).status_code == 200
        metrics = w.router.metrics
        metrics.observe_refusal(503, "capacity")
        metrics.move_began()
        metrics.continued("move", "done", 0.1)
        labels = labels_of((await w.http.get("/metrics")).text)
    assert problems(PANELS, labels) == []
    text = "".join(target["expr"] for panel in PANELS for target in panel["targets"])
    for name in ("answer_moves_begun_total", "answers_continued_total", "answer_pause_seconds"):
        assert f"quire_router_{name}" in text, "no panel shows it"


def test_panels_stand_side_by_side() -> None:
    check_places(PANELS)
