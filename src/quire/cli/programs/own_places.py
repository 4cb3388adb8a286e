"""Errors of code that was sent to a node, with the local file's name in place of the node's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quire.core.errors import QuireError
from quire.core.program_files import MAIN

_THERE = re.compile(
    r"""(?x) (?<=File\ ") (?: [^"\n]* \b uploaded\.py (?P<inside> /[^"\n]* )?
                          | the\ uploaded\ source ) (?=")
      | \b uploaded\.py (?= ,\ line\ \d+\) )"""
)
"""The node's name in the lines of a traceback, and after the message of a syntax error."""


def with_own_places(text: str, program: str) -> str:
    """Return ``text``, an error of ``program``, with the local file's name; unchanged if
    ``program`` is the name of a program of the node."""
    here = Path(program)
    if not here.exists():
        return text
    main = f"/{MAIN}" if here.is_dir() else ""
    return _THERE.sub(lambda found: f"{program.rstrip('/')}{found['inside'] or main}", text)


@contextmanager
def own_places(program: str) -> Iterator[None]:
    """Make an error that is raised within name the file or folder ``program``."""
    try:
        yield
    except QuireError as exc:
        exc.message = with_own_places(exc.message, program)
        exc.args = (exc.message, *exc.args[1:])
        raise
