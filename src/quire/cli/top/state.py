"""The state of ``quire top``: what is known of a node, what is selected, and the effect of a key.

Pure functions over values, without a terminal and without a node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Row = dict[str, Any]
"""A program of ``GET /v1/programs/changes``."""

Sort = Literal["service", "waiting", "age", "pages", "tokens", "path", "name"]
SORTS: tuple[Sort, ...] = ("service", "waiting", "age", "pages", "tokens", "path", "name")

Mode = Literal["table", "filter", "kill", "signal", "message", "detail", "memory", "help"]

ENTER, ESCAPE, BACKSPACE, UP, DOWN = "\r", "\x1b", "\x7f", "\x1b[A", "\x1b[B"
PAGE_UP, PAGE_DOWN, HOME, END = "\x1b[5~", "\x1b[6~", "\x1b[H", "\x1b[F"

_PAGE = 10
_ALL = 1 << 30
_STEPS = {UP: -1, DOWN: 1, PAGE_UP: -_PAGE, PAGE_DOWN: _PAGE, HOME: -_ALL, END: _ALL}
"""By how many lines a key moves."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A node as its answers have described it so far. ``rates``: tokens per second of each engine
    of which two answers are known. ``next``: where the next look begins."""

    rows: Mapping[int, Row] = field(default_factory=dict)
    engines: tuple[Row, ...] = ()
    node: Row = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    next: str = ""


def told(known: Snapshot, answer: Row) -> Snapshot:
    """Return ``known`` with the changes of ``answer``."""
    rows = {} if answer["whole"] else dict(known.rows)
    for row in answer["programs"]:
        rows[row["process"]] = row
    for process in answer["ended"]:
        rows.pop(process, None)
    return Snapshot(
        rows=rows,
        engines=tuple(sorted(answer["engines"], key=_in_order)),
        node=answer["node"],
        rates=_rates(known, answer),
        next=answer["next"],
    )


def _in_order(engine: Row) -> list[tuple[int, str]]:
    """Return the key by which ``m#2`` stands before ``m#10``."""
    parts = re.findall(r"\d+|\D+", engine["engine"])
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _rates(known: Snapshot, answer: Row) -> dict[str, float]:
    """Return the rates. An engine that was replaced meanwhile counts from 0 again, and has no rate
    yet."""
    passed_s = answer["node"]["time"] - known.node.get("time", answer["node"]["time"])
    if passed_s <= 0:
        return dict(known.rates)
    before = {engine["engine"]: engine["num_tokens"] for engine in known.engines}
    return {
        engine["engine"]: (engine["num_tokens"] - before[engine["engine"]]) / passed_s
        for engine in answer["engines"]
        if engine["num_tokens"] >= before.get(engine["engine"], float("inf"))
    }


@dataclass(frozen=True, slots=True)
class View:
    """What is selected. ``typed``: the text of a filter or message that is being written.
    ``selected``: the ``process`` of the marked row. ``scrolled``: how many lines of its details, or
    engines with their memory, are above the screen. ``message``: the last line. ``trouble``: why
    the node did not answer the last look; empty if it did."""

    sort: Sort = "service"
    filter: str = ""
    is_tree: bool = False
    mode: Mode = "table"
    typed: str = ""
    selected: int | None = None
    scrolled: int = 0
    message: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Kill:
    """The effect to end the program or session with this public id. ``node``: behind a router, the
    node that has it."""

    program: str
    is_session: bool = False
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Signal:
    """The effect to send the program with this public id a signal. ``text``: of a ``message``."""

    program: str
    signal: Literal["message", "end_of_input", "cancel"]
    text: str | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Quit:
    """The effect to end the command."""


Effect = Kill | Signal | Quit | None


def state_of(row: Row) -> str:
    """Return what the program waits for, ``running``, or ``idle``: it waits for its own code."""
    wait = row["wait"]
    if wait is None:
        return "running"
    return "idle" if wait["reason"] == "program" else str(wait["reason"])


def waiting_s(row: Row, now_s: float) -> float:
    """Return how long a program has waited in all, up to now; waiting for its own code does not
    count."""
    wait = row["wait"]
    now = 0.0 if wait is None or wait["reason"] == "program" else max(0.0, now_s - wait["since"])
    return float(row["waiting_s"]) + now


def lines(snapshot: Snapshot, view: View) -> list[tuple[Row, int]]:
    """Return the rows to show, in order, each with its depth in the tree."""
    now_s = float(snapshot.node.get("time", 0.0))
    found = [row for row in snapshot.rows.values() if _matches(row, view.filter)]
    found.sort(key=lambda row: (_order(row, view.sort, now_s), row["process"]))
    return list(_tree(found)) if view.is_tree else [(row, 0) for row in found]


def _matches(row: Row, text: str) -> bool:
    shown = (
        row.get("node"),
        row["id"],
        row["name"],
        row["client_id"],
        row["tenant"],
        row["form"],
        state_of(row),
    )
    return any(text.casefold() in str(one).casefold() for one in (*shown, *row["engines"]) if one)


def _order(row: Row, sort: Sort, now_s: float) -> tuple[float, str]:
    """Return the sort key: the largest figure first, the oldest program first, names in their
    order."""
    figures = {
        "service": row["service_s"],
        "waiting": waiting_s(row, now_s),
        "age": now_s - row["created"],
        "pages": row["num_pages"],
        "tokens": row["num_generated_tokens"],
        "path": row["path_s"],
    }
    return -float(figures.get(sort, 0.0)), str(row["name"]) if sort == "name" else ""


