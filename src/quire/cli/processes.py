"""``quire push``, ``ps``, ``attach``, ``logs``, ``kill``: programs of a running node."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from quire.cli.client import NodeClient
from quire.cli.console import (
    escaped,
    messages,
    natural_width,
    output,
    print_result,
    show_message,
    shown,
    table,
    waiting,
)
from quire.cli.conversation import Show, converse, read_lines
from quire.cli.exit_codes import EXIT_INTERRUPTED
from quire.cli.options import DEFAULT_URL, ApiKey, Interactive, Stream, Url
from quire.cli.own_places import own_places
from quire.cli.process_table import SHORT_ID_CHARS, chosen, process_table
from quire.cli.program_folder import files_in
from quire.client.attachment import Attachment
from quire.core.errors import InvalidArgument
from quire.programs.package import package_code

Program = Annotated[str, typer.Argument(help="The id from 'quire ps', or a unique prefix of it.")]

_LONG_WIDTH = 160
_WATCH_S = 2.0
_FOLLOW_S = 1.0


def push(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Python files, folders with a main.py, or WebAssembly modules."),
    ] = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    delete: Annotated[
        str | None, typer.Option(help="Delete this uploaded program (name or id).")
    ] = None,
) -> None:
    """Upload programs to a running node, to be launched by name; list the uploaded ones.

    The node checks each in its sandbox, and stores it under the hash of its content. Of a folder it
    gets main.py, the modules beside it, and those of pure Python wheels that lie there or that its
    requirements.txt names.

    Examples:

        quire push my_agent.py && quire run my_agent --url http://127.0.0.1:8000

        quire push my_agent/

        quire push

        quire push --delete my_agent
    """
    with NodeClient(url, api_key) as node:
        if delete is not None:
            output().print(f"deleted {node.delete_upload(delete)['id']}")
        for file in files or ():
            code = read_program(file)
            with own_places(str(file)), waiting(first_build(file)):
                pushed = node.push(code)
            output().print(f"{pushed['name']} {pushed['id']}")
        if not files and delete is None:
            output().print(upload_table(node.uploads()))


def first_build(program: object) -> str:
    """What a client waits for that uploads code."""
    return f"{program} is checked; a node's first program waits until a sandbox is built"


def read_program(path: Path) -> bytes:
    """The code of a file, or of a folder with a ``main.py``.

    Raises:
        InvalidArgument: it cannot be read, or what is in the folder is no program.
    """
    try:
        if path.is_dir():
            return package_code(files_in(path))
        return path.read_bytes()
    except OSError as exc:
        raise InvalidArgument(f"{path} cannot be read: {exc}") from exc


def upload_table(uploads: list[dict[str, Any]]) -> Table:
    """``/v1/programs/uploads`` as a table."""
    listed = table(
        "program", "kind", "bytes", "id", "what it does", right=("bytes",), wrap=("what it does",)
    )
    for upload in uploads:
        described = upload["description"].partition("\n")[0]
        short = upload["id"][:SHORT_ID_CHARS]
        name, num_bytes = escaped(upload["name"]), str(upload["num_bytes"])
        listed.add_row(name, upload["kind"], num_bytes, short, escaped(described))
    return listed


def ps(
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    long: Annotated[bool, typer.Option("--long", "-l", help="Show whole ids.")] = False,
    state: Annotated[
        str | None, typer.Option(help="Only programs in this state, e.g. running or failed.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Only programs of this name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh the list until Ctrl-C.")
    ] = False,
) -> None:
    """List the programs of a running node: inferlets and sessions, running and recently ended.

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

        def listed() -> list[dict[str, Any]]:
            return chosen(node.programs(), state, name)

        if as_json:
            console.print(escaped(json.dumps(listed(), indent=2, ensure_ascii=False)))
            return

        def rows() -> Table:
            width = console.width if console.is_terminal and not long else None
            return process_table(listed(), time.time(), long=long, width=width)

        if watch:
            with Live(console=output(_LONG_WIDTH if long else None), auto_refresh=False) as again:
                while True:
                    again.update(rows(), refresh=True)
                    time.sleep(_WATCH_S)
        all_rows = rows()
        if long or not console.is_terminal:
            console.width = max(console.width, natural_width(all_rows))
        console.print(all_rows)


def attach(
    program: Program,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    interactive: Interactive = False,
    stream: Stream = False,
) -> None:
    """Show a running program's messages as they arrive, then its result.

    Ctrl-C leaves the program running; 'quire kill' ends it. With --interactive each line of stdin
    is sent to the program, and the end of stdin ends its input. Without it other clients may go on
    sending.

    Examples:

        quire attach prog-7f3a --interactive
    """

    async def follow(show: Show) -> Any:
        lines = read_lines(sys.stdin) if interactive else None
        with NodeClient(url, api_key) as node:
            async with Attachment(node.url, node.headers, node.full_id(program)) as remote:
                return await converse(remote, show, lines, ends_input=interactive, cancels=False)

    try:
        with shown(stream) as show:
            result = asyncio.run(follow(show))
    except KeyboardInterrupt as exc:
        messages().print(f"{program} goes on: 'quire attach' shows it again, 'quire kill' ends it")
        raise typer.Exit(EXIT_INTERRUPTED) from exc
    print_result(result)


def logs(
    program: Program,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines until the program ends.")
    ] = False,
) -> None:
    """Print a program's log: its log entries, its output, and the node's notes about it.

    Only the output of a sandboxed program can be attributed to it; a native program prints to the
    node's output.

    Examples:

        quire logs prog-7f3a

        quire logs prog-7f3a --follow
    """
    with NodeClient(url, api_key) as node:
        whole = node.full_id(program)
        for line in _lines_of(node, whole) if follow else node.logs(whole):
            show_message(_log_line(line))


def _lines_of(node: NodeClient, public_id: str) -> Iterator[dict[str, Any]]:
    """The lines of a program's log as they arrive, until the program has ended."""
    seen: list[dict[str, Any]] = []
    while True:
        has_ended = node.program(public_id)["ended"] is not None  # before the lines: none is missed
        lines = node.logs(public_id)
        yield from behind(seen, lines)
        if has_ended:
            return
        seen = lines
        time.sleep(_FOLLOW_S)


def behind(seen: list[dict[str, Any]], lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of ``lines`` that follow ``seen``. A node keeps only the newest, so the oldest of
    ``seen`` may be missing."""
    for dropped in range(len(seen)):
        kept = seen[dropped:]
        if lines[: len(kept)] == kept:
            return lines[len(kept) :]
    return lines


def kill(
    programs: Annotated[list[str], typer.Argument(metavar="PROGRAM", help="Ids to end.")],
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """End programs: their commands are cancelled, and their resources are freed.

    Examples:

        quire kill prog-7f3a prog-81bc
    """
    with NodeClient(url, api_key) as node:
        for program in programs:
            whole = node.full_id(program)
            ran = node.program(whole)["ended"] is None
            left = node.terminate(whole)
            if ran and (left["ended"] is None or left["state"] == "cancelled"):
                output().print(f"cancelled {whole}")
            else:
                output().print(f"{whole} had ended before: {left['state']}")


def _log_line(line: dict[str, Any]) -> str:
    moment = datetime.fromtimestamp(line["time"]).astimezone()
    fields = "".join(f" {name}={_shown(value)}" for name, value in line["fields"].items())
    return f"{moment:%H:%M:%S} {line['level']:7} {line['text']}{fields}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value.isalnum() else json.dumps(value)
