"""Checks that a program's result is JSON that every reader can read.

Python's encoder accepts more than other readers: any depth of nesting, names that are not valid
UTF-8, and NaN and infinity. One such value would make every listing that includes it unreadable, or
be another value for the client than for the program.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import isfinite
from typing import Any

MAX_DEPTH = 64
"""Nesting depth of arrays and objects; the same limit holds for request bodies."""


def problem_with(value: Any) -> str | None:
    """Why ``value``, which is encodable as JSON, cannot be shown to readers; None if it can."""
    if (strange := _strange_number([value])) is not None:
        return f"it is {strange}, which JSON does not have"
    layer, depth = [value], 0
    while layer:
        if depth > MAX_DEPTH:
            return f"it is nested deeper than {MAX_DEPTH} levels"
        inner: list[Any] = []
        for one in layer:
            held: Iterable[Any]
            if isinstance(one, dict):
                name = next((key for key in one if not _is_text(key)), None)
                if name is not None:
                    return f"its name {name!a:.80} has half of a surrogate pair"
                held = one.values()
            elif isinstance(one, list | tuple):
                held = one
            else:
                continue
            if (strange := _strange_number(held)) is not None:
                return f"it contains {strange}, which JSON does not have"
            inner += [part for part in held if isinstance(part, dict | list | tuple)]
        layer, depth = inner, depth + 1
    return None


def _strange_number(values: Iterable[Any]) -> str | None:
    """The first of ``values`` that is NaN or infinite, as Python writes it into JSON."""
    found = (one for one in values if isinstance(one, float) and not isfinite(one))
    return next((json.dumps(one) for one in found), None)


def _is_text(name: object) -> bool:
    if not isinstance(name, str) or name.isascii():
        return True  # JSON writes numbers as text
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
