"""What errors and results of a strategy say, in a bounded text.

A strategy's own classes may raise anything where they are shown, or give texts of any length that
no encoding can say. Must not know where the strategy comes from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

MAX_CHARS = 500
_MAX_NAME_CHARS = 100
_UNSHOWN = "(it cannot be shown)"


def said_of(error: BaseException) -> str:
    """The type and the message of ``error``."""
    name = _bounded(type(error).__name__, _MAX_NAME_CHARS)
    return f"{name}: {_shown(lambda: str(error))}"


def shown(value: object) -> str:
    """``value`` as Python writes it."""
    return _shown(lambda: repr(value))


def line_of(error: BaseException) -> int | None:
    """The line in which ``error`` was raised, or which it is about."""
    if isinstance(error, SyntaxError) and isinstance(error.lineno, int):
        return error.lineno
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else trace.tb_lineno


def is_ending(error: BaseException) -> bool:
    """Whether ``error`` ends the running task, and is not raised by the strategy itself."""
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
