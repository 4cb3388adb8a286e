"""What programs and their API use of msgspec, in plain Python.

A struct is a dataclass that knows its tag; ``to_builtins`` and ``convert`` follow msgspec's JSON:
tagged structs as objects with ``type`` (or arrays that begin with the tag), bytes as base64. Not
checked: that a frozen struct is not written.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import enum
import json as _json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NewType, Union, get_args, get_origin

__version__ = "stand-in"


class MsgspecError(Exception):
    pass


class DecodeError(MsgspecError, ValueError):
    """JSON that does not parse."""


class ValidationError(DecodeError):
    """JSON that does not fit the type."""


class Meta:
    """Notes on a type; only ``description`` is read."""

    def __init__(self, *, description: str | None = None, **_: Any) -> None:
        self.description = description


def field(**options: Any) -> Any:
    return dataclasses.field(**options)


class Struct:
    __struct_fields__: ClassVar[tuple[str, ...]] = ()
    __struct_tagged__: ClassVar[bool] = False
    __struct_array_like__: ClassVar[bool] = False
    __struct_strict__: ClassVar[bool] = False

    def __init_subclass__(
        cls,
        *,
        frozen: bool | None = None,
        kw_only: bool = False,
        tag: bool | None = None,
        array_like: bool | None = None,
        forbid_unknown_fields: bool | None = None,
        **_: Any,
    ) -> None:
        super().__init_subclass__()
        if tag is not None:
            cls.__struct_tagged__ = tag
        if array_like is not None:
            cls.__struct_array_like__ = array_like
        if forbid_unknown_fields is not None:
            cls.__struct_strict__ = forbid_unknown_fields
        dataclasses.dataclass(kw_only=kw_only, unsafe_hash=bool(frozen))(cls)
        cls.__struct_fields__ = tuple(entry.name for entry in dataclasses.fields(cls))  # type: ignore[arg-type]


def defstruct(name: str, fields: Any, **options: Any) -> type[Struct]:
    """A struct of ``fields``: (name, type) or (name, type, default)."""
    namespace: dict[str, Any] = {"__annotations__": {entry[0]: entry[1] for entry in fields}}
    namespace.update({entry[0]: entry[2] for entry in fields if len(entry) == 3})
    return types.new_class(name, (Struct,), options, lambda body: body.update(namespace))


def to_builtins(value: Any) -> Any:
    """The hook of ``json.dumps`` for what JSON does not know."""
    if isinstance(value, Struct):
        tag = type(value).__name__
        if value.__struct_array_like__:
            rest = [getattr(value, name) for name in value.__struct_fields__]
            return [tag, *rest] if value.__struct_tagged__ else rest
        return {"type": tag, **vars(value)} if value.__struct_tagged__ else vars(value)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, set | frozenset):
        return list(value)
    raise TypeError(f"cannot encode a {type(value).__name__}")


# -- from JSON's types to ours ---------------------------------------------------------------------

Convert = Callable[[Any], Any]
_CONVERTERS: dict[Any, Convert] = {}


def convert(value: Any, type: Any = Any) -> Any:
    """``value`` (of JSON's types) as a ``type``.

    Raises:
        ValidationError: it does not fit.
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
    """JSON has no infinity: the only one that is sent, a log probability's, comes as null."""
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
    """Tagged structs by their tag, null by itself, anything else by the first that takes it."""
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


# -- msgspec.json and msgspec.structs --------------------------------------------------------------


def _encode(value: Any) -> bytes:
    return _dumps(value).encode()


def _dumps(value: Any) -> str:
    return _json.dumps(value, default=to_builtins, allow_nan=False, separators=(",", ":"))


def _decode(text: bytes | str, *, type: Any = Any, strict: bool = True) -> Any:
    try:
        value = _json.loads(text)
    except ValueError as exc:
        raise DecodeError(f"JSON is malformed: {exc}") from exc
    if not strict and isinstance(value, dict):
        value = _loosened(value, type)
    return convert(value, type)


def _loosened(value: dict[str, Any], kind: Any) -> dict[str, Any]:
    """Numbers and truth values that were written as strings, as models like to do."""
    hints = typing.get_type_hints(kind)
    return {
        name: _loose(entry, hints.get(name)) if isinstance(entry, str) else entry
        for name, entry in value.items()
    }


def _loose(text: str, kind: Any) -> Any:
    if kind is bool and text.lower() in ("true", "false", "1", "0"):
        return text.lower() in ("true", "1")
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            return text
    return text


def _schema_components(kinds: Any, *, ref_template: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """JSON schemas of structs, as ``Tool`` needs them."""
    definitions: dict[str, Any] = {}
    references = tuple(_schema(kind, ref_template, definitions) for kind in kinds)
    return references, definitions


_SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean"}


def _schema(kind: Any, template: str, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        notes = [note.description for note in arguments[1:] if isinstance(note, Meta)]
        schema = _schema(arguments[0], template, definitions)
        return {"description": notes[0], **schema} if notes else schema
    if kind in _SCALARS:
        return {"type": _SCALARS[kind]}
    if kind is None or kind is types.NoneType:
        return {"type": "null"}
    if kind is Any:
        return {}
    if origin is Literal:
        return {"enum": sorted(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(part, template, definitions) for part in arguments]}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": sorted(member.value for member in kind)}
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _struct_schema(kind, template, definitions)
    return _container_schema(kind, origin, arguments, template, definitions)


def _container_schema(
    kind: Any, origin: Any, arguments: Any, template: str, definitions: dict[str, Any]
) -> dict[str, Any]:
    base = origin or kind
    if base in (list, set, frozenset, tuple):
        schema: dict[str, Any] = {"type": "array"}
        if arguments:
            schema["items"] = _schema(arguments[0], template, definitions)
        return schema
    if base is dict:
        schema = {"type": "object"}
        if arguments:
            schema["additionalProperties"] = _schema(arguments[1], template, definitions)
        return schema
    raise TypeError(f"type {kind!r} has no JSON schema here")


def _struct_schema(
    kind: type[Struct], template: str, definitions: dict[str, Any]
) -> dict[str, Any]:
    reference = {"$ref": template.format(name=kind.__name__)}
    if kind.__name__ in definitions:
        return reference
    schema: dict[str, Any] = {"title": kind.__name__, "type": "object", "properties": {}}
    definitions[kind.__name__] = schema
    hints = typing.get_type_hints(kind, include_extras=True)
    required = []
    for entry in dataclasses.fields(kind):  # type: ignore[arg-type]
        described = _schema(hints[entry.name], template, definitions)
        if entry.default is not dataclasses.MISSING:
            described["default"] = entry.default
        elif entry.default_factory is dataclasses.MISSING:
            required.append(entry.name)
        schema["properties"][entry.name] = described
    schema["required"] = required
    if kind.__struct_strict__:
        schema["additionalProperties"] = False
    return reference


json = types.SimpleNamespace(encode=_encode, decode=_decode, schema_components=_schema_components)
structs = types.SimpleNamespace(replace=dataclasses.replace)
