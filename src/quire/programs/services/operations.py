"""Operations: what a program's port asks of its node beside the model, by name.

Owns the check of what was asked: a name that exists, arguments that fit its function's types. Most
callers are trusted, some are guests of unknown authors, and both come through here. A service is a
class of ``@operation`` methods over one program's identity.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, get_type_hints

import msgspec

from quire.core.errors import InvalidArgument, ProgramTerminated
from quire.core.ids import ProgramId, TenantId
from quire.programs.capabilities import Capabilities

Function = Callable[..., Awaitable[Any]]
F = TypeVar("F", bound=Function)


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose calls these are: stamped by the node, never told by the program."""

    program: ProgramId
    tenant: TenantId
    name: str
    capabilities: Capabilities = Capabilities()  # noqa: RUF009 - frozen


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of a service and the struct that its arguments must fit."""

    method: str
    arguments: type[msgspec.Struct]


def operation(name: str) -> Callable[[F], F]:
    """Offer an ``async def`` method of a ``ProgramService`` under ``name``."""

    def mark(function: F) -> F:
        function.__operation__ = name  # type: ignore[attr-defined]
        return function

    return mark


class ProgramService:
    """Base of one service for one program. ``operations``: its methods by the name they go by."""

    operations: ClassVar[Mapping[str, Operation]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        marked = [
            (attribute.__operation__, Operation(name, _arguments(attribute)))
            for name, attribute in vars(cls).items()
            if hasattr(attribute, "__operation__")
        ]
        cls.operations = {**cls.operations, **dict(marked)}

    def close(self) -> None:
        """The program has ended: let go of what it held. Idempotent, from any thread."""


class ProgramServices:
    """``Services`` of one program."""

    def __init__(self, services: Iterable[ProgramService]) -> None:
        self._services = tuple(services)
        self._by_name = {
            name: (getattr(service, operation.method), operation.arguments)
            for service in self._services
            for name, operation in service.operations.items()
        }
        self._closed = False

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """See ``ProgramPort.call``."""
        found = self._by_name.get(name)
        if found is None:
            raise InvalidArgument(
                f"this node has no service {name!r}; it has {', '.join(sorted(self._by_name))}"
            )
        if self._closed:
            raise ProgramTerminated(f"the program has ended; {name} is not carried out any more")
        function, arguments_type = found
        try:
            given = msgspec.convert(dict(arguments), arguments_type)
        except msgspec.ValidationError as exc:
            raise InvalidArgument(f"{name}: {exc}") from exc
        return await function(**{field: getattr(given, field) for field in given.__struct_fields__})

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for service in self._services:
                service.close()


def _arguments(function: Function) -> type[msgspec.Struct]:
    """A struct with the function's parameters; anything else in a call is refused."""
    hints = get_type_hints(function)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hints[parameter.name]))
        else:
            fields.append((parameter.name, hints[parameter.name], parameter.default))
    return msgspec.defstruct(
        f"{function.__name__}_arguments", fields, kw_only=True, forbid_unknown_fields=True
    )


__all__ = ["Identity", "Operation", "ProgramService", "ProgramServices", "operation"]
