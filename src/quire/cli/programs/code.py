"""Resolves the word that names a program on the command line: a program of the library, a file, a
folder, or a name that a node knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from quire.cli.console import messages
from quire.cli.programs.folder import load_folder
from quire.client.requests import read_code
from quire.client.wire import code_body
from quire.core.errors import InvalidArgument
from quire.programs import library
from quire.programs.inferlet import Inferlet


def named_program(program: str, sandbox: bool) -> Inferlet | bytes:
    """Return the native program that is named, or code for the sandbox.

    Raises:
        InvalidArgument: there is no such program.
    """
    path = Path(program)
    if program not in library.LIBRARY and path.is_dir():
        return read_code(path) if sandbox else load_folder(path)
    is_file = program not in library.LIBRARY and (program.endswith(".wasm") or sandbox)
    if is_file and (program.endswith((".py", ".wasm")) or "/" in program):
        return read_code(path)
    found = library.find(program)
    if not sandbox:
        return found
    assert found.source is not None, "a shipped program has a file"
    return Path(found.source).read_bytes()


def program_here(program: str) -> Inferlet | None:
    """Return the program of this installation that is named, loaded here for what it says of
    itself; None if the word names neither a program of the library nor Python code.

    Raises:
        InvalidArgument: the code cannot be loaded.
    """
    path = Path(program)
    if program not in library.LIBRARY and path.is_dir():
        return load_folder(path)
    if program in library.LIBRARY or path.suffix == ".py":
        return library.find(program)
    return None


def request_code(program: str, is_known: Callable[[], bool]) -> dict[str, Any]:
    """Return the program of a launch request: the code of a file or folder, or a name for the node
    to look up. A word without a slash or suffix is a name, unless the node does not know it and it
    is a folder here. ``is_known``: asks the node, and is called for such a folder alone.

    Raises:
        InvalidArgument: the file cannot be read, or is not a program.
    """
    path = Path(program)
    is_path = path.suffix or "/" in program or program in (".", "..")
    if program in library.LIBRARY or (not is_path and not path.is_dir()):
        return {"program": program}
    if not is_path and is_known():
        messages().print(
            f"{program} is a program that the node knows; the folder of this name is {program}/"
        )
        return {"program": program}
    if path.is_dir():
        return code_body(read_code(path))
    try:
        return code_body(path.read_bytes())
    except OSError as exc:
        raise InvalidArgument(
            f"{program} is neither a program of the library ('quire run --list') nor a file that "
            f"can be read ({exc.strerror}): check its name"
        ) from exc
