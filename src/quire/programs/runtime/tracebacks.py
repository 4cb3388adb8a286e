"""What the owner of a failed program is told: its error, with the frames of its own file alone."""

from __future__ import annotations

from quire.core.errors import ProgramFailed, QuireError
from quire.programs.tracebacks import one_line, own_traceback


def program_failed(name: str, source: str | None, error: BaseException) -> ProgramFailed:
    """``error``, raised by the program ``name`` in file ``source``, as its owner sees it.

    ``details`` has the ``traceback`` and, for one of Quire's own errors, its ``code``.
    """
    text = own_traceback(error, source)
    details = {"traceback": text, "error": type(error).__name__}
    if isinstance(error, QuireError):
        details["code"] = error.code
    return ProgramFailed(f"program {name!r} raised {one_line(error)}\n{text}", **details)


__all__ = ["program_failed"]
