"""``quire top``: the programs and engines of a running node, live in the terminal."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from quire.cli.client import NodeClient
from quire.cli.console import escaped, output
from quire.cli.options.shared import DEFAULT_URL, ApiKey, Url
from quire.cli.top.keys import TerminalKeys
from quire.cli.top.screen import printed, screen
from quire.cli.top.state import Kill, Quit, Signal, Snapshot, Sort, View, lines, pressed, told
from quire.core.errors import InvalidArgument, QuireError


def top(
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    interval: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds between two refreshes.")
    ] = 1.0,
    sort: Annotated[
        Sort, typer.Option(help="The column by which programs are sorted.")
    ] = "service",
    filter_: Annotated[
        str, typer.Option("--filter", help="Only programs with this text in a column.")
    ] = "",
    tree: Annotated[bool, typer.Option("--tree", help="Show families as trees.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print the state once and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print it as JSON.")] = False,
) -> None:
    """Watch a running node: its engines, and for each program its state, its service and what it
    waits for.

    A program is running, idle (its own code runs, or its client sends nothing), or waits: for its
    turn, a seat (one of the engine's sequences), memory, the end of a pause, swapped pages, another
    command, or an engine. Service and waiting are in seconds. Press ? for the keys.

    Examples:

        quire top

        quire top --sort waiting --filter memory

        quire top --tree --interval 5 --url http://127.0.0.1:8080

        quire top --once --json
    """
    if as_json and not once:
        raise InvalidArgument("--json prints the state once: add --once")
    view = View(sort=sort, filter=filter_, is_tree=tree)
    console = output()
    with NodeClient(url, api_key) as node:
        if once:
            _print_once(look(node, Snapshot()), view, console, as_json=as_json)
        elif console.is_dumb_terminal or not (console.is_terminal and sys.stdin.isatty()):
            raise InvalidArgument(
                "quire top needs a terminal that it can redraw: add --once, which prints the state "
                "once"
            )
        else:
            _watch(node, view, console, interval)


def look(node: NodeClient, known: Snapshot) -> Snapshot:
    """Return ``known`` with what has changed since."""
    more = True
    while more:
        answer = node.changes(known.next)
        known, more = told(known, answer), answer["more"]
    return known


def _print_once(snapshot: Snapshot, view: View, console: Console, *, as_json: bool) -> None:
    if as_json:
        record: dict[str, Any] = {
            "node": snapshot.node,
            "engines": list(snapshot.engines),
            "programs": [row for row, _ in lines(snapshot, view)],
        }
        console.print(escaped(json.dumps(record, indent=2, ensure_ascii=False)))
    else:
        console.print(printed(snapshot, view, console.width))


def _watch(node: NodeClient, view: View, console: Console, interval_s: float) -> None:
    """Redraw after each look and each key, until a key ends it."""
    snapshot = look(node, Snapshot())
    next_s = time.monotonic() + interval_s
    with (
        TerminalKeys() as keys,
        Live(console=console, screen=True, auto_refresh=False) as shown,
    ):
        while True:
            shown.update(screen(snapshot, view, console.width, console.height), refresh=True)
            sent = keys.read(max(0.0, next_s - time.monotonic()))
            if sent is None:
                return
            for key in sent:
                view, effect = pressed(view, key, snapshot)
                if isinstance(effect, Quit):
                    return
                if isinstance(effect, Kill | Signal):
                    view = replace(view, message=_done(node, effect))
            if time.monotonic() >= next_s:
                snapshot, view = _next_look(node, snapshot, view)
                next_s = time.monotonic() + interval_s


def _next_look(node: NodeClient, snapshot: Snapshot, view: View) -> tuple[Snapshot, View]:
    """Look at the node again. While it does not answer, the screen keeps what is known and says
    why: a node that is started again is then followed."""
    try:
        return look(node, snapshot), replace(view, trouble="")
    except QuireError as error:
        return snapshot, replace(view, trouble=_in_one_line(error))


def _done(node: NodeClient, effect: Kill | Signal) -> str:
    """End or signal the program; return the outcome. A program that has ended meanwhile is no
    error."""
    try:
        if isinstance(effect, Signal):
            node.signal(effect.program, effect.signal, effect.text, node=effect.node)
            return f"sent {effect.program} {effect.signal}"
        end = node.end_session if effect.is_session else node.terminate
        return f"ended {end(effect.program, node=effect.node)['id']}"
    except QuireError as error:
        return _in_one_line(error)


def _in_one_line(error: QuireError) -> str:
    return " ".join(error.message.split())
