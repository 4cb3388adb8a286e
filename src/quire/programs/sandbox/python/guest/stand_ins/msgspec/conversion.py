"""Converts JSON values to types, as msgspec does: tagged structs are objects with ``type`` (or
arrays that begin with the tag), bytes are base64."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

from .structs import Struct, ValidationError

Convert = Callable[[Any], Any]
_CONVERTERS: dict[Any, Convert] = {}


def convert(value: Any, type: Any = Any) -> Any:
    """Convert ``value``, which consists of JSON types, to ``type``.

    Raises:
        ValidationError: the value does not match the type.
    """
    return _converter(type)(value)


def _converter(kind: Any) -> Convert:
    try:
        return _CONVERTERS[kind]
    except (KeyError, TypeError):
        made = _make(kind)
    with contextlib.suppress(TypeError):  # an annotation that cannot be hashed
        _CONVERTERS[kind] = made
    return made


def _make(kind: Any) -> Convert:
    if isinstance(kind, NewType):
        return _converter(kind.__supertype__)
    origin = get_origin(kind)
    if origin is Annotated:
        return _converter(get_args(kind)[0])
    if origin is Literal:
        return _literal(get_args(kind))
    if origin in (Union, types.UnionType):
        return _union(get_args(kind))
    if origin is not None:
        return _container(origin, get_args(kind))
    if kind is Any or kind is object:
        return lambda value: value
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _struct(kind)
    return _scalar(kind)


def _refuse(expected: str, value: Any) -> ValidationError:
    got = "null" if value is None else type(value).__name__
    return ValidationError(f"Expected `{expected}`, got `{got}`")


def _scalar(kind: Any) -> Convert:
    if kind is float:
        return _float
    if kind is bytes:
        return _bytes
    if kind is None or kind is types.NoneType:
        return _exactly(types.NoneType)
    if kind in (list, dict, tuple, set, frozenset):
        return _container(kind, ())
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enum(kind)
    if kind in (int, str, bool):
        return _exactly(kind)
    raise TypeError(f"type {kind!r} is not supported")


def _exactly(kind: type) -> Convert:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise _refuse(kind.__name__, value)
        return value

    return check


def _float(value: Any) -> float:
    """A float; null is minus infinity, which JSON lacks and which only log probabilities have."""
    if value is None:
        return float("-inf")
    if type(value) not in (float, int):
        raise _refuse("float", value)
    return float(value)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, str):
        raise _refuse("bytes", value)
    return base64.b64decode(value)


def _enum(kind: type[enum.Enum]) -> Convert:
    def check(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError as exc:
            raise ValidationError(f"Invalid enum value {value!r}") from exc

    return check


def _literal(allowed: tuple[Any, ...]) -> Convert:
    def check(value: Any) -> Any:
        if value not in allowed:
            raise ValidationError(f"Invalid enum value {value!r}")
        return value

    return check


def _container(origin: Any, arguments: tuple[Any, ...]) -> Convert:
    if issubclass(origin, Mapping) or origin is dict:
        key, entry = (_converter(part) for part in arguments or (Any, Any))
        return lambda value: {
            key(name): entry(part) for name, part in _checked(value, dict, "object").items()
        }
    if issubclass(origin, tuple) and arguments and arguments[-1] is not Ellipsis:
        parts = [_converter(part) for part in arguments]
        return lambda value: tuple(
            part(entry) for part, entry in zip(parts, _checked(value, list, "array"), strict=True)
        )
    element = _converter(arguments[0] if arguments else Any)
    make = origin if origin in (tuple, set, frozenset) else list
    return lambda value: make([element(entry) for entry in _checked(value, list, "array")])


def _checked(value: Any, kind: type, name: str) -> Any:
    if not isinstance(value, kind):
        raise _refuse(name, value)
    return value


def _union(members: tuple[Any, ...]) -> Convert:
    """Tagged structs are chosen by their tag, null by itself, any other value by the first type
    that accepts it."""
    tagged = {
        member.__name__: member
        for member in members
        if isinstance(member, type) and issubclass(member, Struct) and member.__struct_tagged__
    }
    others = [
        _converter(member)
        for member in members
        if member is not types.NoneType and member not in tagged.values()
    ]
    nullable = types.NoneType in members

    def choose(value: Any) -> Any:
        if value is None and nullable:
            return None
        if tagged:
            tag = _tag(value)
            if tag in tagged:
                return _converter(tagged[tag])(value)
        refusals = []
        for other in others:
            try:
                return other(value)
            except ValidationError as exc:
                refusals.append(exc)
        raise refusals[0] if len(refusals) == 1 else _refuse(" | ".join(map(_name, members)), value)

    return choose


def _tag(value: Any) -> Any:
    if isinstance(value, dict):
        return value.get("type")
    return value[0] if isinstance(value, list) and value else None


def _name(kind: Any) -> str:
    return "null" if kind is types.NoneType else getattr(kind, "__name__", str(kind))


def _struct(kind: type[Struct]) -> Convert:
    hints = typing.get_type_hints(kind, include_extras=True)
    converters = {name: _converter(hints[name]) for name in kind.__struct_fields__}
    required = {
        entry.name
        for entry in dataclasses.fields(kind)  # type: ignore[arg-type]
        if entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
    }

    def from_array(value: Any) -> Any:
        values = _checked(value, list, "array")[1 if kind.__struct_tagged__ else 0 :]
        named = zip(kind.__struct_fields__, values, strict=False)
        return kind(**{name: converters[name](entry) for name, entry in named})

    def from_object(value: Any) -> Any:
        given = {}
        for name, entry in _checked(value, dict, "object").items():
            if name in converters:
                try:
                    given[name] = converters[name](entry)
                except ValidationError as exc:
                    raise ValidationError(f"{exc} - at `$.{name}`") from exc
            elif kind.__struct_strict__:
                raise ValidationError(f"Object contains unknown field `{name}`")
        for name in required:
            if name not in given:
                raise ValidationError(f"Object missing required field `{name}`")
        return kind(**given)

    return from_array if kind.__struct_array_like__ else from_object
