"""Checks that a program's result is JSON that every reader can read.

Python's encoder accepts more than other readers: any depth of nesting, and names that are not valid
UTF-8. One such value would make every listing that includes it unreadable.
"""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 64
"""Nesting depth of arrays and objects; the same limit holds for request bodies."""


def problem_with(value: Any) -> str | None:
    """Why ``value``, which is encodable as JSON, cannot be shown to readers; None if it can."""
    layer, depth = [value], 0
    while layer:
        if depth > MAX_DEPTH:
            return f"it is nested deeper than {MAX_DEPTH} levels"
        inner: list[Any] = []
        for one in layer:
            if isinstance(one, dict):
                name = next((key for key in one if not _is_text(key)), None)
                if name is not None:
                    return f"its name {name!a:.80} has half of a surrogate pair"
                inner += [held for held in one.values() if isinstance(held, dict | list | tuple)]
            elif isinstance(one, list | tuple):
                inner += [held for held in one if isinstance(held, dict | list | tuple)]
        layer, depth = inner, depth + 1
    return None


def _is_text(name: object) -> bool:
    if not isinstance(name, str) or name.isascii():
        return True  # JSON writes numbers as text
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
