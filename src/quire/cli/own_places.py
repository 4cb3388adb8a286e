"""Errors of code that was sent to a node, with the file's name here in place of the name there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quire.core.errors import QuireError

_THERE = re.compile(
    r"""(?x) (?<=File\ ") (?: [^"\n]* \b uploaded\.py (?P<inside> /[^"\n]* )?
                          | the\ uploaded\ source ) (?=")
      | \b uploaded\.py (?= ,\ line\ \d+\) )"""
)
"""In the lines of a traceback, and behind the message of a syntax error."""


def with_own_places(text: str, program: str) -> str:
    """``text`` of an error of ``program``; the name of a program of the node changes nothing."""
    if not Path(program).exists():
        return text
    return _THERE.sub(lambda found: f"{program.rstrip('/')}{found['inside'] or ''}", text)


@contextmanager
def own_places(program: str) -> Iterator[None]:
    """An error that is raised within names lines of the file or folder ``program``."""
    try:
        yield
    except QuireError as exc:
        exc.message = with_own_places(exc.message, program)
        exc.args = (exc.message, *exc.args[1:])
        raise
