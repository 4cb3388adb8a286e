"""The screen of ``quire top``: engines and the node's health above, programs below, or one program.

Draws given values; must not know where they come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from quire.cli.console import counted, escaped
from quire.cli.process_table import SHORT_ID_CHARS, duration
from quire.cli.top.memory import LINES, memory_table
from quire.cli.top.state import (
    SORTS,
    Row,
    Snapshot,
    View,
    lines,
    selected,
    state_of,
    waiting_s,
)

_FRAME = 2
"""Lines around the pairs of one program."""

WIDE = 110
"""With at least so many columns, all figures are shown."""

_KEYS = (
    ("up, down", "mark a program; also Page Up, Page Down, Home, End"),
    ("Enter", "show all of the marked program"),
    ("s", f"sort by the next of {', '.join(SORTS)}"),
    ("f, /", "filter by id, name, client, tenant, form, engine, state or what a program waits for"),
    ("Esc", "show all programs again"),
    ("t", "show families as trees"),
    ("m", "show each engine's memory by tier, and what stands in its messages"),
    ("k", "end the marked program or session, after a question"),
    ("i", "signal the marked program: a message, the end of its input, or a cancellation"),
    ("q", "quit"),
    ("?", "show or hide this page"),
)
_MAIN_KEYS = "? help  q quit  Enter detail  k kill  i signal  s sort  f filter  t tree  m memory"
"""The keys in the order of their use: a narrow screen shows the first of them."""
_STYLES = {"running": "green", "idle": "dim", "memory": "red", "engine": "red"}


def screen(snapshot: Snapshot, view: View, width: int, height: int) -> Group:
    """Return at most ``height`` lines of ``width`` columns; the last line is about the keys."""
    head = list(_head(snapshot, view, max(1, height // 3)))
    foot = _foot(view, snapshot)
    num_lines = height - len(head) - 1
    body: Table | Text
    if view.mode == "help":
        body = _pairs(_KEYS)
    elif view.mode == "memory":
        num_engines = len(snapshot.engines)
        first, last = _part(view.scrolled, max(1, (num_lines - 1) // LINES), num_engines)
        body = memory_table(snapshot.engines[first:last], width)
        if last - first < num_engines:
            foot = _scrolling(first, last, num_engines)
    elif view.mode == "detail" and (row := selected(view, snapshot)) is not None:
        pairs = list(_detail(row, snapshot))
        first, last = _part(view.scrolled, num_lines - _FRAME, len(pairs))
        body = _pairs(pairs[first:last])
        if last - first < len(pairs):
            foot = _scrolling(first, last, len(pairs))
    elif view.mode == "detail":
        body = Text("this program has ended", style="yellow")
    else:
        first, last = _window(lines(snapshot, view), view, num_lines - 1)
        if last - first < (num := len(lines(snapshot, view))):
            head[-1].append(f"  {first + 1} to {last} of {num}")
        body = programs_table(snapshot, view, width, num_lines)
    for line in (*head, foot):
        line.truncate(width)
    return Group(*head, body, foot)


def _scrolling(first: int, last: int, num: int) -> Text:
    return Text(f"{first + 1} to {last} of {num}  up, down: scroll  other keys: back")


def printed(snapshot: Snapshot, view: View, width: int) -> Group:
    """Return all programs, for output without keys."""
    num_lines = len(snapshot.rows) + 1
    head = _head(snapshot, view, len(snapshot.engines))
    return Group(*head, programs_table(snapshot, view, width, num_lines))


def _head(snapshot: Snapshot, view: View, max_engines: int) -> Iterator[Text]:
    """Yield the lines above the programs, ``max_engines`` of them about engines."""
    node = snapshot.node
    health = "ready" if node["ready"] else f"not ready: {node['detail']}"
    states = [state_of(row) for row in snapshot.rows.values()]
    counts = ", ".join(f"{states.count(one)} {one}" for one in ("running", "idle"))
    if view.trouble:
        yield Text(f"what is shown is old: {escaped(view.trouble)}", style="red")
    yield Text.assemble(
        (escaped(health), "green" if node["ready"] else "red"),
        f"  up {duration(node['uptime_s'])}  policy {node['policy']}  "
        f"{counted(len(states), 'program')}: {counts}, {len(states) - _num_quiet(states)} waiting",
    )
    engines = list(snapshot.engines)
    if len(engines) > max_engines:  # those that do not serve are not left out
        engines.sort(key=lambda engine: engine["state"] == "ready")
    num_shown = len(engines) if len(engines) <= max_engines else max_engines - 1
    for engine in engines[:num_shown]:
        why = escaped(" ".join(engine["detail"].split()))
        state = engine["state"] if why in ("", engine["state"]) else f"{engine['state']} ({why})"
        yield Text(f"{engine['engine']} {state}  {_figures([engine], snapshot)}")
    if left := engines[num_shown:]:
        others = "engines" if num_shown == 0 else "other engines"
        yield Text(f"{len(left)} {others}, m: all  {_figures(left, snapshot)}")
    chosen = f"sort {view.sort}" + (f"  filter {view.filter!r}" if view.filter else "")
    yield Text(chosen + ("  tree" if view.is_tree else ""), style="dim")


def _figures(engines: Sequence[Row], snapshot: Snapshot) -> str:
    """Return what ``engines`` do together."""
    rates = [snapshot.rates.get(engine["engine"]) for engine in engines]
    known = [rate for rate in rates if rate is not None]
    names = ("num_running", "num_waiting", "num_held_blocks", "num_blocks")
    running, waiting, held, blocks = (sum(one[name] for one in engines) for name in names)
    return (
        f"{running} running  {waiting} waiting  pages {held}/{blocks}  "
        f"{f'{sum(known):.0f}' if known else '-'} tok/s"
    )


def _num_quiet(states: Sequence[str]) -> int:
    return states.count("running") + states.count("idle")


def _foot(view: View, snapshot: Snapshot) -> Text:
    if view.mode == "filter":
        return Text(f"filter: {view.typed}_  (Enter takes it, Esc leaves it)")
    if view.mode == "message":
        return Text(f"message: {view.typed}_  (Enter sends it, Esc leaves it)")
    if view.mode == "signal":
        keys = "m: message, e: end of input, c: cancel, any other key: nothing"
        return Text(f"{keys}; for {_marked(view, snapshot)}")
    if view.mode == "kill":
        return Text(f"y: end {_marked(view, snapshot)}, any other key: leave it")
    if view.mode in ("detail", "memory", "help"):
        return Text("any key: back, q: quit")
    return Text(view.message or _MAIN_KEYS)


def _marked(view: View, snapshot: Snapshot) -> str:
    """Return what a question calls the marked program."""
    row = selected(view, snapshot)
    if row is None:
        return "it"
    return str(row["id"]) + ("" if row["name"] == row["id"] else f" ({escaped(row['name'])})")


def programs_table(snapshot: Snapshot, view: View, width: int, num_lines: int) -> Table:
    """Return the programs in their order, in ``num_lines`` with the heading; the marked one is
    among them."""
    is_wide = width >= WIDE
    listed = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    where = ["node"] if any(row.get("node") for row in snapshot.rows.values()) else []
    columns = [*where, "program", "name", *(["form"] if is_wide else []), "state", "lvl", "service"]
    columns += ["waiting", "age", "pages", "tokens"]
    columns += ["path", "host", "disk", "calls", "engines"] if is_wide else []
    left = ("node", "program", "name", "form", "state", "engines")
    for column in columns:
        justify = "left" if column in left else "right"
        is_text = column in ("node", "name", "engines")
        listed.add_column(
            column,
            justify=justify,  # type: ignore[arg-type]
            no_wrap=True,
            overflow="ellipsis",
            max_width=24 if is_text and is_wide else 16 if is_text else None,
        )
    found = lines(snapshot, view)
    first, last = _window(found, view, num_lines - 1)
    for row, depth in found[first:last]:
        style = "reverse" if row["process"] == view.selected else ""
        listed.add_row(*_cells(row, depth, snapshot, columns), style=style)
    return listed


def _window(found: list[tuple[Row, int]], view: View, num_rows: int) -> tuple[int, int]:
    """Return the first row to show and the one after the last: as many as fit, around the marked
    one."""
    order = [row["process"] for row, _ in found]
    index = order.index(view.selected) if view.selected in order else 0
    return _part(index - num_rows // 2, num_rows, len(found))


def _part(wanted: int, room: int, num: int) -> tuple[int, int]:
    """Return the first of ``num`` lines to show and the one after the last, from ``wanted`` on if
    so many are there."""
    first = max(0, min(wanted, num - room))
    return first, min(num, first + max(1, room))


def _cells(row: Row, depth: int, snapshot: Snapshot, columns: Sequence[str]) -> list[str | Text]:
    now_s = float(snapshot.node["time"])
    state = state_of(row)
    public_id = row["id"] or f"process {row['process']}"
    name = "" if row["name"] == row["id"] else escaped(row["client_id"] or row["name"])
    cells: dict[str, str | Text] = {
        "node": escaped(str(row.get("node", ""))),
        "program": public_id[:SHORT_ID_CHARS],
        "name": f"{'  ' * (depth - 1)}└{name}" if depth else name,
        "form": row["form"],
        "state": Text(state, style=_STYLES.get(state, "yellow")),
        "lvl": "" if row["level"] is None else f"{row['level']:g}",
        "service": seconds(row["service_s"]),
        "waiting": seconds(waiting_s(row, now_s)),
        "age": duration(now_s - row["created"]),
        "pages": str(row["num_pages"]),
        "tokens": str(row["num_generated_tokens"]),
        "path": seconds(row["path_s"]),
        "host": str(row["num_host_blocks"]),
        "disk": str(row["num_disk_blocks"]),
        "calls": str(row["num_calls"]),
        "engines": ", ".join(row["engines"]),
    }
    return [cells[column] for column in columns]


def seconds(amount_s: float) -> str:
    """Return a time with as many digits as are significant: ``0.12``, ``4.3``, ``812``."""
    digits = 2 if amount_s < 1 else 1 if amount_s < 100 else 0
    return f"{amount_s:.{digits}f}"


def _detail(row: Row, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    now_s = float(snapshot.node["time"])
    for name, value in row.items():
        if name == "wait":
            since_s = None if value is None else now_s - value["since"]
            if since_s is None:
                why = "nothing: it runs"
            elif value["reason"] == "program":
                why = f"its own code or its client, {duration(since_s)}"
            else:
                why = f"{value['reason']}, {duration(since_s)}"
            yield "waits for", why
        elif name == "created":
            yield "age", duration(now_s - value)
        elif isinstance(value, float):
            yield name, f"{value:.3f}"
        else:
            shown = ", ".join(value) if isinstance(value, list) else value
            yield name, "" if shown is None else escaped(str(shown))


def _pairs(pairs: Sequence[tuple[str, str]]) -> Table:
    listed = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    listed.add_column(no_wrap=True, style="bold")
    listed.add_column(overflow="fold")
    for name, value in pairs:
        listed.add_row(name, value)
    return listed
