"""One mapping of a configuration file, read key by key.

Owns the checks of single values and their messages. Each value is named by its place, e.g.
``nodes[1].count``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from quire.core.errors import ConfigError

_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,29}[a-z0-9])?")


def refuse(place: str, value: object, wanted: str) -> ConfigError:
    """Return the error for a value that is not of the ``wanted`` form."""
    return ConfigError(f"{place} is {_shown(value)}: {wanted}")


class Section:
    """A mapping at ``place``, which may only have the keys ``keys``.

    Raises:
        ConfigError: it is no mapping, or has another key.
    """

    def __init__(self, value: Any, place: str, keys: Sequence[str]) -> None:
        if not isinstance(value, Mapping):
            raise refuse(place or "the file", value, f"write a mapping with {', '.join(keys)}")
        for key in value:
            if key not in keys:
                where = place or "the file"
                raise ConfigError(f"{where} has no key {key!r}: there are {', '.join(keys)}")
        self._value = value
        self._place = place

    def place(self, key: str) -> str:
        return f"{self._place}.{key}" if self._place else key

    def has(self, key: str) -> bool:
        return self._value.get(key) is not None

    def raw(self, key: str, default: Any = None) -> Any:
        """Return the value as the file has it. A key without a value counts as missing."""
        return self._value[key] if self.has(key) else default

    def required(self, key: str, what: str) -> Any:
        if not self.has(key):
            raise ConfigError(f"{self.place(key)} is missing: {what}")
        return self._value[key]

    def name(self, key: str, default: str | None = None) -> str:
        wanted = "write lower-case letters, digits and hyphens, a letter first, at most 31"
        value = self.required(key, wanted) if default is None else self.raw(key, default)
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise refuse(self.place(key), value, wanted)
        return value

    def text(self, key: str) -> str | None:
        value = self.raw(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise refuse(self.place(key), value, "write a text")
        return value

    def whole(self, key: str, default: int, least: int, most: int) -> int:
        value = self.raw(key, default)
        if type(value) is not int or not least <= value <= most:
            raise refuse(self.place(key), value, f"write a whole number from {least} to {most}")
        return value

    def number(self, key: str, default: float, least: float, most: float) -> float:
        value = self.raw(key, default)
        is_number = type(value) in (int, float) and math.isfinite(value)
        if not is_number or not least <= value <= most:
            raise refuse(self.place(key), value, f"write a number from {least:g} to {most:g}")
        return float(value)

    def choice(self, key: str, default: str, choices: Sequence[str]) -> str:
        value = self.raw(key, default)
        if value not in choices:
            raise refuse(self.place(key), value, f"write one of {', '.join(choices)}")
        return str(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a text, or a list of texts, as a tuple."""
        value = self.raw(key, [])
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
            raise refuse(self.place(key), value, "write a list of texts")
        return tuple(found)

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self.raw(key, {})
        if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value):
            raise refuse(self.place(key), value, "write a mapping of names to values")
        return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
