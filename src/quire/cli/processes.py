"""``quire ps``, ``attach``, ``kill``: programs of a running node."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, NoReturn

import httpx
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from quire.cli.client import AGAIN_TIMEOUT, NodeClient
from quire.cli.console import (
    escaped,
    messages,
    natural_width,
    output,
    shown,
)
from quire.cli.exit_codes import EXIT_INTERRUPTED
from quire.cli.options.shared import DEFAULT_URL, ApiKey, Interactive, ProgramId, Stream, Url
from quire.cli.process_table import ShownState, chosen, process_table
from quire.cli.programs.conversation import Show, converse, read_lines
from quire.cli.programs.end import status_of_end
from quire.client.attachment import Attachment
from quire.client.wire import TIMEOUT
from quire.core.errors import InvalidArgument, QuireError

_LONG_WIDTH = 160
_WATCH_S = 2.0


def ps(
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    long: Annotated[bool, typer.Option("--long", "-l", help="Show whole ids.")] = False,
    state: Annotated[
        ShownState | None, typer.Option(help="Only programs and sessions in this state.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Only programs of this name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh the list until Ctrl-C.")
    ] = False,
) -> None:
    """List the programs, workflows and sessions of a running node, running and recently ended.

    The newest is first, a child below its parent. Tokens (computed, found in the cache, generated)
    are also shown for ended programs, pages only for running ones. A narrow terminal shows fewer
    columns; --json has everything.

    Examples:

        quire ps

        quire ps --state running --watch

        quire ps --long --url http://127.0.0.1:8080

        quire ps --json --name react
    """
    if watch and as_json:
        raise InvalidArgument("--watch shows a table: leave out --json")
    console = output()
    with NodeClient(url, api_key) as node:

        def listed(timeout: httpx.Timeout = TIMEOUT) -> list[dict[str, Any]]:
            return chosen(node.programs(timeout), state, name)

        if as_json:
            console.print(escaped(json.dumps(listed(), indent=2, ensure_ascii=False)))
            return

        def rows(timeout: httpx.Timeout = TIMEOUT) -> Table:
            width = console.width if console.is_terminal and not long else None
            return process_table(listed(timeout), time.time(), long=long, width=width)

        all_rows = rows()
        if watch:
            _watch(all_rows, partial(rows, AGAIN_TIMEOUT), output(_LONG_WIDTH if long else None))
        if long or not console.is_terminal:
            console.width = max(console.width, natural_width(all_rows))
        console.print(all_rows)


def _watch(first: Table, again: Callable[[], Table], console: Console) -> NoReturn:
    """Show ``first``, then what ``again`` returns. While the node does not answer, the table stays
    with the reason below it: a node that is started again is then followed."""
    rows: Table = first
    seen: RenderableType = first
    with Live(console=console, auto_refresh=False) as screen:
        while True:
            screen.update(seen, refresh=True)
            time.sleep(_WATCH_S)
            try:
                seen = rows = again()
            except QuireError as error:
                why = escaped(" ".join(error.message.split()))
                seen = Group(rows, Text(f"what is shown is old: {why}", style="red"))


def attach(
    program: ProgramId,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    interactive: Interactive = False,
    keep_open: Annotated[
        bool,
        typer.Option(
            "--keep-open",
            help="With --interactive: the end of stdin does not end the program's input, so that "
            "this and other clients may send more later.",
        ),
    ] = False,
    stream: Stream = False,
) -> None:
    """Show a running program's messages as they arrive, then its result.

    Ctrl-C leaves the program running; 'quire kill' ends it. With --interactive each line of stdin
    is sent to the program, and the end of stdin ends its input, as it does for a program in a pipe.
    With --keep-open, or without --interactive, other clients may go on sending.

    Examples:

        quire attach prog-7f3a --interactive

        quire attach prog-7f3a --interactive --keep-open
    """
    if keep_open and not interactive:
        raise InvalidArgument("--keep-open is about the end of stdin: add --interactive")

    async def follow(show: Show) -> Any:
        lines = read_lines(sys.stdin) if interactive else None
        with NodeClient(url, api_key) as node:
            async with Attachment(node.url, node.headers, node.full_id(program)) as remote:
                return await converse(
                    remote, show, lines, ends_input=interactive and not keep_open, cancels=False
                )

    try:
        with status_of_end(), shown(stream) as show:
            result = asyncio.run(follow(show))
    except KeyboardInterrupt as exc:
        messages().print(f"{program} goes on: 'quire attach' shows it again, 'quire kill' ends it")
        raise typer.Exit(EXIT_INTERRUPTED) from exc
    show.print_result(result)


def kill(
    programs: Annotated[
        list[str],
        typer.Argument(
            metavar="PROGRAM", help="The ids from 'quire ps', or unique prefixes of them."
        ),
    ],
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """End programs and sessions: commands are cancelled, and resources are freed.

    Examples:

        quire kill prog-7f3a prog-81bc
    """
    with NodeClient(url, api_key) as node:
        for program in programs:
            found = node.found(program)
            whole = str(found["id"])
            if found["form"] == "session":
                node.end_session(whole, node=found.get("node"))
                output().print(f"ended the session {whole}")
                continue
            ran = node.program(whole)["ended"] is None
            left = node.terminate(whole)
            if ran and (left["ended"] is None or left["state"] == "cancelled"):
                output().print(f"cancelled {whole}")
            else:
                output().print(f"{whole} had ended before: {left['state']}")
