"""The program of a launch request: from the library, from an upload, or in the request.

Uploaded source runs in the sandbox. With ``--allow-upload`` it runs as native Python instead, with
the rights of this process; a program of several files does not, because the modules of one would
be those of all.
"""

from __future__ import annotations

import asyncio
import base64
import linecache
import weakref
from dataclasses import replace
from typing import Protocol

from quire.core.config import ServerConfig
from quire.core.errors import Forbidden, InvalidArgument, UnknownHandle
from quire.core.ids import TenantId
from quire.core.program_files import is_package, package_code
from quire.core.scratch import ScratchDirectory
from quire.node.programs.uploads import UploadTable
from quire.programs.inferlet import Inferlet, load_inferlet
from quire.programs.library import LIBRARY, suggestion
from quire.programs.sandbox.program import GuestProgram, is_module
from quire.programs.workflow.applications import Applications
from quire.server.schemas.programs import LaunchRequest, UploadRequest


class Sandbox(Protocol):
    """The part of a node that is needed here: it inspects programs and finds uploaded ones."""

    uploads: UploadTable

    async def inspect(self, code: bytes) -> GuestProgram: ...


async def program_of(
    request: LaunchRequest,
    tenant: TenantId,
    config: ServerConfig,
    sandbox: Sandbox,
    workflows: Applications,
) -> Inferlet | GuestProgram:
    """Return the program to launch. ``workflows``: the workflows that the node serves.

    Raises:
        Forbidden: code was sent and this server does not accept it.
        InvalidArgument: the code does not load, or has no single entry.
        UnknownHandle: neither the library nor the tenant has such a program.
        ConfigError: this installation has no sandbox.
    """
    if request.program is not None:
        if request.program in workflows:
            return workflows[request.program].program
        found = LIBRARY.get(request.program)
        return found or await _uploaded(request.program, tenant, sandbox)
    source = request.source
    if source is not None and config.allow_native_upload and not is_package(source):
        # importing runs the client's module code, which may block
        return await asyncio.to_thread(native_program, source)
    return await sandbox.inspect(code_of(request, config))


async def _uploaded(name: str, tenant: TenantId, sandbox: Sandbox) -> GuestProgram:
    """Return an uploaded program, by name or digest only: a path in a request must never reach the
    file system."""
    try:
        upload = await asyncio.to_thread(sandbox.uploads.find, name, tenant)
    except UnknownHandle as exc:
        raise UnknownHandle(
            f"no program {name!r}{suggestion(name)} is shipped or uploaded: 'quire run --list' and "
            "GET /v1/programs/library list the shipped ones; push your own first (quire push FILE)",
            param="program",
        ) from exc
    return upload.program


def code_of(request: LaunchRequest | UploadRequest, config: ServerConfig) -> bytes:
    """Return the code for the sandbox: the text of ``source``, ``files`` as one program, or
    ``module`` decoded from base64.

    Raises:
        Forbidden: this server has no sandbox for its clients.
        InvalidArgument: none is given, the files are no program, or ``module`` is not WebAssembly
            in base64.
    """
    source, files, module = request.source, request.files, request.module
    if not config.sandbox_upload:
        raise Forbidden(
            "this server takes no uploaded programs: launch one of the library, or start the "
            "server without --no-sandbox",
            param="source" if module is None else "module",
        )
    if files is not None:
        return package_code(files)
    if source is not None:
        return source.encode("utf-8", "surrogatepass")
    try:
        code = base64.b64decode(module or "", validate=True)
    except ValueError as exc:
        raise InvalidArgument(f"the module is not base64: {exc}", param="module") from exc
    if not is_module(code):
        raise InvalidArgument(
            f"the module begins with {code[:4].hex() or 'nothing'}, WebAssembly with 0061736d: "
            "send the .wasm file",
            param="module",
        )
    return code


def native_program(source: str) -> Inferlet:
    """Import the source that a client has sent, with the rights of this process. Blocks.

    Raises:
        InvalidArgument: it cannot be imported, or has no single entry.
    """
    with ScratchDirectory("upload") as folder:
        path = folder.path / "uploaded.py"
        path.write_text(source, "utf-8")
        program = load_inferlet(path, shown_as="the uploaded source")
    _keep_lines(program, source)
    return replace(program, text=source)


def _keep_lines(program: Inferlet, source: str) -> None:
    """Let tracebacks show the lines of a deleted file, as long as the program is known.

    ``linecache`` does not look up an entry without a modification time again.
    """
    assert program.source is not None, "load_inferlet found it by its file"
    lines = source.splitlines(keepends=True)
    linecache.cache[program.source] = (len(source), None, lines, program.source)
    forget = weakref.finalize(program.main, linecache.cache.pop, program.source, None)
    forget.atexit = False
