"""Structs as dataclasses that know their tag. Frozen structs are not protected against writes."""

from __future__ import annotations

import base64
import dataclasses
import types
from typing import Any, ClassVar

replace = dataclasses.replace


class MsgspecError(Exception):
    pass


class DecodeError(MsgspecError, ValueError):
    """JSON that cannot be parsed."""


class ValidationError(DecodeError):
    """JSON that does not match the type."""


class Meta:
    """Notes on a type. Only those below are kept, and no conversion checks a bound."""

    def __init__(
        self,
        *,
        description: str | None = None,
        ge: float | None = None,
        le: float | None = None,
        **_: Any,
    ) -> None:
        self.description = description
        self.ge = ge
        self.le = le


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
    """The hook of ``json.dumps`` for types that JSON does not have."""
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
