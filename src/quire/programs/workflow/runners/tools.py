"""Tools of an MCP server, and programs as tools.

Owns the conversion of values to the arguments that a tool asks for, and of its results to values.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from quire.core.errors import (
    InvalidArgument,
    ProgramError,
    ProgramTerminated,
    QuireError,
    UnknownHandle,
)
from quire.programs.api import Api
from quire.programs.api.mcp import McpResult, McpServer, McpTool
from quire.programs.workflow.components.building import DONE_MARK
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.engines.tools_elsewhere import McpTools, ProgramTool
from quire.programs.workflow.execution.recording import OutcomeUnknown
from quire.programs.workflow.graphs.primitives import Op, Primitive
from quire.programs.workflow.graphs.values import ValueType, plain
from quire.programs.workflow.runners.local import checked_result

_JSON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
    "array": (list,), "object": (dict,), "null": (type(None),),
}  # fmt: skip


class McpToolRunner:
    """``PrimitiveRunner`` of the tools of one MCP server. One session serves the query. ``key``:
    the key to send to the server, if any."""

    def __init__(self, api: Api, tools: McpTools, key: str | None) -> None:
        self._api, self._tools, self._key = api, tools, key
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._server: McpServer | None = None
        self._offered: dict[str, McpTool] = {}

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        name: str = primitive.config["function"]
        where = f"the tool {name!r} of the MCP server {self._tools.server}"
        inputs = await plain(inputs)
        try:
            async with asyncio.timeout(self._tools.timeout_s):
                server = await self._opened()
                arguments = self._arguments(primitive, inputs)
                result = await self._called(server, name, arguments, where)
        except TimeoutError as exc:
            raise OutcomeUnknown(
                f"{where} has not answered within {self._tools.timeout_s:g} s: raise timeout_s of "
                "its engine, or ask it for less"
            ) from exc
        if result.is_error:
            raise ProgramError(f"{where} failed: {result.text[:1000] or 'it does not say why'}")
        (kind,) = primitive.outputs.values()
        made = _value(where, kind, result)
        return {"out": await checked_result(primitive, where, made)}

    async def check(self, primitives: Sequence[Primitive]) -> None:
        """Refuse calls of tools that the server does not offer, or with arguments they do not take.


        Raises:
            InvalidArgument: the message names the tool and what it takes.
            QuireError: the server cannot be asked; see ``Api.mcp_connect``.
        """
        async with asyncio.timeout(self._tools.timeout_s):
            await self._opened()
        for primitive in primitives:
            _check_arguments(primitive, self._tools.server, self._offered)

    async def close(self) -> None:
        await self._stack.aclose()

    async def _opened(self) -> McpServer:
        async with self._opening:
            if self._server is None:
                headers: dict[str, str] = {}
                if self._key is not None:
                    headers["authorization"] = f"Bearer {self._key}"
                session = self._api.mcp_connect(self._tools.server, headers)
                server = await self._stack.enter_async_context(session)
                self._offered = {tool.name: tool for tool in await server.list_tools()}
                self._server = server
            return self._server

    def _arguments(self, primitive: Primitive, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs as checked arguments: grown components were not checked before."""
        _check_arguments(primitive, self._tools.server, self._offered)
        properties = _properties(self._offered[primitive.config["function"]])
        return {
            name: _typed(primitive, name, value, properties.get(name))
            for name, value in inputs.items()
            if not name.startswith(DONE_MARK)
        }

    async def _called(
        self, server: McpServer, name: str, arguments: dict[str, Any], where: str
    ) -> McpResult:
        try:
            return await server.call_tool(name, arguments)
        except ProgramError as exc:  # refused, not answered, or its server has ended
            raise OutcomeUnknown(f"{where}: {exc.message}") from exc


class ProgramRunner:
    """``PrimitiveRunner`` of a program as a tool: each call is a child of the query, whose
    arguments are the inputs by name and whose result is the output."""

    def __init__(self, api: Api, tool: ProgramTool) -> None:
        self._api, self._tool = api, tool

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        inputs = await plain(inputs)
        given = {name: one for name, one in inputs.items() if not name.startswith(DONE_MARK)}
        where = f"the program {self._tool.program!r}"
        try:
            child = await self._api.launch(self._tool.program, named=given)
        except QuireError as exc:
            remedy = "; push it first (quire push FILE)" if isinstance(exc, UnknownHandle) else ""
            text = f"{where} cannot be called: {exc.message}{remedy}"
            raise type(exc)(text, **exc.details) from exc
        try:
            async with asyncio.timeout(self._tool.timeout_s):
                made = await child.join()
        except TimeoutError as exc:
            await child.cancel("it has not ended in the time of its workflow's engine")
            raise OutcomeUnknown(
                f"{where} has not ended within {self._tool.timeout_s:g} s: raise timeout_s of its "
                "engine, or ask it for less"
            ) from exc
        except ProgramTerminated as exc:
            raise OutcomeUnknown(f"{where}: {exc.message}") from exc
        except QuireError as exc:
            raise type(exc)(f"{where}: {exc.message}", **exc.details) from exc
        (kind,) = primitive.outputs.values()
        made = True if kind is ValueType.DONE else made
        return {"out": await checked_result(primitive, where, made)}

    async def close(self) -> None:
        """Do nothing: its children end with the query."""


