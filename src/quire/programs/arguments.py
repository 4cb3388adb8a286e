"""A program's arguments: checks the texts of a launch and converts them to the program's types.

Arguments are transported as texts, positional and by name, for every kind of launch. Owns the
conversion and its errors, which name the argument. Must not know who launches, nor where the
program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from quire.core.errors import InvalidArgument
from quire.programs.parameters import By, Kind, Parameter, typed_parameters, usage

_SHOWN_CHARS = 80
_PLACES = ("either", "place")
_NAMES = ("either", "name")

NO_NAMES: Mapping[str, str] = MappingProxyType({})
"""The named arguments of a launch with positional arguments only."""


def check(
    program: str,
    parameters: Sequence[Parameter],
    args: Sequence[str],
    named: Mapping[str, str] = NO_NAMES,
) -> None:
    """Check the arguments of a launch of ``program``, as far as ``parameters`` determine them.

    Raises:
        InvalidArgument: an argument is missing, unknown, given twice or cannot be read; the error
            names it.
    """
    for parameter, text in _Placing(program, parameters).placed(args, named):
        _read(program, parameter, _READ_AS[parameter.kind], text)


def bind(
    program: str,
    main: Callable[..., Any],
    args: Sequence[str],
    named: Mapping[str, str] = NO_NAMES,
) -> tuple[list[Any], dict[str, Any]]:
    """The positional and named values with which to call ``main`` after its ``api``.

    Raises:
        InvalidArgument: see ``check``; or an annotation that cannot be read.
    """
    entry = typed_parameters(main)
    placed = _Placing(program, entry.parameters).placed(args, named)
    values = [_read(program, one, entry.hints[one.name], text) for one, text in placed]
    names = [_parameter_name(name, entry.parameters) for name in named]
    return values[: len(args)], dict(zip(names, values[len(args) :], strict=True))


class _Placing:
    """Finds the parameter of each argument of one launch."""

    def __init__(self, program: str, parameters: Sequence[Parameter]) -> None:
        self._program = program
        self._parameters = parameters
        self._given: set[str] = set()

    def placed(self, args: Sequence[str], named: Mapping[str, str]) -> list[tuple[Parameter, str]]:
        """Each text with its parameter: positional ones first, then those by name."""
        by_place = list(zip(self._by_place(len(args)), args, strict=True))
        by_name = [(self._by_name(name), text) for name, text in named.items()]
        required = [one.name for one in self._parameters if one.required]
        if missing := [name for name in required if name not in self._given]:
            raise self._refused(f"was not given {', '.join(missing)}")
        return by_place + by_name

    def _by_place(self, num_args: int) -> list[Parameter]:
        filled = [one for one in self._parameters if one.by in _PLACES][:num_args]
        self._given.update(one.name for one in filled)
        if len(filled) == num_args:
            return filled
        if (rest := self._taking_all("rest")) is None:
            raise self._refused(f"was given {num_args} positional arguments")
        return filled + [rest] * (num_args - len(filled))

    def _by_name(self, name: str) -> Parameter:
        found = _parameter_name(name, self._parameters)
        by_name = {one.name: one for one in self._parameters if one.by in _NAMES}
        parameter = by_name.get(found, self._taking_all("names"))
        if parameter is None:
            raise self._refused(f"has no argument {name}")
        if found in self._given:
            raise self._refused(f"was given the argument {name} twice")
        self._given.add(found)
        return parameter

    def _taking_all(self, by: By) -> Parameter | None:
        return next((one for one in self._parameters if one.by == by), None)

    def _refused(self, why: str) -> InvalidArgument:
        takes = usage(self._parameters) or "no arguments"
        return InvalidArgument(f"program {self._program!r} {why}: it takes {takes}", param="args")


def _parameter_name(name: str, parameters: Iterable[Parameter]) -> str:
    """The parameter name ``max_tokens`` for ``max-tokens``, as command lines spell it."""
    spelled = name.replace("-", "_")
    return spelled if any(one.name == spelled for one in parameters) else name


_READ_AS: Mapping[Kind, Any] = {
    "text": str,
    "integer": int | None,
    "number": float | None,
    "boolean": bool | None,
    "json": Any,
}
"""The types that a manifest determines. They allow null, because only the annotation tells whether
an argument may be null."""


def _read(program: str, parameter: Parameter, hint: Any, text: str) -> Any:
    def refused(why: str = "") -> InvalidArgument:
        shown = repr(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}...")
        if text == "true":
            shown += ", as a name without a value is"
        return InvalidArgument(
            f"argument {parameter.name} of program {program!r} is {shown}: "
            f"give {parameter.expected}{why}",
            param="args",
        )

    if parameter.kind == "text":
        if parameter.choices and text not in parameter.choices:
            raise refused()
        return text
    try:
        value = _decoded(parameter.kind, hint, text)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as exc:
        helping = f": {parameter.help}" if parameter.help else ""
        raise refused(f" ({exc}){helping}" if parameter.kind == "json" else "") from exc
    if parameter.kind in ("integer", "number") and value is not None:
        is_below = parameter.least is not None and value < parameter.least
        if is_below or (parameter.most is not None and value > parameter.most):
            raise refused()
    return value


def _decoded(kind: Kind, hint: Any, text: str) -> Any:
    if kind == "boolean":
        text = text.lower()
    try:
        return msgspec.json.decode(text, type=hint)
    except msgspec.MsgspecError:
        if kind != "json":
            raise
        try:
            return msgspec.convert(text, hint)  # types that JSON has as strings: a date, an Enum
        except msgspec.MsgspecError:
            pass
        raise
