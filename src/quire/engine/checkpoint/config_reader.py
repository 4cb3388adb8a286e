"""Reads values from an untrusted ``config.json`` or ``generation_config.json`` within bounds.

A configuration determines allocations, so every number is checked against the range of real models
before use. A reader also records which keys were read, for ``config_accounting``. It does not know
what keys mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.core.errors import ModelFormatError


@dataclass(slots=True)
class ReadKeys:
    """The keys of one JSON object that any of its readers has read."""

    names: set[str] = field(default_factory=set)
    sections: dict[str, ConfigReader] = field(default_factory=dict)


class ConfigReader:
    """Typed, bounded access to one JSON object; ``where`` names it in error messages.

    ``keys`` are shared with the readers that ``over`` and ``without`` return.
    """

    def __init__(self, values: Mapping[str, Any], where: str, keys: ReadKeys | None = None) -> None:
        self.values = values
        self.where = where
        self.keys = ReadKeys() if keys is None else keys

    def has(self, name: str) -> bool:
        """Whether there is a value other than null. Counts a null as read, any other value not."""
        return not self.is_null(name) and name in self.values

    def raw(self, name: str, default: Any = None) -> Any:
        """The value, unchecked."""
        self.keys.names.add(name)
        return self.values.get(name, default)

    def is_null(self, name: str) -> bool:
        """Whether the value is an explicit null, as distinct from a missing key."""
        is_null = name in self.values and self.values[name] is None
        if is_null:
            self.keys.names.add(name)
        return is_null

    def over(self, defaults: Mapping[str, Any]) -> ConfigReader:
        """The same object with ``defaults`` for missing keys."""
        return ConfigReader({**defaults, **self.values}, self.where, self.keys)

    def without(self, *names: str) -> ConfigReader:
        """The same object as if it did not have ``names``, which this neither counts as read nor as
        unread."""
        kept = {name: value for name, value in self.values.items() if name not in names}
        return ConfigReader(kept, self.where, self.keys)

    def set_aside(self, *names: str) -> None:
        """Count ``names`` as read, because another key that was read makes them irrelevant."""
        self.keys.names.update(names)

    def integer(self, name: str, high: int, *, low: int = 1, default: int | None = None) -> int:
        """An integer in ``low..high``."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._bad(name, value, f"an integer from {low} to {high}")
        return value

    def number(self, name: str, *, low: float, high: float, default: float | None = None) -> float:
        """A finite number in ``low..high``."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._bad(name, value, "a number")
        if not (low <= value <= high and math.isfinite(value)):
            raise self._bad(name, value, f"a number from {low:g} to {high:g}")
        return float(value)

    def numbers(self, name: str, count: int, *, low: float, high: float) -> tuple[float, ...]:
        """A list of exactly ``count`` finite numbers in ``low..high``."""
        values = self._value(name, None)
        if not isinstance(values, list) or len(values) != count:
            raise self._bad(name, values, f"a list of {count} numbers")
        elements = ConfigReader({str(i): v for i, v in enumerate(values)}, f"{self.where}: {name}")
        return tuple(elements.number(str(i), low=low, high=high) for i in range(count))

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self._bad(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self._bad(name, value, "a string")
        return value

    def section(self, name: str) -> ConfigReader | None:
        """The object under ``name``, or None when it is absent or null."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._bad(name, value, "an object")
        section = self.keys.sections.get(name)
        if section is None or section.values is not value:
            section = self.keys.sections[name] = ConfigReader(value, f"{self.where}: {name}")
        return section

    def _value(self, name: str, default: Any) -> Any:
        value = self.raw(name)
        if value is not None:
            return value
        if default is None:
            raise ModelFormatError(
                f"{self.where} has no {name!r}: the checkpoint is incomplete; export it again"
            )
        return default

    def _bad(self, name: str, value: Any, wanted: str) -> ModelFormatError:
        return ModelFormatError(
            f"{self.where} has {name} = {str(value)[:80]!r}, but it must be {wanted}: "
            "the file is damaged or not meant for this architecture"
        )
