"""``quire push``: stores programs on a running node, to be launched by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from quire.cli.client import NodeClient
from quire.cli.console import escaped, output, table
from quire.cli.options.shared import DEFAULT_URL, ApiKey, Url
from quire.cli.process_table import SHORT_ID_CHARS
from quire.cli.programs.own_places import own_places
from quire.cli.programs.sending import sending
from quire.client.requests import read_code


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
            code = read_code(file)
            with own_places(str(file)), sending(node, file):
                pushed = node.push(code)
            output().print(f"{pushed['name']} {pushed['id']}")
        if not files and delete is None:
            output().print(upload_table(node.uploads()))


def upload_table(uploads: list[dict[str, Any]]) -> Table:
    """Return the answer of ``/v1/programs/uploads`` as a table."""
    listed = table(
        "program", "kind", "bytes", "id", "what it does", right=("bytes",), wrap=("what it does",)
    )
    for upload in uploads:
        described = upload["description"].partition("\n")[0]
        short = upload["id"][:SHORT_ID_CHARS]
        name, num_bytes = escaped(upload["name"]), str(upload["num_bytes"])
        listed.add_row(name, upload["kind"], num_bytes, short, escaped(described))
    return listed
