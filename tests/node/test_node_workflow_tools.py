"""Tools of workflows that are no functions: real MCP servers, and sandboxed programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fake_node import TENANT
from sandbox_node import needs_sandbox, program, sandbox_config, sandbox_node

from quire.core.errors import InvalidArgument, ProgramFailed
from quire.core.mcp_config import McpServerConfig
from quire.node import Node
from quire.programs.workflow import App, Engine, workflow
from quire.programs.workflow import Node as Component
from quire.programs.workflow.durable import QueryId
from quire.programs.workflow.query import Query

pytestmark = [
    pytest.mark.e2e,
    needs_sandbox,
    pytest.mark.timeout(400),  # the first one builds the component
    pytest.mark.asyncio(loop_scope="module"),
]

SMALL = Path(__file__).parent / "mcp_stdio_server.py"
REAL = Path(__file__).parents[1] / "programs" / "mcp_real_server.py"
REAL_PYTHON = os.environ.get("QUIRE_TEST_MCP_PYTHON", sys.executable)
"""A Python that has the official package; this one by default."""

COUNT = program(
    """
    @inferlet("count", traits={})
    async def main(api, text: str, words: list[str] = []):
        if text == "fail":
            raise ValueError("I fail")
        if text == "sleep":
            await api.sleep(600)
        return {"characters": len(text), "words": len(words)}
    """
)


def has_official_package() -> bool:
    command = [REAL_PYTHON, "-c", "import mcp.server"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_official = pytest.mark.skipif(
    not has_official_package(),
    reason="no Python with the package 'mcp' (QUIRE_TEST_MCP_PYTHON)",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(
    sandbox_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Node]:
    node = sandbox_node(
        replace(
            sandbox_config(sandbox_cache),
            data_dir=tmp_path_factory.mktemp("kept"),
            mcp_servers=(
                McpServerConfig("small", sys.executable, (str(SMALL),)),
                McpServerConfig("real", REAL_PYTHON, (str(REAL), "--stdio")),
            ),
        )
    )
    await node.start()
    await node.upload(COUNT, TENANT)
    yield node
    await node.stop()


def calling(
    config: Mapping[str, Any],
    inputs: Mapping[str, str],
    output: str = "text",
    **component: Any,
) -> App:
    app = App("calling", [Engine("tool", config=config)])
    app.update_template([Component("tool", inputs, {"made": output}, None, component, name="call")])
    return app


async def made(node: Node, app: App, **query: Any) -> Any:
    handle = node.launch(workflow(app), [json.dumps(query)], tenant=TENANT)
    return (await handle.result())["made"]


async def test_a_tool_of_an_mcp_server_is_a_component(node: Node) -> None:
    app = calling({"mcp": "small"}, {"text": "text"}, function="echo")
    assert await made(node, app, text="Hello") == "Hello"


@needs_official
@pytest.mark.parametrize(
    ("output", "wanted"), [("text", "5"), ("object", 5), ("texts", ["5"]), ("done", None)]
)
async def test_arguments_have_the_types_that_the_tool_asks_for(
    node: Node, output: str, wanted: Any
) -> None:
    inputs = {"left": "text", "right": "text"}
    app = App("adding", [Engine("tool", config={"mcp": "real"})])
    add = Component("tool", inputs, {"made": output}, None, {"function": "add"}, name="add")
    app.update_template([add])
    handle = node.launch(workflow(app), [json.dumps({"left": "2", "right": "3"})], tenant=TENANT)
    results = await handle.result()
    assert results == ({} if output == "done" else {"made": wanted})


@needs_official
@pytest.mark.parametrize(
    ("inputs", "function", "query", "message"),
    [
        (["left"], "subtract", {"left": "1"}, "call: the MCP server real has no tool 'subtract'; "
         "it has add, divide: name one"),
        (["right"], "add", {"right": "1"}, "call: the tool 'add' of the MCP server real needs "
         "'left'; it takes left, right: name"),
        (["left"], "add", {"left": "many"}, "'left' is 'many', and the tool 'add' takes it as int"),
        (["left", "right"], "divide", {"left": "1", "right": "0"}, "call: the tool 'divide' of the "
         "MCP server real failed: Error executing tool divide"),
    ],
)  # fmt: skip
async def test_what_a_tool_does_not_take_is_refused_by_name(
    node: Node, inputs: list[str], function: str, query: Any, message: str
) -> None:
    app = calling({"mcp": "real"}, dict.fromkeys(inputs, "text"), function=function)
    with pytest.raises(ProgramFailed, match=message):
        await made(node, app, **query)


async def test_a_server_that_is_not_there_is_named(node: Node) -> None:
    app = calling({"mcp": "none"}, {"text": "text"}, function="echo")
    with pytest.raises(ProgramFailed, match="runs no MCP server 'none' for this tenant, which has"):
        await made(node, app, text="x")


async def test_a_server_that_ends_is_told_and_the_next_call_starts_it_again(node: Node) -> None:
    crash = calling({"mcp": "small"}, {"text": "text"}, function="crash")
    with pytest.raises(ProgramFailed, match="call: the tool 'crash' of the MCP server small: "):
        await made(node, crash, text="x")
    echo = calling({"mcp": "small"}, {"text": "text"}, function="echo")
    assert await made(node, echo, text="again") == "again"


async def test_a_tool_whose_server_ended_may_have_acted(node: Node) -> None:
    """A query with an id does not call it again unless its client says so."""
    app = calling({"mcp": "small"}, {"text": "text"}, function="crash")
    for repeat, message in ((False, "the tool 'crash'"), (False, "was cut off while call ran"),
                            (True, "the tool 'crash'")):  # fmt: skip
        name = QueryId("crash", repeat_interrupted=repeat)
        query = Query(app, {"text": "x"}, name=name)
        with pytest.raises(ProgramFailed, match=message):
            await node.launch(query.program(), tenant=TENANT).result()


async def test_an_uploaded_program_is_a_component(node: Node) -> None:
    inputs = {"text": "text", "words": "texts"}
    app = calling({"program": "count"}, inputs, "object")
    found = await made(node, app, text="Hello", words=["a", "b"])
    assert found == {"characters": 5, "words": 2}


@pytest.mark.parametrize(
    ("config", "inputs", "output", "query", "message"),
    [
        ({"program": "none"}, {"text": "text"}, "object", {"text": "x"},
         r"call: the program 'none' cannot be called: .*push"),
        ({"program": "count"}, {"letters": "text"}, "object", {"letters": "x"},
         "call: the program 'count' cannot be called: .*letters"),
        ({"program": "count"}, {"text": "text"}, "object", {"text": "fail"},
         "call: the program 'count': .*ValueError: I fail"),
        ({"program": "count"}, {"text": "text"}, "text", {"text": "x"},
         r"call: the program 'count' returned .* \(dict\), not text"),
        ({"program": "count", "timeout_s": 0.5}, {"text": "text"}, "object", {"text": "sleep"},
         "call: the program 'count' has not ended within 0.5 s: raise timeout_s"),
    ],
)  # fmt: skip
async def test_a_program_that_cannot_be_called_is_named(
    node: Node, config: Any, inputs: Any, output: str, query: Any, message: str
) -> None:
    with pytest.raises(ProgramFailed, match=f"(?s){message}"):
        await made(node, calling(config, inputs, output), **query)


async def test_the_program_of_a_query_reaches_what_its_engines_do() -> None:
    server = Engine("tool", config={"mcp": "files"}, name="files")
    there = Engine("tool", config={"mcp": "https://there.example/mcp"}, name="there")
    reaches = App("app", [server, there]).reaches
    assert (reaches.hosts, reaches.mcp_servers) == (("there.example",), ("files",))
    assert (reaches.stores, reaches.topics) == ((), ())
    with pytest.raises(InvalidArgument, match="give one of functions, mcp"):
        Engine("tool", config={"timeout_s": 1})
