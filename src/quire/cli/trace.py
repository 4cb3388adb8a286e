"""``quire trace``: what a program did, as a file for ui.perfetto.dev."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from quire.cli.client import NodeClient
from quire.cli.console import counted, messages
from quire.cli.options.shared import DEFAULT_URL, ApiKey, Url
from quire.cli.perfetto import trace_file
from quire.core.errors import ConfigError, InvalidArgument
from quire.node import trace_log
from quire.server.programs.traces import trace_body
from quire.server.schemas.traces import ProgramTrace


def trace(
    program: Annotated[
        str | None,
        typer.Argument(
            help="Id of a program, or of a session (either of its ids). With --log: number, name "
            "or client id; default: all programs of the log."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The file; default: standard output."),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            help="Read an event log ('quire serve --record') instead of asking a running node."
        ),
    ] = None,
    family: Annotated[
        bool,
        typer.Option(
            "--family/--alone", help="Include the programs that it launched, or leave them out."
        ),
    ] = True,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
) -> None:
    """Write what a program did and when as a trace that ui.perfetto.dev opens.

    The trace has tracks for the program, its calls, the waits between them, the transfers of its
    pages between device and host, and the batch messages that carried its calls. A node keeps the
    latest 256 calls of each program; an event log has all calls. The trace contains no tokens.

    Examples:

        quire trace prog-0123456789abcdef01234567 -o trace.json

        quire trace my-session --alone -o trace.json

        quire trace --log events.log -o trace.json
    """
    if log is None and program is None:
        raise InvalidArgument("name a program, or an event log with --log: see 'quire ps'")
    found = _of_node(url, api_key, program or "", family) if log is None else None
    if log is not None:
        found = _of_log(log, program, family)
    assert found is not None
    text = json.dumps(trace_file(found))
    if output is None:
        typer.echo(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"the trace {output} cannot be written: {exc}") from exc
    num_calls = sum(len(one.calls) for one in found.programs)
    messages().print(
        f"{counted(len(found.programs), 'program')}, {counted(num_calls, 'call')}, "
        f"{counted(len(found.messages), 'message')} in {output}: open it in https://ui.perfetto.dev"
    )


def _of_node(url: str, api_key: str | None, program: str, family: bool) -> ProgramTrace:
    with NodeClient(url, api_key) as node:
        return ProgramTrace.model_validate(node.trace(program, family=family))


def _of_log(path: Path, program: str | None, family: bool) -> ProgramTrace:
    found = trace_log(path, program, family=family)
    if found.divergence is not None:
        messages().print(
            f"the trace ends at event {found.divergence.index}, where this release decides "
            "otherwise than the one that recorded: see 'quire replay'",
            style="yellow",
        )
    return trace_body(found.trace)
