"""Programs use MCP servers of their node by the same call, natively and sandboxed."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import pytest_asyncio
from fake_node import TENANT
from sandbox_node import needs_sandbox, program, sandbox_config, sandbox_node

from quire.core.config import TenantConfig
from quire.core.errors import ProgramFailed
from quire.core.ids import TenantId
from quire.core.mcp_config import McpServerConfig
from quire.node import Node
from quire.programs.inferlet import Inferlet, load_inferlet
from quire.programs.sandbox.program import GuestProgram

pytestmark = [
    pytest.mark.e2e,
    needs_sandbox,
    pytest.mark.timeout(400),  # the first one builds the component
    pytest.mark.asyncio(loop_scope="module"),
]

OTHER = TenantId("other")
SMALL = Path(__file__).parent / "mcp_stdio_server.py"
REAL = Path(__file__).parents[1] / "programs" / "mcp_real_server.py"
REAL_PYTHON = os.environ.get("QUIRE_TEST_MCP_PYTHON", sys.executable)
"""A Python that has the official package; this one by default."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(sandbox_cache: Path) -> AsyncIterator[Node]:
    node = sandbox_node(
        replace(
            sandbox_config(sandbox_cache),
            tenants=(TenantConfig(TENANT), TenantConfig(OTHER)),
            mcp_servers=(
                McpServerConfig("small", sys.executable, (str(SMALL),), tenants=(TENANT,)),
                McpServerConfig("real", REAL_PYTHON, (str(REAL), "--stdio")),
            ),
        )
    )
    await node.start()
    yield node
    await node.stop()


@pytest.fixture(params=["native", "sandboxed"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def program_of(node: Node, form: str, folder: Path, body: str) -> Inferlet | GuestProgram:
    code = program(body)
    if form == "sandboxed":
        return await node.inspect(code)
    path = folder / "program.py"
    path.write_bytes(code)
    return load_inferlet(path)


USES = """
from quire.core.errors import ProgramError
from quire.programs.sdk import Toolbox, mcp_tools

@inferlet("uses", traits={"Net": 3}, mcp_servers=["sm*"])
async def main(api):
    async with api.mcp_connect("small") as server:
        toolbox = Toolbox(await mcp_tools(server))
        said = await asyncio.gather(
            *(server.call_tool("echo", {"text": str(number)}) for number in range(5))
        )
        failed = await server.call_tool("fail")
        first = (await server.call_tool("pid")).text
        try:
            await server.call_tool("crash")
        except ProgramError as exc:
            crash = exc.message
        again = (await server.call_tool("pid")).text
    return {
        "name": server.name,
        "tools": sorted(toolbox.names),
        "said": [result.text for result in said],
        "failed": [failed.text, failed.is_error],
        "crash": crash,
        "is_another": first != again,
        "pid": again,
    }
"""


async def test_tools_of_a_server_of_the_node(node: Node, form: str, tmp_path: Path) -> None:
    uses = await program_of(node, form, tmp_path, USES)
    found = await node.launch(uses, tenant=TENANT).result()
    assert found["name"] == "scripted"
    assert len(found["tools"]) == 12  # of three pages
    assert found["said"] == ["0", "1", "2", "3", "4"]
    assert found["failed"] == ["it cannot", True]
    assert "small has ended (it exited with 7); the next call starts it again" in found["crash"]
    assert found["is_another"]


async def test_programs_share_its_process(node: Node, form: str, tmp_path: Path) -> None:
    body = """
    @inferlet("asks", mcp_servers=["small"])
    async def main(api):
        async with api.mcp_connect("small") as server:
            return (await server.call_tool("pid")).text
    """
    asks = await program_of(node, form, tmp_path, body)
    handles = [node.launch(asks, tenant=TENANT) for _ in range(3)]
    assert len({await handle.result() for handle in handles}) == 1


async def test_a_server_outside_the_manifest_is_forbidden_to_a_guest(
    node: Node, tmp_path: Path
) -> None:
    body = """
    @inferlet("nosy", mcp_servers=["real"])
    async def main(api):
        async with api.mcp_connect("small"):
            pass
    """
    nosy = await program_of(node, "sandboxed", tmp_path, body)
    with pytest.raises(ProgramFailed, match="MCP server 'small' is not allowed for this program"):
        await node.launch(nosy, tenant=TENANT).result()


async def test_a_server_of_another_tenant_is_unknown(node: Node, form: str, tmp_path: Path) -> None:
    uses = await program_of(node, form, tmp_path, USES)
    with pytest.raises(ProgramFailed, match="runs no MCP server 'small' for this tenant"):
        await node.launch(uses, tenant=OTHER).result()


async def test_headers_are_for_urls(node: Node, form: str, tmp_path: Path) -> None:
    body = """
    @inferlet("wrong", mcp_servers=["small"])
    async def main(api):
        async with api.mcp_connect("small", headers={"a": "b"}):
            pass
    """
    wrong = await program_of(node, form, tmp_path, body)
    with pytest.raises(ProgramFailed, match="'small' is run by the node and takes no headers"):
        await node.launch(wrong, tenant=TENANT).result()


@pytest.mark.skipif(
    sys.executable == REAL_PYTHON and find_spec("mcp") is None,
    reason="the package 'mcp' is not installed",
)
async def test_a_server_of_the_official_package(node: Node, form: str, tmp_path: Path) -> None:
    body = """
    @inferlet("counts", mcp_servers=["real"])
    async def main(api):
        async with api.mcp_connect("real") as server:
            tools = {tool.name: tool for tool in await server.list_tools()}
            total = await server.call_tool("add", {"left": 2, "right": 3})
            failed = await server.call_tool("divide", {"left": 1, "right": 0})
            return [
                server.name,
                sorted(tools),
                tools["add"].parameters["required"],
                total.text,
                failed.is_error,
            ]
    """
    counts = await program_of(node, form, tmp_path, body)
    found = await node.launch(counts, tenant=TENANT).result()
    assert found == ["arithmetic", ["add", "divide"], ["left"], "5", True]
