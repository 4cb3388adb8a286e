"""The error report for a failed program's owner: its error, with frames of its own files only.

Must not raise: an error that cannot be shown would keep the program that raised it from ending.
"""

from __future__ import annotations

import traceback

from quire.core.errors import ProgramFailed, QuireError

MAX_TRACEBACK_CHARS = 16_384
_MAX_GROUPS = 100
"""Bounds the search, because a group may claim to contain itself."""
_MAX_ERRORS = 1000
"""Causes and members of one error that are followed; Python's traceback module follows any
number."""
_LINKS = frozenset({"__cause__", "__context__", "__getattribute__", "exceptions"})
_BUILT_IN = (object, BaseException, Exception, BaseExceptionGroup, ExceptionGroup)


def program_failed(
    name: str, source: str | None, error: BaseException, folder: str | None = None
) -> ProgramFailed:
    """The report of ``error``, raised by the program ``name`` in file ``source``. ``folder``: the
    directory of its other files, if it has some.

    ``details`` has the ``traceback`` and, for one of Quire's own errors, its ``code``.
    """
    try:
        text = own_traceback(error, source, folder)
        line = one_line(error)
        details = {"traceback": text, "error": type(error).__name__}
        if isinstance(cause := _only_one_in(error), QuireError):
            details["code"] = type(cause).code
    except BaseException:  # the program may have defined the error's name and attributes
        return ProgramFailed(f"program {name!r} raised an error that cannot be shown")
    return ProgramFailed(f"program {name!r} raised {line}\n{text}", **details)


def own_traceback(error: BaseException, source: str | None, folder: str | None = None) -> str:
    """``error`` with its causes, as Python prints them, without frames outside of ``source`` and
    ``folder``.

    Causes that were raised entirely in other code are left out; the error's own message covers
    them.
    """
    try:
        _check_is_finite(error)
        summary = traceback.TracebackException.from_exception(error, compact=True)
        _keep_frames(summary, source, f"{folder or source}/")
        text = "".join(summary.format())
    except BaseException:  # causes nested too deep, or attributes that the program defined
        return f"{one_line(error)} (its traceback cannot be shown)\n"
    return text if len(text) <= MAX_TRACEBACK_CHARS else "...\n" + text[-MAX_TRACEBACK_CHARS:]


def _check_is_finite(error: BaseException) -> None:
    """Raise ValueError if following causes and members might not end."""
    waiting, seen = [error], {id(error)}
    while waiting:
        one = waiting.pop()
        bases = [base for base in type(one).__mro__ if base not in _BUILT_IN]
        if any(_LINKS & vars(base).keys() for base in bases):
            raise ValueError("a class computes its causes or members, perhaps new ones each time")
        members = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        for linked in (one.__cause__, one.__context__, *members):
            if linked is not None and id(linked) not in seen:
                seen.add(id(linked))
                waiting.append(linked)
        if len(seen) > _MAX_ERRORS:
            raise ValueError(f"it has more than {_MAX_ERRORS} causes and members")


def one_line(error: BaseException) -> str:
    """The type and the first line of the message; for a group with one member, also of the
    member."""
    try:
        message = str(error).partition("\n")[0]
    except BaseException:  # the program's own __str__ may raise anything, as SystemExit
        message = "<its message cannot be shown>"
    line = f"{type(error).__name__}: {message}" if message else type(error).__name__
    inner = _only_one_in(error)
    return line if inner is error else f"{line}: {one_line(inner)}"


def _only_one_in(error: BaseException) -> BaseException:
    """The member of a group (of ``TaskGroup``), if it has exactly one; any other error itself."""
    for _ in range(_MAX_GROUPS):
        if not isinstance(error, BaseExceptionGroup) or len(error.exceptions) != 1:
            break
        error = error.exceptions[0]
    return error


def _keep_frames(summary: traceback.TracebackException, source: str | None, within: str) -> None:
    """Drop the frames that are not in file ``source``, nor in a file whose name begins with
    ``within``: the other files of a program of several files."""
    summary.stack[:] = [
        frame
        for frame in summary.stack
        if frame.filename == source or frame.filename.startswith(within)
    ]
    for other in summary.exceptions or ():
        _keep_frames(other, source, within)
    summary.__cause__ = _own(summary.__cause__, source, within)
    summary.__context__ = _own(summary.__context__, source, within)


def _own(
    cause: traceback.TracebackException | None, source: str | None, within: str
) -> traceback.TracebackException | None:
    """``cause`` if it is the program's own, else the next cause that is."""
    if cause is None:
        return None
    was_raised = bool(cause.stack)
    _keep_frames(cause, source, within)
    nearer = cause.__cause__ or cause.__context__
    return cause if cause.stack or cause.exceptions or not was_raised else nearer
