"""Tools of an MCP server whose description says little of what they take."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from quire.core.errors import InvalidArgument, ProgramError
from quire.programs.api import Api
from quire.programs.api.mcp import McpResult, McpTool
from quire.programs.workflow import App, Engine, Graph, Node
from quire.programs.workflow.engines.tools_elsewhere import McpTools
from quire.programs.workflow.graphs.primitives import Primitive
from quire.programs.workflow.runners.tools import McpToolRunner


class Server:
    """A server with the tool ``look``, and the API that connects to it."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self.parameters = parameters
        self.called: list[tuple[str, Mapping[str, Any]]] = []
        self.num_open = 0
        self.result = "found"

    @asynccontextmanager
    async def mcp_connect(self, name: str, headers: Mapping[str, str]) -> AsyncIterator[Server]:
        self.num_open += 1
        yield self
        self.num_open -= 1

    async def list_tools(self) -> list[McpTool]:
        return [McpTool("look", "", self.parameters)]

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> McpResult:
        self.called.append((name, arguments))
        return McpResult(self.result, [], None, is_error=False)


def calling() -> Graph:
    """A call of the tool with one text."""
    app = App("app", [Engine("tool", config={"mcp": "server"})])
    config = {"function": "look"}
    node = Node("tool", {"q": "text"}, {"answer": "text"}, None, config, name="look")
    app.update_template([node])
    return Graph.optimize(app, {"q": "x"})


def runner_of(server: Server) -> tuple[McpToolRunner, Primitive]:
    (call,) = calling().e_graph.primitives.values()
    return McpToolRunner(cast(Api, server), McpTools("server"), None), call


NO_PROPERTIES: list[dict[str, Any]] = [{}, {"properties": None}, {"properties": ["q"]}]


@pytest.mark.parametrize("parameters", NO_PROPERTIES)
async def test_a_tool_that_names_no_properties_takes_nothing(parameters: dict[str, Any]) -> None:
    runner, call = runner_of(Server(parameters))
    with pytest.raises(InvalidArgument, match="has no 'q'; it takes nothing: name the component's"):
        await runner.check([call])
    await runner.close()


@pytest.mark.parametrize("parameters", NO_PROPERTIES)
async def test_a_tool_that_takes_more_than_it_names_is_given_values_as_they_are(
    parameters: dict[str, Any],
) -> None:
    server = Server({**parameters, "additionalProperties": True})
    runner, call = runner_of(server)
    assert await runner.run(call, {"q": "3"}) == {"out": "found"}
    assert server.called == [("look", {"q": "3"})]
    await runner.close()


async def test_a_query_that_is_refused_leaves_no_session_open() -> None:
    server = Server({})
    with pytest.raises(InvalidArgument, match="has no 'q'"):
        await calling().schedule(cast(Api, server))
    assert (server.num_open, server.called) == (0, [])


async def test_a_server_that_cannot_be_asked_is_named_with_its_engine() -> None:
    class Down(Server):
        async def list_tools(self) -> list[McpTool]:
            raise ProgramError("POST http://mcp/ failed: all connection attempts failed")

    with pytest.raises(ProgramError, match="engine 'tool': POST http://mcp/ failed: all conn"):
        await calling().schedule(cast(Api, Down({})))


REQUIRED: list[Any] = [3, "q", {"q": 1}, [{}, 3, None], None]


@pytest.mark.parametrize("required", REQUIRED)
async def test_a_tool_whose_required_inputs_are_no_names_requires_none(required: Any) -> None:
    runner, call = runner_of(Server({"properties": {"q": {}}, "required": required}))
    await runner.check([call])
    await runner.close()


async def test_a_text_that_is_nested_too_deep_to_be_read_stays_a_text() -> None:
    server = Server({"properties": {"q": {"type": "array"}}})
    runner, call = runner_of(server)
    with pytest.raises(InvalidArgument, match="takes it as array: give one"):
        await runner.run(call, {"q": "[" * 100_000})
    await runner.close()


async def test_a_result_that_is_nested_too_deep_is_refused() -> None:
    app = App("app", [Engine("tool", config={"mcp": "server"})])
    config = {"function": "look"}
    node = Node("tool", {"q": "text"}, {"answer": "object"}, None, config, name="look")
    app.update_template([node])
    (call,) = Graph.optimize(app, {"q": "x"}).e_graph.primitives.values()
    server = Server({"properties": {"q": {}}})
    server.result = "[" * 100_000
    runner = McpToolRunner(cast(Api, server), McpTools("server"), None)
    with pytest.raises(InvalidArgument, match="gave a text, '"):
        await runner.run(call, {"q": "x"})
    await runner.close()
