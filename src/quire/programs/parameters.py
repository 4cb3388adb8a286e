"""The parameters of a program's entry as data, with the types of their values.

Owns how annotations become parameters, and their descriptions. Must not know the values of a launch
(``arguments`` does), nor who launches.
"""

from __future__ import annotations

import builtins
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from weakref import WeakKeyDictionary

import msgspec

from quire.core.errors import InvalidArgument

Kind = Literal["text", "integer", "number", "boolean", "json"]
By = Literal["either", "place", "name", "rest", "names"]


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of a program, as data.

    ``default``: in the form in which a launch would write it; only for parameters that are not
    ``required``. ``by``: how it is given; ``rest`` takes all further positional arguments,
    ``names`` all further named ones. ``choices``: the only allowed texts. ``least`` and ``most``:
    bounds of a number.
    """

    name: str
    kind: Kind = "text"
    by: By = "either"
    required: bool = True
    default: str = ""
    help: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None

    @property
    def expected(self) -> str:
        """A description of the allowed texts."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        words = _EXPECTED[self.kind]
        if self.least is not None:
            words += f" from {self.least:g}"
        return words if self.most is None else f"{words} to {self.most:g}"


_EXPECTED: Mapping[Kind, str] = {
    "text": "text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "json": "JSON",
}


def as_text(value: Any) -> str:
    """A JSON value as transported: a string unchanged, anything else as its JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class TypedParameters:
    """The parameters of one function as data, and the types into which their texts are
    converted."""

    def __init__(self, main: Callable[..., Any]) -> None:
        parameters: list[Parameter] = []
        self.hints: dict[str, Any] = {}
        for one in list(_signature(main).parameters.values())[1:]:
            hint = _hint(main, one)
            self.hints[one.name] = hint
            parameters.append(_parameter(one, hint))
        self.parameters = tuple(parameters)


_KNOWN: WeakKeyDictionary[Callable[..., Any], TypedParameters] = WeakKeyDictionary()


def parameters_of(main: Callable[..., Any]) -> tuple[Parameter, ...]:
    """The parameters of ``async def main(api, ...)`` after ``api``.

    Raises:
        InvalidArgument: an annotation that cannot be read.
    """
    return typed_parameters(main).parameters


def typed_parameters(main: Callable[..., Any]) -> TypedParameters:
    known = _KNOWN.get(main)
    if known is None:
        known = _KNOWN[main] = TypedParameters(main)
    return known


def _signature(main: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        from annotationlib import Format  # imports under TYPE_CHECKING must not raise

        return inspect.signature(main, annotation_format=Format.FORWARDREF)
    return inspect.signature(main)


def _hint(main: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    hint = parameter.annotation
    if hint is parameter.empty:
        default = parameter.default
        return type(default) if type(default) in (bool, int, float) else str
    text = hint if isinstance(hint, str) else getattr(hint, "__forward_arg__", None)
    if text is None:
        return hint
    try:
        return eval(text, getattr(main, "__globals__", {}), vars(builtins))
    except Exception as exc:
        raise InvalidArgument(
            f"argument {parameter.name} of {main.__name__}: its annotation {text!r} cannot be read "
            f"({type(exc).__name__}: {exc}): use a type that is defined when the module runs"
        ) from exc


def _parameter(parameter: inspect.Parameter, hint: Any) -> Parameter:
    is_open = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    required = parameter.default is parameter.empty and not is_open
    has_default = not required and not is_open
    notes = _notes(hint)
    return Parameter(
        name=parameter.name,
        kind=_kind(hint),
        by=_BY[parameter.kind],
        required=required,
        default=_shown_default(parameter.default) if has_default else "",
        help=next((note for note in notes if isinstance(note, str)), ""),
        choices=_choices(hint),
        least=_bound(notes, "ge"),
        most=_bound(notes, "le"),
    )


_BY: Mapping[Any, By] = {
    inspect.Parameter.POSITIONAL_ONLY: "place",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "either",
    inspect.Parameter.VAR_POSITIONAL: "rest",
    inspect.Parameter.KEYWORD_ONLY: "name",
    inspect.Parameter.VAR_KEYWORD: "names",
}


def _notes(hint: Any) -> Sequence[Any]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def _bound(notes: Sequence[Any], name: str) -> float | None:
    bounds = (getattr(note, name, None) for note in notes if isinstance(note, msgspec.Meta))
    return next((bound for bound in bounds if bound is not None), None)


def _plain(hint: Any) -> Any:
    """The type without its notes, and without the ``None`` of an optional argument."""
    if get_origin(hint) is Annotated:
        return _plain(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        others = [one for one in get_args(hint) if one is not NoneType]
        return _plain(others[0]) if len(others) == 1 else hint
    return hint


def _kind(hint: Any) -> Kind:
    plain = _plain(hint)
    if plain in (str, Any, object) or _choices(hint):
        return "text"
    # bool before int, because it is a subclass of int
    kinds: Mapping[Any, Kind] = {bool: "boolean", int: "integer", float: "number"}
    return kinds.get(plain, "json") if isinstance(plain, type) else "json"


def _choices(hint: Any) -> tuple[str, ...]:
    plain = _plain(hint)
    choices = get_args(plain) if get_origin(plain) is Literal else ()
    return choices if all(isinstance(one, str) for one in choices) else ()


def _shown_default(value: Any) -> str:
    try:
        return as_text(dict(value) if isinstance(value, Mapping) else value)
    except (TypeError, ValueError):
        return repr(value)


def usage(parameters: Iterable[Parameter]) -> str:
    """The parameters as a command line shows them: ``QUESTION [NUM] [--seed SEED] [--stream]``."""
    return " ".join(_usage_of(one) for one in parameters)


def _usage_of(parameter: Parameter) -> str:
    name = parameter.name.upper()
    match parameter.by:
        case "rest":
            return f"[{name} ...]"
        case "names":
            return "[--NAME VALUE ...]"
        case "name":
            name = (
                f"--{parameter.name}"
                if parameter.kind == "boolean"
                else f"--{parameter.name} {name}"
            )
    return name if parameter.required else f"[{name}]"
