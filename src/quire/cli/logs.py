"""``quire logs``: what a program of a running node has logged."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import typer

from quire.cli.client import NodeClient
from quire.cli.console import show_message
from quire.cli.options.shared import DEFAULT_URL, ApiKey, ProgramId, Url

_FOLLOW_S = 1.0


def logs(
    program: ProgramId,
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
    """Yield the lines of a program's log as they arrive, until the program has ended."""
    seen: list[dict[str, Any]] = []
    while True:
        has_ended = node.program(public_id)["ended"] is not None  # first, so that no line is missed
        lines = node.logs(public_id)
        yield from behind(seen, lines)
        if has_ended:
            return
        seen = lines
        time.sleep(_FOLLOW_S)


def behind(seen: list[dict[str, Any]], lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines of ``lines`` that follow ``seen``. A node keeps only the newest, so the
    oldest of ``seen`` may be missing."""
    for dropped in range(len(seen)):
        kept = seen[dropped:]
        if lines[: len(kept)] == kept:
            return lines[len(kept) :]
    return lines


def _log_line(line: dict[str, Any]) -> str:
    moment = datetime.fromtimestamp(line["time"]).astimezone()
    fields = "".join(f" {name}={_shown(value)}" for name, value in line["fields"].items())
    return f"{moment:%H:%M:%S} {line['level']:7} {line['text']}{fields}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value.isalnum() else json.dumps(value)
