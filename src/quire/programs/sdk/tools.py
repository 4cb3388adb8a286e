"""Tools: Python functions that a model may call.

The schema comes from the type hints, the description from the docstring. Arguments are checked
against the hints before the function runs; an exception becomes an answer that the model reads.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from quire.core.errors import InvalidArgument
from quire.programs.chat.pieces import Call

logger = logging.getLogger(__name__)

MAX_RESULT_CHARS = 16_384


@dataclass(frozen=True, slots=True)
class Tool:
    """One callable tool. ``parameters``: a JSON schema of an object; ``arguments``: checks calls
    against it, or ``None`` if the function does that itself.

    Make one with ``Tool.of(function)``. A plain ``def`` runs in a thread, so that it may block.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., Any]
    arguments: type[msgspec.Struct] | None

    @classmethod
    def of(cls, function: Callable[..., Any], *, name: str | None = None) -> Tool:
        """A tool that calls ``function``. ``Annotated[int, "what it means"]`` describes a
        parameter.

        Raises:
            InvalidArgument: not a function, a parameter without a type hint, or with a type that
                JSON cannot represent.
        """
        if name is None:
            name = getattr(function, "__name__", None)
        if name is None or not callable(function):
            raise InvalidArgument(
                f"{function!r} is not a function with a name: give a function, or "
                "Tool.of(function, name=...)"
            )
        inner = _inner(function)
        hints = _hints(name, inner)
        fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise InvalidArgument(
                    f"tool {name!r}: *{parameter.name} has no schema: name its parameters"
                )
            if parameter.name not in hints:
                raise InvalidArgument(
                    f"tool {name!r}: parameter {parameter.name!r} has no type hint: add one"
                )
            hint = _described(hints[parameter.name])
            if parameter.default is parameter.empty:
                fields.append((parameter.name, hint))
            else:
                fields.append((parameter.name, hint, _default(parameter.default)))
        arguments = msgspec.defstruct(
            f"{name}_arguments", fields, kw_only=True, forbid_unknown_fields=True
        )
        return cls(
            name=name,
            description=inspect.cleandoc(inner.__doc__ or "").partition("\n\n")[0],
            parameters=_schema(name, arguments),
            function=function,
            arguments=arguments,
        )

    def schema(self) -> dict[str, Any]:
        """The entry for OpenAI's ``tools`` and chat templates."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        }

    async def call(self, arguments: str) -> str:
        """Run with JSON ``arguments``. Returns the result as text, which is JSON unless the result
        is a string; a result of more than ``MAX_RESULT_CHARS`` characters is cut, with a note.

        Raises:
            InvalidArgument: the arguments are not JSON that conforms to the schema.
        """
        keywords = self._keywords(arguments or "{}")
        if inspect.iscoroutinefunction(self.function):
            result = await self.function(**keywords)
        else:
            result = await asyncio.to_thread(self.function, **keywords)
            if inspect.isawaitable(result):  # an async function in a plain wrapper
                result = await result
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        if len(text) > MAX_RESULT_CHARS:
            kept = f"[cut: the first {MAX_RESULT_CHARS} of {len(text)} characters]"
            return f"{text[:MAX_RESULT_CHARS]}...\n{kept}"
        return text

    def _keywords(self, text: str) -> dict[str, Any]:
        try:
            if self.arguments is None:
                named: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
                return named
            given = msgspec.json.decode(text, type=self.arguments, strict=False)
        except msgspec.DecodeError as exc:
            raise InvalidArgument(f"{self.name}: {exc}") from exc
        return {field: getattr(given, field) for field in self.arguments.__struct_fields__}


class Toolbox:
    """Tools by name. A failed call does not raise: its error becomes the result that the model
    reads. Exceptions of the tool itself are logged with their traceback."""

    def __init__(self, tools: Iterable[Tool | Callable[..., Any]]) -> None:
        self._tools: dict[str, Tool] = {}
        for entry in tools:
            tool = entry if isinstance(entry, Tool) else Tool.of(entry)
            if tool.name in self._tools:
                raise InvalidArgument(f"two tools are named {tool.name!r}: rename one")
            self._tools[tool.name] = tool

    @property
    def names(self) -> Sequence[str]:
        """Names in the order in which the tools were given."""
        return tuple(self._tools)

    def schemas(self) -> list[dict[str, Any]]:
        """The ``tools`` of a chat template."""
        return [tool.schema() for tool in self._tools.values()]

    def get(self, name: str) -> Tool | None:
        """The tool of that name, or None."""
        return self._tools.get(name)

    async def call(self, call: Call) -> str:
        """The result of ``call`` as text; an error as ``error: ...``."""
        tool = self.get(call.name)
        if tool is None:
            return f"error: no tool {call.name!r}; the tools are {', '.join(self.names) or 'none'}"
        try:
            return await tool.call(call.arguments)
        except Exception as exc:  # the model reads the error and may correct itself
            if not isinstance(exc, InvalidArgument):  # keeps the traceback of a faulty tool
                logger.info("tool %r failed", call.name, exc_info=exc)
            return f"error: {exc or type(exc).__name__}"

    async def call_all(self, calls: Sequence[Call]) -> list[str]:
        """Results in the order of ``calls``, which run concurrently."""
        return list(await asyncio.gather(*(self.call(call) for call in calls)))


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside a ``partial``, which has no hints and no docstring itself."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _hints(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as exc:  # a class from another scope, a callable object
        raise InvalidArgument(f"tool {name!r}: its type hints cannot be read: {exc}") from exc


def _described(hint: Any) -> Any:
    """``Annotated[T, "text"]`` in msgspec's form of a description."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, *notes = get_args(hint)
    texts = [note for note in notes if isinstance(note, str)]
    return Annotated[kind, msgspec.Meta(description=texts[0])] if texts else hint


def _default(value: Any) -> Any:
    if isinstance(value, list | dict | set):
        return msgspec.field(default_factory=lambda: type(value)(value))
    return value


def _schema(name: str, arguments: type[msgspec.Struct]) -> dict[str, Any]:
    try:
        (reference,), definitions = msgspec.json.schema_components(
            [arguments], ref_template="#/$defs/{name}"
        )
    except TypeError as exc:
        raise InvalidArgument(f"tool {name!r}: {exc}") from exc
    own = definitions.pop(reference["$ref"].rpartition("/")[2])
    own.pop("title", None)
    return {**own, "$defs": definitions} if definitions else own
