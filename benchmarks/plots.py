"""Draws the figures of the benchmarks: bars with intervals, and lines. It is the one module that
imports matplotlib."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measurement import Figure
from benchmarks.report import commit, processor


def draw_bars(
    path: Path,
    title: str,
    label: str,
    groups: Sequence[str],
    series: Mapping[str, Sequence[Figure | None]],
    *,
    logarithmic: bool = False,
    machine: str | None = None,
) -> None:
    """Draw one group of bars per entry of ``groups``, with one bar in it per entry of ``series``.
    ``machine``: what is named as such, by default the processor of this one.

    Without matplotlib, prints how to install it and draws nothing.
    """
    pyplot = _pyplot()
    if pyplot is None:
        return
    figure, axes = pyplot.subplots(figsize=(3.6 + 1.5 * len(groups), 3.6))
    width = 0.8 / max(1, len(series))
    for number, (name, values) in enumerate(series.items()):
        places = [
            group + (number - (len(series) - 1) / 2) * width
            for group, value in enumerate(values)
            if value is not None
        ]
        known = [value for value in values if value is not None]
        errors = None
        if any(one.low < one.high for one in known):
            errors = [[v.median - v.low for v in known], [v.high - v.median for v in known]]
        look = look_of_bar(number)
        heights = [one.median for one in known]
        axes.bar(places, heights, width, label=name, yerr=errors, capsize=2, **look)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(label)
    axes.set_title(title, fontsize=10)
    if logarithmic:
        axes.set_yscale("log")
    _legend(axes)
    axes.spines[["top", "right"]].set_visible(False)
    _save(figure, path, machine)
    pyplot.close(figure)


_NUM_COLOURS = 10
"""Of matplotlib's own cycle."""
_LINES = (("-", "."), ("--", "x"), (":", "^"), ("-.", "s"))
_HATCHES = ("", "///", "...", "xxx")


def look_of_line(number: int) -> dict[str, str]:
    """Return colour, style and marker of the line of this number; those of 40 lines differ."""
    style, marker = _LINES[number // _NUM_COLOURS % len(_LINES)]
    return {"color": f"C{number % _NUM_COLOURS}", "linestyle": style, "marker": marker}


def look_of_bar(number: int) -> dict[str, str]:
    """Return colour and hatching of the bar of this number; those of 40 bars differ."""
    hatch = _HATCHES[number // _NUM_COLOURS % len(_HATCHES)]
    return {"color": f"C{number % _NUM_COLOURS}", "hatch": hatch}


@dataclass(frozen=True, slots=True)
class Panel:
    """One of the drawings side by side. ``lines``: the points of each by its name; ``level``: a
    value of the vertical axis that is marked; ``across``: of a horizontal axis of its own."""

    label: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    level: float | None = None
    logarithmic: bool = True
    across: str | None = None


def draw_lines(
    path: Path,
    title: str,
    label: str,
    panels: Sequence[Panel],
    *,
    machine: str | None = None,
) -> None:
    """Draw ``panels`` side by side, over the same horizontal axis, which ``label`` names; a name
    has the same colour and line in all of them. ``machine`` and without matplotlib: as
    ``draw_bars``."""
    pyplot = _pyplot()
    if pyplot is None:
        return
    figure, all_axes = pyplot.subplots(
        1, len(panels), figsize=(1 + 3.1 * len(panels), 3.4), squeeze=False
    )
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    for axes, panel in zip(all_axes[0], panels, strict=True):
        for name, points in panel.lines.items():
            axes.plot(
                [x for x, _ in points],
                [y for _, y in points],
                linewidth=1,
                markersize=4,
                label=name,
                **look_of_line(names.index(name)),
            )
        if panel.level is not None:
            axes.axhline(panel.level, color="gray", linewidth=0.8, linestyle="--")
        if panel.logarithmic:
            axes.set_yscale("log")
        axes.set_xlabel(label if panel.across is None else panel.across, fontsize=8)
        axes.set_ylabel(panel.label, fontsize=8)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    for number, panel in enumerate(panels):
        if number + 1 == len(panels) or panel.lines.keys() != panels[number + 1].lines.keys():
            _legend(all_axes[0][number])
    figure.suptitle(title, fontsize=10)
    _save(figure, path, machine)
    pyplot.close(figure)


def _legend(axes: Any) -> None:
    """Draw the legend beside the plot, which it would hide otherwise."""
    axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print("no figure is drawn: pip install 'quire[bench]' for matplotlib", file=sys.stderr)
        return None
    return pyplot


def _save(figure: Any, path: Path, machine: str | None) -> None:
    figure.text(0.01, 0.01, f"{machine or processor()}, {commit()}", fontsize=6, color="gray")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
