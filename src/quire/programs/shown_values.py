"""What a program may leave behind as a value: JSON that every reader of it can read.

Python makes JSON of more than others take: its own encoder knows neither how deep an answer may
be, nor that a name must be text in UTF-8. One such value would spoil each list that it stands in.
"""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 64
"""Arrays and objects in one another; so deep may the body of a request be, too."""


def problem_with(value: Any) -> str | None:
    """Why ``value``, of which JSON can be made, cannot be shown to those who ask for it."""
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
        return True  # JSON makes text of numbers
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
