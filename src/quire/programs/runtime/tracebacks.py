"""What the owner of a failed program is told: its error, with the frames of its own file alone."""

from __future__ import annotations

import traceback

from quire.core.errors import ProgramFailed, QuireError

MAX_TRACEBACK_CHARS = 16_384


def program_failed(name: str, source: str | None, error: BaseException) -> ProgramFailed:
    """``error``, raised by the program ``name`` in file ``source``, as its owner sees it.

    ``details`` has the ``traceback`` and, for one of Quire's own errors, its ``code``.
    """
    summary = traceback.TracebackException.from_exception(error, compact=True)
    _keep_frames(summary, source)
    text = "".join(summary.format())
    if len(text) > MAX_TRACEBACK_CHARS:
        text = "...\n" + text[-MAX_TRACEBACK_CHARS:]
    details = {"traceback": text, "error": type(error).__name__}
    if isinstance(error, QuireError):
        details["code"] = error.code
    return ProgramFailed(f"program {name!r} raised {_one_line(error)}\n{text}", **details)


def _one_line(error: BaseException) -> str:
    message = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _keep_frames(summary: traceback.TracebackException, source: str | None) -> None:
    summary.stack[:] = [frame for frame in summary.stack if frame.filename == source]
    for other in (summary.__cause__, summary.__context__, *(summary.exceptions or ())):
        if other is not None:
            _keep_frames(other, source)


__all__ = ["program_failed"]
