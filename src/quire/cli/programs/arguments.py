"""The words after ``--`` of ``quire run``: a program's arguments, or a request for its help."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.text import Text

from quire.cli.console import escaped, output, table
from quire.core.errors import InvalidArgument
from quire.programs.parameters import Parameter, usage

_NAMED = re.compile(r"--([A-Za-z_][\w-]*)(?:=(.*))?", re.DOTALL)


class GivenArguments(NamedTuple):
    """Arguments by position and by name; ``help``: only ``--help`` was given. ``alone``: the names
    that came without a value."""

    args: list[str]
    named: dict[str, str]
    help: bool = False
    alone: tuple[str, ...] = ()

    @property
    def body(self) -> dict[str, Any]:
        """The arguments in the form of a launch request."""
        return {"args": self.args, "named_args": self.named}


def split(texts: Sequence[str]) -> GivenArguments:
    """Split the words into arguments. ``--NAME VALUE`` and ``--NAME=VALUE`` give an argument by
    name, ``--NAME`` alone gives it ``true``. After a further ``--`` every word is a positional
    argument.

    Raises:
        InvalidArgument: a name was given twice.
    """
    if list(texts) == ["--help"]:
        return GivenArguments([], {}, help=True)
    args: list[str] = []
    named: dict[str, str] = {}
    alone: list[str] = []
    at = 0
    while at < len(texts):
        text, at = texts[at], at + 1
        if text == "--":
            args += texts[at:]
            break
        found = _NAMED.fullmatch(text)
        if found is None:
            args.append(text)
            continue
        name, value = found[1], found[2]
        if value is None:
            has_value = at < len(texts) and texts[at] != "--" and not _NAMED.fullmatch(texts[at])
            value, at = (texts[at], at + 1) if has_value else ("true", at)
            if not has_value:
                alone.append(name)
        if name in named:
            raise InvalidArgument(f"--{name} was given twice: give it once")
        named[name] = value
    return GivenArguments(args, named, alone=tuple(alone))


def require_values(given: GivenArguments, parameters: Sequence[Parameter] | None) -> None:
    """Refuse a name that came without a value, if its argument is not one that may be true alone.
    ``parameters``: those of the program, None if it declares none.

    Raises:
        InvalidArgument: a value is missing.
    """
    known = {one.name: one for one in parameters or ()}
    for name in given.alone:
        one = known.get(name) or known.get(name.replace("-", "_"))
        if one is not None and one.kind in _NEED_VALUES and "true" not in one.choices:
            raise InvalidArgument(f"--{name} has no value: give {one.expected}, --{name} VALUE")


_NEED_VALUES = ("text", "integer", "number")
"""The kinds of arguments that are never ``true``, or not without saying so."""


_RESTARTABLE = (
    "restartable: it goes on from its record if its engine is lost, and at another node if its own "
    "is drained, or lost behind 'quire router --resume'"
)
_NOT_RESTARTABLE = "not restartable: it may end with an error if its engine is lost"


def show_help(
    program: str,
    description: str,
    parameters: Sequence[Parameter] | None,
    *,
    restartable: bool,
) -> None:
    """Print a program's description, what happens to it when its engine is lost, and its
    parameters; ``parameters`` is ``None`` if the program does not declare them."""
    console = output()
    console.print(escaped(description or program))
    console.print()
    console.print(_RESTARTABLE if restartable else _NOT_RESTARTABLE)
    console.print()
    shown = "[ARGUMENT ...]" if parameters is None else usage(parameters)
    console.print(escaped(f"usage: quire run {program} -- {shown}"))
    if not parameters:
        return
    listed = table("argument", "what it is", "default", wrap=("what it is",))
    for one in parameters:
        words = f"{one.help.rstrip('.')}: {one.expected}" if one.help else one.expected
        default = "" if one.required or one.by in ("rest", "names") else one.default
        listed.add_row(escaped(one.name), Text(escaped(words)), escaped(default))
    console.print(listed)
