"""``quire push``, ``ps``, ``attach``, ``logs``, ``kill``: programs of a running node."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from quire.cli.client import NodeClient
from quire.cli.console import (
    escaped,
    messages,
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
from quire.client.attachment import Attachment
from quire.core.errors import InvalidArgument

Program = Annotated[
    str, typer.Argument(help="The id that 'quire ps' shows, or enough of its beginning.")
]

_SHORT_ID_CHARS = 12
_LONG_WIDTH = 140

_STATE_STYLES = {"failed": "red", "terminated": "red", "cancelled": "yellow", "running": "green"}


def push(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Python files or WebAssembly modules.")
    ] = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    delete: Annotated[
        str | None, typer.Option(help="Forget this uploaded program instead (name or id).")
    ] = None,
) -> None:
    """Upload programs to a running node, to be launched by their names; list what is there.

    The node checks each in its sandbox, and keeps it under the hash of its content.

    Examples:

        quire push my_agent.py && quire run my_agent --url http://127.0.0.1:8000

        quire push

        quire push --delete my_agent
    """
    with NodeClient(url, api_key) as node:
        if delete is not None:
            output().print(f"deleted {node.delete_upload(delete)['id']}")
        for file in files or ():
            code = read_program(file)
            with waiting(first_build(file)):
                pushed = node.push(code)
            output().print(f"{pushed['name']} {pushed['id']}")
        if not files and delete is None:
            output().print(upload_table(node.uploads()))


def first_build(program: object) -> str:
    """What one waits for who brings code to a node."""
    return f"{program} is checked; a node's first program waits until a sandbox is built"


def read_program(path: Path) -> bytes:
    """Raises ``InvalidArgument`` for a file that cannot be read."""
    try:
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
        short = upload["id"][:_SHORT_ID_CHARS]
        name, num_bytes = escaped(upload["name"]), str(upload["num_bytes"])
        listed.add_row(name, upload["kind"], num_bytes, short, escaped(described))
    return listed


def ps(
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    long: Annotated[bool, typer.Option("--long", "-l", help="Show whole ids.")] = False,
) -> None:
    """List the programs of a running node: inferlets and sessions, running and just ended.

    Tokens (computed, found in the cache, generated) and pages are those of programs that have not
    ended.

    Examples:

        quire ps

        quire ps --long --url http://127.0.0.1:8080
    """
    with NodeClient(url, api_key) as node:
        console = output(_LONG_WIDTH if long else None)
        console.print(process_table(node.programs(), long=long))


def attach(
    program: Program,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    interactive: Interactive = False,
    stream: Stream = False,
) -> None:
    """Show a running program's messages as they come, then its result.

    Ctrl-C leaves the program running; 'quire kill' ends it. With --interactive each line of stdin
    is sent to it, and the end of stdin tells it that no more will come; without, others may go on
    sending to it.

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


def logs(program: Program, url: Url = DEFAULT_URL, api_key: ApiKey = None) -> None:
    """Print a program's log: what it logged and printed, and what the node noted about it.

    Only a sandboxed program's prints are known to be its own; what a trusted one prints goes to the
    node's output.

    Examples:

        quire logs prog-7f3a
    """
    with NodeClient(url, api_key) as node:
        for line in node.logs(node.full_id(program)):
            show_message(_log_line(line))


def kill(
    programs: Annotated[list[str], typer.Argument(metavar="PROGRAM", help="Ids to end.")],
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """End programs: their commands are cancelled, and what they hold is freed.

    Examples:

        quire kill prog-7f3a prog-81bc
    """
    with NodeClient(url, api_key) as node:
        for program in programs:
            whole = node.full_id(program)
            left = node.terminate(whole)
            if left["ended"] is None or left["state"] == "terminated":
                output().print(f"terminated {whole}")
            else:
                output().print(f"{whole} had ended before: {left['state']}")


def process_table(programs: list[dict[str, Any]], *, long: bool = False) -> Table:
    """``/v1/programs`` as a table; an ended program has no figures, and a session that nobody has
    named (its name is its id) no name."""
    columns = ("computed", "cached", "generated", "pages")
    listed = table("program", "name", "form", "state", *columns, right=columns, wrap=("name",))
    for program in programs:
        public_id = program["id"] if long else program["id"][:_SHORT_ID_CHARS]
        state = Text(program["state"], style=_STATE_STYLES.get(program["state"], ""))
        process = program["process"] or {}
        figures = (str(process.get(name, "")) for name in _FIGURES)
        name = "" if program["name"] == program["id"] else escaped(program["name"])
        listed.add_row(public_id, name, program["form"], state, *figures)
    return listed


_FIGURES = ("num_prefilled_tokens", "num_cached_tokens", "num_generated_tokens", "num_pages")


def _log_line(line: dict[str, Any]) -> str:
    moment = datetime.fromtimestamp(line["time"]).astimezone()
    fields = "".join(f" {name}={_shown(value)}" for name, value in line["fields"].items())
    return f"{moment:%H:%M:%S} {line['level']:7} {line['text']}{fields}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value.isalnum() else json.dumps(value)


__all__ = [
    "attach",
    "first_build",
    "kill",
    "logs",
    "process_table",
    "ps",
    "push",
    "read_program",
    "upload_table",
]
