"""Draws Ayo's figures in virtual time: Quire and other frameworks over engines that take stated
times.

    python benchmarks/ayo/paced.py [--quick] [--only fig3 fig8 ...] [--queries 100] [--factor 1.0]

The optimiser, the graph scheduler's state and control are the real ones; engines take the times of
``stated.py``: two of each model, one embedding model, one cross-encoder. ``modules.py`` and
``frameworks.py`` say what the baselines do. Nothing is measured on this machine: the same options
give the same figures.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.ayo import bounds, drawings, figures, gap, timeline, waits
from benchmarks.ayo.ahead import FOUND, SAME_ORDER
from benchmarks.ayo.applications import (
    ADVANCED,
    APPLICATIONS,
    CONTEXTUAL,
    NAIVE,
    SEARCH,
    Application,
)
from benchmarks.ayo.figures import Row, Setting
from benchmarks.ayo.stated import CORES, Stated
from benchmarks.ayo.systems import BASELINES, CACHED, OURS_AND_AHEAD, SPECULATING, System
from benchmarks.options import plain_parser
from benchmarks.report import print_table

SHARES, QUICK_SHARES, END_SHARES = (0.2, 0.5, 0.9), (0.9,), (0.2, 0.9)
NUM_QUERIES, QUICK_NUM_QUERIES = 100, 20
NUM_PAIRS = 4
"""Of arrivals, for what speculation costs others."""
LESS = 0.5
"""In place of ``FOUND``."""
TO = {name: system for name, system in BASELINES.items() if not name.endswith("PO")}
"""The stronger ones under load."""


def fig1(setting: Setting, quick: bool) -> list[Row]:
    return figures.breakdown(setting, CORES[0])


def fig3(setting: Setting, quick: bool) -> list[Row]:
    applications = [ADVANCED] if quick else list(APPLICATIONS.values())
    return [
        row
        for application in applications
        for core in (CORES[:1] if quick else CORES)
        for row in figures.alone(setting, application, core)
    ]


def fig8_of(
    application: Application, ours: Mapping[str, System] = OURS_AND_AHEAD
) -> Callable[[Setting, bool], list[Row]]:
    def rows(setting: Setting, quick: bool) -> list[Row]:
        made = figures.end_to_end(setting, application, CORES[0], {**BASELINES, **ours})
        for core in () if quick else CORES[1:]:
            made += figures.end_to_end(_ends(setting), application, core, {**TO, **ours})
        return made

    return rows


def fig8_contextual(setting: Setting, quick: bool) -> list[Row]:
    """Play Fig. 8 for contextual retrieval, which has ten times the calls of the others: one model,
    the heaviest load, five systems."""
    at = _heaviest(setting)
    compared = {name: TO[name] for name in ("LlamaDist-TO", "LlamaDistPC-TO", "LangGraph-TO")}
    compared |= {name: OURS_AND_AHEAD[name] for name in ("quire", SPECULATING)}
    return figures.end_to_end(at, CONTEXTUAL, CORES[0], compared)


def fig9(setting: Setting, quick: bool) -> list[Row]:
    return figures.co_located(setting if quick else _ends(setting))


def fig10(setting: Setting, quick: bool) -> list[Row]:
    return figures.ablations(setting)


def ways(setting: Setting, quick: bool) -> list[Row]:
    return timeline.rows(setting, CORES[0])


def gaps(setting: Setting, quick: bool) -> list[Row]:
    return gap.rows(setting, CORES[0])


def least_seconds(setting: Setting, quick: bool) -> list[Row]:
    return bounds.rows(setting)


def policies(setting: Setting, quick: bool) -> list[Row]:
    return waits.rows(setting)


def sensitivity(setting: Setting, quick: bool) -> list[Row]:
    return figures.sensitivity(_heaviest(setting), CORES[0])


def speculation(setting: Setting, quick: bool) -> list[Row]:
    """Play speculation with the assumed chances of rankings; without ``quick`` also with lower
    chances, and with a chance of 1."""
    points = [(SEARCH, setting, SAME_ORDER, FOUND), (ADVANCED, _ends(setting), SAME_ORDER, FOUND)]
    if not quick:
        points += [(ADVANCED, _ends(setting), SAME_ORDER, LESS), (ADVANCED, _ends(setting), 1, 1)]
    rows = [
        row
        for application, at, same, found in points
        for row in figures.speculation(at, application, CORES[0], same, found)
    ]
    for application, num_pairs in ((SEARCH, NUM_PAIRS), (ADVANCED, NUM_PAIRS // 2)):
        rows += figures.beside_speculation(
            setting, application, CORES[0], 1 if quick else num_pairs
        )
    return rows


def _ends(setting: Setting) -> Setting:
    return Setting(setting.stated, setting.num_queries, END_SHARES)


def _heaviest(setting: Setting) -> Setting:
    return Setting(setting.stated, setting.num_queries, setting.shares[-1:])


FIGURES: Mapping[str, Callable[[Setting, bool], list[Row]]] = MappingProxyType(
    {
        "fig1": fig1,
        "timeline": ways,
        "fig3": fig3,
        **{f"fig8-{one.name}": fig8_of(one) for one in (SEARCH, NAIVE, ADVANCED)},
        "fig8-search-cached": fig8_of(SEARCH, CACHED),
        "fig8-contextual": fig8_contextual,
        "fig9": fig9,
        "fig10": fig10,
        "bounds": least_seconds,
        "gap": gaps,
        "waits": policies,
        "sensitivity": sensitivity,
        "speculation": speculation,
    }
)
"""By name; ``fig10`` is Fig. 11 as well."""
QUICK = ("fig1", "fig3", "fig8-naive", "fig8-advanced", "fig10")


def written(name: str, out: Path, factor: float, num_queries: int, rows: Sequence[Row]) -> None:
    """Print ``rows`` as JSON and write them to ``out``, without anything of this machine."""
    fields = {"benchmark": f"ayo/{name}", "factor": factor, "num_queries": num_queries}
    line = json.dumps({**fields, "rows": rows})
    print(line, flush=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"ayo-{name}.json").write_text(line + "\n", encoding="utf-8")


def main() -> None:
    made = plain_parser(__doc__)
    made.add_argument("--only", nargs="+", choices=FIGURES, help="default: all")
    made.add_argument("--queries", type=int, help=f"of each point (default: {NUM_QUERIES})")
    made.add_argument("--factor", type=float, default=1.0, help="of what is assumed of engines")
    arguments = made.parse_args()
    quick: bool = arguments.quick
    num_queries = arguments.queries or (QUICK_NUM_QUERIES if quick else NUM_QUERIES)
    shares = QUICK_SHARES if quick else SHARES
    setting = Setting(Stated().scaled(arguments.factor), num_queries, shares)
    for name in arguments.only or (QUICK if quick else FIGURES):
        rows = FIGURES[name](setting, quick)
        shown = figures.speedups(rows) if name.startswith("fig8") else rows
        for _, alike in groupby(shown, lambda row: list(row)):
            print_table(f"{name} (virtual time)", list(alike))
        written(name, arguments.out, arguments.factor, num_queries, rows)
        drawings.draw(name, arguments.out / f"ayo-{name}.png", rows)


if __name__ == "__main__":
    main()
