"""Turns the options of a file into the arguments of a command.

Owns how a value is written on a command line, and which options the cluster decides itself. The
options of a command are given from outside: this package does not know the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from quire.core.errors import ConfigError

OptionKind = Literal["flag", "value", "values"]


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """The options of one command, without their dashes. ``negative``: the forms that switch a flag
    off. ``check`` raises ``ConfigError`` for arguments that the command would refuse. ``decided``:
    the options that the cluster decides, each with what to do instead."""

    name: str
    kinds: Mapping[str, OptionKind]
    negative: Mapping[str, str]
    check: Callable[[Sequence[str]], None]
    decided: Mapping[str, str] = field(default_factory=dict)

    def arguments(self, options: Mapping[str, Any], place: str) -> tuple[str, ...]:
        """Return ``options`` as arguments.

        Raises:
            ConfigError: one is unknown, decided by the cluster, or has a value of the wrong form.
        """
        found: list[str] = []
        for name, value in options.items():
            where = f"{place}.{name}"
            if name in self.decided:
                raise ConfigError(f"{where}: {self.decided[name]}")
            if name not in self.kinds:
                choices = ", ".join(sorted(set(self.kinds) - set(self.decided)))
                raise ConfigError(f"{where}: 'quire {self.name}' has no such option: {choices}")
            found += self._written(name, value, where)
        return tuple(found)

    def _written(self, name: str, value: Any, where: str) -> list[str]:
        kind = self.kinds[name]
        if kind == "flag":
            if not isinstance(value, bool):
                raise ConfigError(f"{where} is {value!r}: write true or false")
            if value:
                return [f"--{name}"]
            return [f"--{self.negative[name]}"] if name in self.negative else []
        if kind == "values":
            values = value if isinstance(value, list) else [value]
            return [f"--{name}={_text(one, where)}" for one in values]
        return [f"--{name}={_text(value, where)}"]


def _text(value: Any, where: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{where} is {value!r}: write a text or a number")
    text = str(value)
    if not text.isprintable():
        raise ConfigError(f"{where} is {value!r}: write one printable line")
    return text
