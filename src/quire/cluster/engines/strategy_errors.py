"""The errors and results of a strategy as texts of bounded length.

A strategy's own classes may raise anything when they are shown, or give texts of any length that
cannot be encoded. Must not know where the strategy comes from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

MAX_CHARS = 500
_MAX_NAME_CHARS = 100
_UNSHOWN = "(it cannot be shown)"


def said_of(error: BaseException) -> str:
    """Return the type and the message of ``error``."""
    name = _bounded(type(error).__name__, _MAX_NAME_CHARS)
    return f"{name}: {_shown(lambda: str(error))}"


def shown(value: object) -> str:
    """Return the ``repr`` of ``value``."""
    return _shown(lambda: repr(value))


def line_of(error: BaseException) -> int | None:
    """Return the line in which ``error`` was raised; of a syntax error, the line that it is
    about."""
    if isinstance(error, SyntaxError) and isinstance(error.lineno, int):
        return error.lineno
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else trace.tb_lineno


def line_within(error: BaseException, filename: str) -> int | None:
    """Return the line of the code of ``filename`` in which ``error`` was raised, or from which what
    raised it was called; None if that code was not running."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def is_ending(error: BaseException) -> bool:
    """Return whether ``error`` ends the running task, and is not raised by the strategy itself."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, GeneratorExit)


def _shown(show: Callable[[], str]) -> str:
    try:
        return _bounded(show(), MAX_CHARS)
    except BaseException:  # its own methods may raise anything, SystemExit too
        return _UNSHOWN


def _bounded(text: str, most: int) -> str:
    cut = text if len(text) <= most else f"{text[:most]}..."
    return cut.encode("utf-8", "backslashreplace").decode()
