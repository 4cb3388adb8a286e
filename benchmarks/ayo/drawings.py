"""Draws the rows of ``figures.py``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.ayo.figures import Row
from benchmarks.measurement import Figure
from benchmarks.plots import Panel, draw_bars, draw_lines

VIRTUAL = "virtual time"


def draw(name: str, path: Path, rows: Sequence[Row]) -> None:
    """Draw one file for each figure of the paper; the sensitivity is a table alone."""
    if name == "fig1":
        _bars(path, "shares of one query under LlamaDist", "share", rows, ("application", "module"))
    elif name == "fig3":
        own = [row for row in rows if row["application"] == "advanced"]
        _bars(path, "advanced RAG, one query", "seconds", own, ("core", "system"))
    elif name == "fig9":
        shown = [row | {"point": f"{row['kind']}, {row['application']}"} for row in rows]
        heaviest = [row for row in shown if row["load"] == rows[-1]["load"]]
        _bars(path, "against LlamaDistPC", "mean_s", heaviest, ("point", "system"))
    elif len({row.get("load") for row in rows}) == 1 and name.startswith("fig8"):
        title = f"{rows[0]['application']}, at {rows[0]['load']} of LlamaDist-TO's saturation"
        _bars(path, title, "mean_s", rows, ("core", "system"))
    elif name == "fig10":
        shown = [row | {"system": f"{row['passes']}, {row['policy']}"} for row in rows]
        _curves(path, "passes and policies, advanced RAG", shown, "passes")
    elif name.startswith("fig8"):
        cached = ", with the prefix cache" if name.endswith("cached") else ""
        _curves(path, f"{rows[0]['application']}{cached}", rows, "core")


def _bars(path: Path, title: str, label: str, rows: Sequence[Row], keys: tuple[str, str]) -> None:
    group_of, name_of = keys
    groups = list(dict.fromkeys(str(row[group_of]) for row in rows))
    names = list(dict.fromkeys(str(row[name_of]) for row in rows))
    value = {(str(row[group_of]), str(row[name_of])): float(str(row[label])) for row in rows}
    series = {name: [_figure(value.get((group, name))) for group in groups] for name in names}
    label = "mean seconds" if label == "mean_s" else label
    draw_bars(path, title, label, groups, series, machine=VIRTUAL)


def _figure(value: float | None) -> Figure | None:
    return None if value is None else Figure(value, value, value, 1)


def _curves(path: Path, title: str, rows: Sequence[Row], by: str) -> None:
    """A panel for each model of ``by``, or one for all."""
    values = list(dict.fromkeys(str(row[by]) for row in rows)) if by == "core" else [""]
    panels = []
    for value in values:
        own = [row for row in rows if not value or row[by] == value]
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in own:
            point = (float(str(row["load"])), float(str(row["mean_s"])))
            lines.setdefault(str(row["system"]), []).append(point)
        label = ", ".join(["mean seconds", *([value] if value else [])])
        panels.append(Panel(label, lines, logarithmic=False))
    draw_lines(path, title, "share of LlamaDist-TO's saturation", panels, machine=VIRTUAL)
