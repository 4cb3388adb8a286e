"""``/v1/programs`` as a table: selection, order and columns.

Newest first, a child below its parent. Must not know how the list was requested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from quire.cli.console import escaped, table

Program = dict[str, Any]
"""One record of ``GET /v1/programs``."""

SHORT_ID_CHARS = 12
_STATE_STYLES = {"failed": "red", "terminated": "red", "cancelled": "yellow", "running": "green"}
_COLUMNS = {
    "num_prefilled_tokens": "computed",
    "num_cached_tokens": "cached",
    "num_generated_tokens": "generated",
    "num_encoded_tokens": "encoded",
    "num_pages": "pages",
}
_UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


def chosen(
    programs: Sequence[Program], state: str | None = None, name: str | None = None
) -> list[Program]:
    """Those in ``state`` that are called ``name``, newest first."""
    found = [
        one
        for one in programs
        if state in (None, one["state"]) and (name is None or one["name"] == name)
    ]
    return sorted(found, key=lambda one: one.get("created") or 0.0, reverse=True)


def process_table(programs: Sequence[Program], now_s: float, *, long: bool = False) -> Table:
    """``programs`` in their order, each child below its parent. ``now_s``: Unix time.

    An ended program holds no pages. A session without a client's name (its name is its id) is shown
    without a name. A column for encoders is shown if a program has used one, one for nodes if a
    router was asked.
    """
    columns = dict(_COLUMNS)
    if not any(_figures(one).get("num_encoded_tokens") for one in programs):
        del columns["num_encoded_tokens"]
    figures = ("age", "took", *columns.values())
    where = ("node",) if any(one.get("node") for one in programs) else ()
    listed = table(
        *where, "program", "name", "form", "state", *figures, right=figures, wrap=("name",)
    )
    for program, depth in _tree(programs):
        public_id = program["id"] if long else program["id"][:SHORT_ID_CHARS]
        state = Text(program["state"], style=_STATE_STYLES.get(program["state"], ""))
        figures_of = _figures(program)
        name = "" if program["name"] == program["id"] else escaped(program["name"])
        listed.add_row(
            *(escaped(str(program.get(one, ""))) for one in where),
            public_id,
            f"{'  ' * (depth - 1)}└{name}" if depth else name,
            program["form"],
            state,
            *_times(program, now_s),
            *(str(figures_of.get(figure, "")) for figure in columns),
        )
    return listed


def _figures(program: Program) -> dict[str, Any]:
    return {**(program["process"] or {}), **(program.get("usage") or {})}


def _tree(programs: Sequence[Program]) -> Iterator[tuple[Program, int]]:
    """Each program with its depth in the tree; a program whose parent is not listed has depth 0."""
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
    """Time since the launch; and the duration, once the program has ended."""
    created, ended = program.get("created"), program.get("ended")
    if created is None:
        return "", ""
    return duration(now_s - created), "" if ended is None else duration(ended - created)


def duration(seconds: float) -> str:
    """In the largest fitting unit: ``3 min``; below ten seconds with a decimal."""
    seconds = max(seconds, 0.0)
    if seconds < 10.0:
        return f"{seconds:.1f} s"
    unit, length = next((unit, length) for unit, length in _UNITS if seconds >= length)
    return f"{int(seconds // length)} {unit}"
