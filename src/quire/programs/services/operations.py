"""Operations: the requests of a program's port to its node's services, by name.

Owns the check of requests: a name that exists, and arguments that match the types of its function.
Requests come from trusted programs and from guests. A service is a class of ``@operation`` methods
for one program's identity.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, get_type_hints

import msgspec

from quire.core.errors import InvalidArgument, ProgramTerminated
from quire.core.ids import ProgramId, TenantId
from quire.programs.capabilities import Capabilities

Function = Callable[..., Awaitable[Any]]
F = TypeVar("F", bound=Function)


class Identity(msgspec.Struct, frozen=True):
    """The caller's identity: set by the node, never by the program."""

    program: ProgramId
    tenant: TenantId
    name: str
    capabilities: Capabilities = Capabilities()


@dataclass(frozen=True, slots=True)
class ServiceOperation:
    """One method of a service, and the struct for its arguments."""

    method: str
    arguments: type[msgspec.Struct]


def operation(name: str) -> Callable[[F], F]:
    """Offer an ``async def`` method of a ``ProgramService`` under ``name``."""

    def mark(function: F) -> F:
        function.__operation__ = name  # type: ignore[attr-defined]
        return function

    return mark


class ProgramService:
    """Base of one service for one program. ``operations``: its methods by operation name."""

    operations: ClassVar[Mapping[str, ServiceOperation]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        marked = [
            (attribute.__operation__, ServiceOperation(name, _arguments(attribute)))
            for name, attribute in vars(cls).items()
            if hasattr(attribute, "__operation__")
        ]
        cls.operations = {**cls.operations, **dict(marked)}

    def close(self) -> None:
        """Release what the program held: it has ended. Idempotent; may be called from any
        thread."""


class ProgramServices:
    """``Services`` of one program. ``make`` creates them at the first call.

    Most programs never call a service, so thousands of programs need not have the objects.
    """

    def __init__(self, make: Callable[[], Iterable[ProgramService]]) -> None:
        self._make = make
        self._services: tuple[ProgramService, ...] | None = None
        self._closed = False
        self._lock = threading.Lock()
        """Guards against ``close`` on another thread while the services are created: they are
        closed, too."""

    async def ask(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """See ``ProgramPort.ask``."""
        services = self._services or self._open(name)
        for service in services:
            if (operation := service.operations.get(name)) is not None:
                break
        else:
            names = sorted(one for service in services for one in service.operations)
            raise InvalidArgument(f"this node has no service {name!r}; it has {', '.join(names)}")
        if self._closed:
            raise _has_ended(name)
        try:
            given = msgspec.convert(dict(arguments), operation.arguments)
        except msgspec.ValidationError as exc:
            raise InvalidArgument(f"{name}: {exc}") from exc
        function = getattr(service, operation.method)
        return await function(**{field: getattr(given, field) for field in given.__struct_fields__})

    def _open(self, name: str) -> tuple[ProgramService, ...]:
        with self._lock:
            if self._closed:
                raise _has_ended(name)
            if self._services is None:
                self._services = tuple(self._make())
            return self._services

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for service in self._services or ():
            service.close()


def _has_ended(name: str) -> ProgramTerminated:
    return ProgramTerminated(f"the program has ended; {name} is no longer executed")


def _arguments(function: Function) -> type[msgspec.Struct]:
    """A struct with the function's parameters; other arguments of a call are refused."""
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