def _tree(rows: list[Row]) -> Iterator[tuple[Row, int]]:
    """Yield each row below its parent, in their order; one whose parent is not shown is a root."""
    shown = {row["process"] for row in rows}
    children: dict[int | None, list[Row]] = {}
    for row in rows:
        parent = row["parent"] if row["parent"] in shown else None
        children.setdefault(parent, []).append(row)
    waiting = [(row, 0) for row in reversed(children.get(None, []))]
    while waiting:
        row, depth = waiting.pop()
        yield row, depth
        below = children.get(row["process"], [])
        waiting += [(child, depth + 1) for child in reversed(below)]


def pressed(view: View, key: str, snapshot: Snapshot) -> tuple[View, Effect]:
    """Return ``view`` after ``key``, and the effect that is to follow."""
    if view.mode == "filter":
        return _typed(view, key), None
    if view.mode == "kill":
        return _answered(view, key, snapshot)
    if view.mode == "signal":
        return _signalled(view, key, snapshot)
    if view.mode == "message":
        return _written(view, key, snapshot)
    if view.mode in ("detail", "memory") and key in _STEPS:
        return _scrolled(view, _STEPS[key], snapshot), None
    if view.mode in ("detail", "memory", "help"):
        return replace(view, mode="table"), Quit() if key == "q" else None
    return _command(replace(view, message=""), key, snapshot)


def _command(view: View, key: str, snapshot: Snapshot) -> tuple[View, Effect]:
    if key == "q":
        return view, Quit()
    if key == "s":
        return replace(view, sort=SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)]), None
    if key == "t":
        return replace(view, is_tree=not view.is_tree), None
    if key == ESCAPE:
        return replace(view, filter=""), None
    if key in ("f", "/"):
        return replace(view, mode="filter", typed=view.filter), None
    if key in ("?", "h"):
        return replace(view, mode="help"), None
    if key == "m":
        return replace(view, mode="memory", scrolled=0), None
    if key in _STEPS:
        return _moved(view, _STEPS[key], snapshot), None
    if key in _CHOICES:
        return _chosen(view, _CHOICES[key], snapshot), None
    return view, None


_CHOICES: dict[str, Mode] = {ENTER: "detail", "k": "kill", "i": "signal"}
"""The keys that are about the marked program."""


def _chosen(view: View, mode: Mode, snapshot: Snapshot) -> View:
    row = selected(view, snapshot)
    if row is None:
        return replace(view, message="no program is marked: use the arrow keys")
    if mode in ("kill", "signal") and row["id"] is None:
        return replace(view, message=f"the node runs this for itself: it has no id to {mode} it by")
    if mode == "signal" and row["form"] == "session":
        return replace(view, message="a session takes no signal: its client sends its requests")
    return replace(view, mode=mode, selected=row["process"], scrolled=0)


def selected(view: View, snapshot: Snapshot) -> Row | None:
    """Return the marked row, if it is still there."""
    return None if view.selected is None else snapshot.rows.get(view.selected)


def _scrolled(view: View, step: int, snapshot: Snapshot) -> View:
    shown = snapshot.engines if view.mode == "memory" else selected(view, snapshot) or ()
    last = max(0, len(shown) - 1)
    return replace(view, scrolled=max(0, min(view.scrolled + step, last)))


def _moved(view: View, step: int, snapshot: Snapshot) -> View:
    order = [row["process"] for row, _ in lines(snapshot, view)]
    if not order:
        return replace(view, selected=None)
    if view.selected not in order:
        return replace(view, selected=order[0])
    index = min(max(order.index(view.selected) + step, 0), len(order) - 1)
    return replace(view, selected=order[index])


def _typed(view: View, key: str) -> View:
    if key == ENTER:
        return replace(view, mode="table", filter=view.typed)
    return _edited(view, key)


def _edited(view: View, key: str) -> View:
    """Return ``view`` after a key of a text that is being written; Esc leaves it."""
    if key == ESCAPE:
        return replace(view, mode="table")
    if key in (BACKSPACE, "\x08"):
        return replace(view, typed=view.typed[:-1])
    return replace(view, typed=view.typed + key) if key.isprintable() else view


def _answered(view: View, key: str, snapshot: Snapshot) -> tuple[View, Effect]:
    row = selected(view, snapshot)
    back = replace(view, mode="table")
    if key != "y" or row is None:
        return replace(back, message="nothing was ended"), None
    kill = Kill(row["id"], is_session=row["form"] == "session", node=row.get("node"))
    return replace(back, message=f"ending {row['id']}"), kill


def _signalled(view: View, key: str, snapshot: Snapshot) -> tuple[View, Effect]:
    row = selected(view, snapshot)
    back = replace(view, mode="table")
    if row is None or key not in ("m", "e", "c"):
        return replace(back, message="nothing was sent"), None
    if key == "m":
        return replace(view, mode="message", typed=""), None
    signal: Literal["end_of_input", "cancel"] = "end_of_input" if key == "e" else "cancel"
    sent = Signal(row["id"], signal, node=row.get("node"))
    return replace(back, message=f"sending {row['id']} {signal}"), sent


def _written(view: View, key: str, snapshot: Snapshot) -> tuple[View, Effect]:
    """A key of a message that is being written; Enter sends it."""
    row = selected(view, snapshot)
    if row is None:
        return replace(view, mode="table", message="nothing was sent: the program has ended"), None
    if key != ENTER:
        return _edited(view, key), None
    sent = Signal(row["id"], "message", view.typed, node=row.get("node"))
    return replace(view, mode="table", message=f"sending {row['id']} a message"), sent
