"""Figures of the benchmarks: bars with intervals. The one module that imports matplotlib."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

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
) -> None:
    """One group of bars per entry of ``groups``, one bar in it per entry of ``series``.

    Without matplotlib, prints how to install it and draws nothing.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        print("no figure is drawn: pip install 'quire[bench]' for matplotlib", file=sys.stderr)
        return
    figure, axes = pyplot.subplots(figsize=(2.2 + 1.5 * len(groups), 3.6))
    width = 0.8 / max(1, len(series))
    for number, (name, values) in enumerate(series.items()):
        places = [
            group + (number - (len(series) - 1) / 2) * width
            for group, value in enumerate(values)
            if value is not None
        ]
        known = [value for value in values if value is not None]
        errors = [[v.median - v.low for v in known], [v.high - v.median for v in known]]
        axes.bar(places, [v.median for v in known], width, label=name, yerr=errors, capsize=2)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(label)
    axes.set_title(title, fontsize=10)
    if logarithmic:
        axes.set_yscale("log")
    axes.legend(fontsize=7, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.text(0.01, 0.01, f"{processor()}, {commit()}", fontsize=6, color="gray")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
