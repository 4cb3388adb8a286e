"""``/v1/programs`` as a table: selection, order and columns.

Newest first, a child below its parent. Must not know how the list was requested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from quire.cli.console import escaped, natural_width, table

Program = dict[str, Any]
"""One record of ``GET /v1/programs``."""

ShownState = Literal[
    "starting", "idle", "waiting", "running", "finished", "failed", "cancelled", "terminated"
]
"""The states of launched programs and of sessions."""

_Row = dict[str, str | Text]

SHORT_ID_CHARS = 12
_STATE_STYLES = {"failed": "red", "terminated": "red", "cancelled": "yellow", "running": "green"}
_COLUMNS = {
    "num_prefilled_tokens": "computed",
    "num_cached_tokens": "cached",
    "num_generated_tokens": "generated",
    "num_encoded_tokens": "encoded",
    "num_pages": "pages",
}
_FIGURES = ("age", "took", *_COLUMNS.values())
_LEFT_OUT_FIRST = ("encoded", "cached", "took", "computed", "form", "pages", "generated", "age")
_MAX_NAME_CHARS = 24
"""Columns are left out until names of this length fit on one line."""

_UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


def chosen(
    programs: Sequence[Program], state: str | None = None, name: str | None = None
) -> list[Program]:
    """Return the programs in ``state`` that are called ``name``, newest first."""
    found = [
        one
        for one in programs
        if state in (None, one["state"]) and (name is None or one["name"] == name)
    ]
    return sorted(found, key=lambda one: one.get("created") or 0.0, reverse=True)


def process_table(
    programs: Sequence[Program], now_s: float, *, long: bool = False, width: int | None = None
) -> Table:
    """Return a table of ``programs`` in their order, each child below its parent. ``now_s``: Unix
    time.

    An ended program holds no pages. A session without a client's name (its name is its id) is shown
    without a name. A column for encoders is shown if a program has used one, one for nodes if a
    router was asked. ``width``: that of the terminal; columns for which it has no room are left
    out.
    """
    rows = [_row(program, depth, now_s, long=long) for program, depth in _tree(programs)]
    columns = ["program", "name", "form", "state", *_FIGURES]
    if not any(_figures(one).get("num_encoded_tokens") for one in programs):
        columns.remove("encoded")
    if any(one.get("node") for one in programs):
        columns.insert(0, "node")
    listed = _table(rows, columns)
    folded = max((len(str(row["name"])) for row in rows), default=0) - _MAX_NAME_CHARS
    for column in _LEFT_OUT_FIRST:
        if width is None or natural_width(listed) - max(folded, 0) <= width:
            break
        columns = [one for one in columns if one != column]
        listed = _table(rows, columns)
    return listed


def _table(rows: Sequence[_Row], columns: Sequence[str]) -> Table:
    listed = table(*columns, right=_FIGURES, wrap=("name",))
    for row in rows:
        listed.add_row(*(row[column] for column in columns))
    return listed


def _row(program: Program, depth: int, now_s: float, *, long: bool) -> _Row:
    """Return the cells of ``program`` by column."""
    name = "" if program["name"] == program["id"] else escaped(program["name"])
    age, took = _times(program, now_s)
    figures = _figures(program)
    return {
        "node": escaped(str(program.get("node", ""))),
        "program": program["id"] if long else program["id"][:SHORT_ID_CHARS],
        "name": f"{'  ' * (depth - 1)}└{name}" if depth else name,
        "form": program["form"],
        "state": Text(program["state"], style=_STATE_STYLES.get(program["state"], "")),
        "age": age,
        "took": took,
        **{column: str(figures.get(figure, "")) for figure, column in _COLUMNS.items()},
    }


def _figures(program: Program) -> dict[str, Any]:
    return {**(program["process"] or {}), **(program.get("usage") or {})}


def _tree(programs: Sequence[Program]) -> Iterator[tuple[Program, int]]:
    """Yield each program with its depth in the tree; a program whose parent is not listed has depth
    0."""
    children: dict[str, list[Program]] = {}
    listed = {one["id"] for one in programs}
    roots = []
    for one in programs:
        parent = one.get("parent")
        if parent is not None and parent in listed:
            children.setdefault(parent, []).append(one)
        else:
            roots.append(one)
    waiting = [(one, 0) for one in reversed(roots)]
    while waiting:
        program, depth = waiting.pop()
        yield program, depth
        waiting += [(one, depth + 1) for one in reversed(children.get(program["id"], []))]


def _times(program: Program, now_s: float) -> tuple[str, str]:
    """Return the time since the launch; and the duration, once the program has ended."""
    created, ended = program.get("created"), program.get("ended")
    if created is None:
        return "", ""
    return duration(now_s - created), "" if ended is None else duration(ended - created)


def duration(seconds: float) -> str:
    """Return a time in the largest fitting unit: ``3 min``; below ten seconds with a decimal."""
    seconds = max(seconds, 0.0)
    if seconds < 10.0:
        return f"{seconds:.1f} s"
    unit, length = next((unit, length) for unit, length in _UNITS if seconds >= length)
    return f"{int(seconds // length)} {unit}"
