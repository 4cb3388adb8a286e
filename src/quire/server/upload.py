"""Which program a launch request means: one of the library, or uploaded source.

Uploaded source runs in the sandbox. Where the server's operator has allowed it for all who hold a
key, it is native Python instead, with the rights of this process.
"""

from __future__ import annotations

import asyncio
import linecache
import tempfile
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path

from quire.core.config import ServerConfig
from quire.core.errors import Forbidden, InvalidArgument, UnknownHandle
from quire.programs.inferlet import Inferlet, load_inferlet
from quire.programs.library import LIBRARY
from quire.programs.sandbox.program import GuestProgram
from quire.server.schemas.programs import LaunchRequest

Inspect = Callable[[str], Awaitable[GuestProgram]]
"""Has the sandbox look at source; see ``Node.inspect``."""


async def program_of(
    request: LaunchRequest, config: ServerConfig, inspect: Inspect
) -> Inferlet | GuestProgram:
    """The program to launch.

    Raises:
        Forbidden: source was sent and this server does not take it.
        InvalidArgument: the source does not import, or has no single entry.
        UnknownHandle: the library has no such program.
        ConfigError: this installation has no sandbox.
    """
    if request.program is not None:
        return _of_library(request.program)
    if request.source is None:
        raise InvalidArgument("give either program (a library name) or source")
    if config.allow_native_upload:
        # importing runs the client's module code, which may block
        return await asyncio.to_thread(_load_source, request.source)
    if not config.sandbox_upload:
        raise Forbidden(
            "this server takes no uploaded source: launch a program of the library, or start the "
            "server without --no-sandbox",
            param="source",
        )
    return await inspect(request.source)


def _of_library(name: str) -> Inferlet:
    """By name alone: a path in a request must never reach the file system."""
    program = LIBRARY.get(name)
    if program is None:
        raise UnknownHandle(
            f"no program {name!r} in the library; it has {', '.join(sorted(LIBRARY))}",
            param="program",
        )
    return program


def _load_source(source: str) -> Inferlet:
    with tempfile.TemporaryDirectory(prefix="quire-upload-") as folder:
        path = Path(folder) / "uploaded.py"
        path.write_text(source, "utf-8")
        program = load_inferlet(path, shown_as="the uploaded source")
    _keep_lines(program, source)
    return program


def _keep_lines(program: Inferlet, source: str) -> None:
    """Let tracebacks show the lines of a file that is gone, for as long as the program is known.

    An entry without a time of modification is one that ``linecache`` does not look up again.
    """
    assert program.source is not None, "load_inferlet found it by its file"
    lines = source.splitlines(keepends=True)
    linecache.cache[program.source] = (len(source), None, lines, program.source)
    forget = weakref.finalize(program.main, linecache.cache.pop, program.source, None)
    forget.atexit = False


__all__ = ["Inspect", "program_of"]
