"""Resolves the word that names a program on the command line: a program of the library, a file, a
folder, or a name that a node knows; and reads its code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quire.cli.programs.folder import files_in, load_folder
from quire.client.wire import code_body
from quire.core.errors import InvalidArgument
from quire.programs import library
from quire.programs.inferlet import Inferlet
from quire.programs.package import package_code


def named_program(program: str, sandbox: bool) -> Inferlet | bytes:
    """Return the native program that is named, or code for the sandbox.

    Raises:
        InvalidArgument: there is no such program.
    """
    path = Path(program)
    if program not in library.LIBRARY and path.is_dir():
        return read_program(path) if sandbox else load_folder(path)
    is_file = program not in library.LIBRARY and (program.endswith(".wasm") or sandbox)
    if is_file and (program.endswith((".py", ".wasm")) or "/" in program):
        return read_program(path)
    found = library.find(program)
    if not sandbox:
        return found
    assert found.source is not None, "a shipped program has a file"
    return Path(found.source).read_bytes()


def request_code(program: str) -> dict[str, Any]:
    """Return the program of a launch request: the code of a file, or a name for the node to look
    up.

    Raises:
        InvalidArgument: the file cannot be read, or is not a program.
    """
    path = Path(program)
    if program in library.LIBRARY or not (path.suffix or "/" in program):
        return {"program": program}
    if path.is_dir():
        return code_body(read_program(path))
    try:
        return code_body(path.read_bytes())
    except OSError as exc:
        raise InvalidArgument(
            f"{program} is neither a program of the library ('quire run --list') nor a file that "
            f"can be read: {exc}"
        ) from exc


def read_program(path: Path) -> bytes:
    """Return the code of a file, or of a folder with a ``main.py``.

    Raises:
        InvalidArgument: it cannot be read, or the folder has no program.
    """
    try:
        if path.is_dir():
            return package_code(files_in(path))
        return path.read_bytes()
    except OSError as exc:
        raise InvalidArgument(
            f"{path} cannot be read: {exc.strerror or exc}; name a Python file, a .wasm "
            "module or a folder"
        ) from exc