async def check_tools(
    engines: Sequence[Engine], runners: Mapping[str, Any], primitives: Sequence[Primitive]
) -> None:
    """Refuse a query before any work if an MCP server lacks a tool that it calls; raise as
    ``McpToolRunner.check`` does."""
    for engine in engines:
        runner = runners.get(engine.name)
        called = [one for one in primitives if one.engine == engine.name and one.op is Op.TOOL]
        if isinstance(runner, McpToolRunner) and called:
            try:
                await runner.check(called)
            except TimeoutError as exc:
                raise ProgramError(
                    f"engine {engine.name!r}: the MCP server {engine.config['mcp']} has not said "
                    "what tools it has: see whether it runs, or raise timeout_s"
                ) from exc
            except ProgramError as exc:
                raise ProgramError(f"engine {engine.name!r}: {exc.message}") from exc


def _properties(tool: McpTool) -> Mapping[str, Any]:
    found = tool.parameters.get("properties")
    return found if isinstance(found, dict) else {}


def _required(tool: McpTool) -> set[str]:
    found = tool.parameters.get("required")
    return {one for one in found if isinstance(one, str)} if isinstance(found, list) else set()


def _check_arguments(primitive: Primitive, server: str, offered: Mapping[str, McpTool]) -> None:
    name: str = primitive.config["function"]
    if name not in offered:
        raise InvalidArgument(
            f"{primitive.node}: the MCP server {server} has no tool {name!r}; it has "
            f"{', '.join(offered) or 'none'}: name one of them as function",
            param=f"{primitive.node}.function",
        )
    tool = offered[name]
    given = {one for one in primitive.inputs if not one.startswith(DONE_MARK)}
    known, needed = _properties(tool), _required(tool)
    unknown = given - known.keys() if tool.parameters.get("additionalProperties", False) is False \
        else set()  # fmt: skip
    if unknown or needed - given:
        wrong = f"has no {min(unknown)!r}" if unknown else f"needs {min(needed - given)!r}"
        raise InvalidArgument(
            f"{primitive.node}: the tool {name!r} of the MCP server {server} {wrong}; it takes "
            f"{', '.join(known) or 'nothing'}: name the component's inputs like them",
            param=f"{primitive.node}.inputs",
        )


def _typed(primitive: Primitive, name: str, value: Any, schema: Any) -> Any:
    """Return ``value`` in the type that the tool's schema names. A text is read as JSON where the
    schema asks for something else."""
    wanted = schema.get("type") if isinstance(schema, dict) else None
    kinds = _JSON_TYPES.get(wanted) if isinstance(wanted, str) else None
    if kinds is None or _is_of(value, kinds):
        return value
    found = value
    if isinstance(value, str):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            found = value
    if not _is_of(found, kinds):
        raise InvalidArgument(
            f"{primitive.node}: {name!r} is {value!r:.60}, and the tool "
            f"{primitive.config['function']!r} takes it as {wanted}: give one",
            param=f"{primitive.node}.inputs.{name}",
        )
    return found


def _is_of(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _value(where: str, kind: ValueType, result: McpResult) -> Any:
    """Return the result as an output of type ``kind``. Servers put a result that is not an object
    under ``result``."""
    structured = result.structured
    inner = structured["result"] if structured is not None and structured.keys() == {
        "result"
    } else structured  # fmt: skip
    match kind:
        case ValueType.DONE:
            return True
        case ValueType.TEXT:
            return result.text
        case ValueType.TEXTS if not isinstance(inner, list):
            blocks = [one for one in result.content if one.get("type") == "text"]
            return [str(one.get("text", "")) for one in blocks]
    if inner is None:
        try:
            inner = json.loads(result.text)
        except (ValueError, RecursionError):
            raise InvalidArgument(
                f"{where} gave a text, {result.text!r:.60}, and no {kind}: make the component's "
                "output text, or have the server give structured content"
            ) from None
    return inner
