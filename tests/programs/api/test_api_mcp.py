"""The client of MCP servers: against scripted answers, and against a server of the official
package where that is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
from programs_port import Connected

from quire.core.errors import Forbidden, ProgramError
from quire.programs.api import Api
from quire.programs.chat.pieces import Call
from quire.programs.sdk import Toolbox, mcp_tools
from quire.programs.services.network import Network, NetworkPolicy

INITIALIZED = {"protocolVersion": "2025-06-18", "serverInfo": {"name": "scripted"}}


class Scripted:
    """A server that answers each method with a result, an error, or server-sent events."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {"initialize": INITIALIZED, **answers}
        self.seen: list[dict[str, Any]] = []
        self.headers: list[httpx.Headers] = []
        self.methods: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.methods.append(request.method)
        self.headers.append(request.headers)
        if request.method == "DELETE":
            return httpx.Response(405)
        message = json.loads(request.content)
        self.seen.append(message)
        if "id" not in message or "method" not in message:
            return httpx.Response(202)
        answer = self.answers[message["method"]]
        if callable(answer):
            answer = answer(message)
        if isinstance(answer, httpx.Response):
            return answer
        body = {"jsonrpc": "2.0", "id": message["id"], "result": answer}
        session = {"mcp-session-id": "s1"} if message["method"] == "initialize" else {}
        return httpx.Response(200, json=body, headers=session)

    def api(self, connected: Connected, policy: NetworkPolicy | None = None) -> Api:
        client = httpx.AsyncClient(transport=httpx.MockTransport(self))
        return connected(Network(client, policy))


async def test_a_session_begins_and_ends(connected: Connected) -> None:
    server = Scripted(**{"tools/list": {"tools": []}})
    api = server.api(connected)
    async with api.mcp_connect("http://mcp/", headers={"authorization": "key"}) as session:
        assert session.name == "scripted"
        assert await session.list_tools() == []
    assert [message.get("method") for message in server.seen] == [
        "initialize",
        "notifications/initialized",
        "tools/list",
    ]
    assert server.methods == ["POST", "POST", "POST", "DELETE"]
    assert all(headers["authorization"] == "key" for headers in server.headers)
    assert "mcp-session-id" not in server.headers[0]
    for headers in server.headers[1:]:
        assert headers["mcp-session-id"] == "s1"
        assert headers["mcp-protocol-version"] == "2025-06-18"


async def test_the_error_of_a_server_that_has_gone_is_not_that_of_the_end_of_its_session(
    connected: Connected,
) -> None:
    class Gone(Scripted):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            if request.method == "DELETE" or b"tools/call" in request.content:
                self.methods.append(request.method)
                raise httpx.ReadError("it is gone")
            return super().__call__(request)

    server = Gone()
    with pytest.raises(ProgramError, match="POST http://mcp/ failed: ReadError: it is gone"):
        async with server.api(connected).mcp_connect("http://mcp/") as session:
            await session.call_tool("add", {})
    assert server.methods[-1] == "DELETE"


async def test_tools_come_page_by_page(connected: Connected) -> None:
    def listed(message: dict[str, Any]) -> dict[str, Any]:
        if message["params"].get("cursor") == "2":
            return {"tools": [{"name": "b", "inputSchema": {"type": "object", "x": 1}}]}
        return {"tools": [{"name": "a", "description": "first"}], "nextCursor": "2"}

    async with (
        Scripted(**{"tools/list": listed}).api(connected).mcp_connect("http://mcp/") as session
    ):
        tools = await session.list_tools()
    assert [(tool.name, tool.description, tool.parameters) for tool in tools] == [
        ("a", "first", {"type": "object"}),
        ("b", "", {"type": "object", "x": 1}),
    ]


async def test_an_answer_may_be_a_stream_in_which_the_server_asks_too(connected: Connected) -> None:
    def streamed(message: dict[str, Any]) -> httpx.Response:
        result = {"content": [{"type": "text", "text": "done"}], "structuredContent": {"n": 1}}
        parts: list[dict[str, Any]] = [
            {"method": "notifications/progress", "params": {}},
            {"id": 7, "method": "ping"},
            {"id": 8, "method": "roots/list"},
            {"id": message["id"], "result": result},
        ]
        text = "".join(f"event: message\ndata: {json.dumps(part)}\n\n" for part in parts)
        return httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})

    server = Scripted(**{"tools/call": streamed})
    async with server.api(connected).mcp_connect("http://mcp/") as session:
        result = await session.call_tool("work", {"a": 1})
    assert (result.text, result.structured, result.is_error) == ("done", {"n": 1}, False)
    replies = [message for message in server.seen if "method" not in message]
    assert replies[0] == {"jsonrpc": "2.0", "id": 7, "result": {}}
    assert replies[1]["error"]["code"] == -32601


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"initialize": {"protocolVersion": "1999-01-01"}}, "speaks version '1999-01-01'"),
        ({"initialize": lambda _: httpx.Response(503, text="later")}, "status 503: later"),
        ({"initialize": lambda _: httpx.Response(200, text="{")}, "not JSON"),
        ({"initialize": lambda _: httpx.Response(200, text="[" * 100_000)}, "not JSON"),
        ({"initialize": lambda _: httpx.Response(200, json=[1])}, "not a JSON-RPC message"),
        ({"initialize": lambda _: httpx.Response(200, json={"id": 1})}, "without a result"),
        (
            {"initialize": lambda _: httpx.Response(200, json={"error": {"message": "no"}})},
            "refuses initialize: no",
        ),
    ],
)
async def test_what_goes_wrong_is_said(
    connected: Connected, answers: dict[str, Any], words: str
) -> None:
    with pytest.raises(ProgramError, match=words):
        async with Scripted(**answers).api(connected).mcp_connect("http://mcp/"):
            pass


async def test_the_network_policy_holds(connected: Connected) -> None:
    api = Scripted().api(connected, NetworkPolicy(hosts=("other",)))
    with pytest.raises(Forbidden, match="'mcp' is not allowed"):
        async with api.mcp_connect("http://mcp/"):
            pass


# -- a real one --------------------------------------------------------------------------------

PYTHON = os.environ.get("QUIRE_TEST_MCP_PYTHON", sys.executable)
"""A Python that has the official package; this one by default."""
SERVER = Path(__file__).parents[1] / "mcp_real_server.py"


@pytest.fixture(params=["events", "json"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if sys.executable == PYTHON and find_spec("mcp") is None:
        pytest.skip("the package 'mcp' is not installed")
    options = ["--json"] if request.param == "json" else []
    process = subprocess.Popen(
        [PYTHON, str(SERVER), *options], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@pytest.mark.e2e
async def test_tools_of_a_real_server(connected: Connected, url: str) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=120) as client:  # it imports much
        api = connected(Network(client))
        async with api.mcp_connect(url) as server:
            assert server.name == "arithmetic"
            tools = {tool.name: tool for tool in await server.list_tools()}
            assert set(tools) == {"add", "divide"}
            assert tools["add"].description == "Adds two numbers."
            assert tools["add"].parameters["required"] == ["left"]
            assert (await server.call_tool("add", {"left": 2, "right": 3})).text == "5"
            failed = await server.call_tool("divide", {"left": 2, "right": 0})
            assert failed.is_error
            toolbox = Toolbox(await mcp_tools(server))
            assert await toolbox.call(Call("1", "add", '{"left": 2}')) == "3"
            assert (await toolbox.call(Call("1", "divide", '{"left": 1, "right": 0}'))).startswith(
                "error: "
            )
            assert "error" in await toolbox.call(Call("1", "add", '{"left": "x"}'))


BREAKING: dict[str, tuple[dict[str, Any], str]] = {
    "no list": ({"tools/list": {"tools": 3}}, "'tools' is no list of objects"),
    "no objects": ({"tools/list": {"tools": [3]}}, "'tools' is no list of objects"),
    "no name": ({"tools/list": {"tools": [{"name": 3}]}}, "a tool without a name"),
    "no schema": ({"tools/list": {"tools": [{"name": "a", "inputSchema": [1]}]}}, "inputSchema is"),
    "in circles": ({"tools/list": {"nextCursor": "1"}}, "pages that lead nowhere"),
    "no cursor": ({"tools/list": {"nextCursor": {"a": 1}}}, "pages that lead nowhere"),
    "on and on": (
        {"tools/list": lambda m: {"nextCursor": m["params"].get("cursor", "") + "1"}},
        "on more than 100 pages",
    ),
    "more and more": (
        {
            "tools/list": lambda m: {
                "tools": [{"name": "a", "description": "d" * (1 << 20)}],
                "nextCursor": m["params"].get("cursor", "") + "1",
            }
        },
        "in more than 4194304 characters",
    ),
    "no blocks": ({"tools/call": {"content": "text"}}, "'content' is no list of objects"),
    "no structure": ({"tools/call": {"structuredContent": [1]}}, "is no object"),
    "no JSON in a stream": (
        {
            "tools/call": lambda _: httpx.Response(
                200, text="data: soon\n\n", headers={"content-type": "text/event-stream"}
            )
        },
        "sent a message that is not JSON",
    ),
    "long words": (
        {"tools/call": lambda _: httpx.Response(200, json={"error": {"message": "w" * 10**6}})},
        "refuses tools/call: w{1000}\\.\\.\\.$",
    ),
}


@pytest.mark.parametrize("case", BREAKING)
async def test_a_server_that_breaks_the_protocol_is_named(case: str, connected: Connected) -> None:
    answers, words = BREAKING[case]
    server = Scripted(**answers)
    async with server.api(connected).mcp_connect("http://mcp/") as session:
        with pytest.raises(ProgramError, match=f"MCP server http://mcp/ .*{words}"):
            await (session.call_tool("a") if "tools/call" in answers else session.list_tools())


async def test_a_stream_without_end_and_without_an_answer_is_left(connected: Connected) -> None:
    def streamed(message: dict[str, Any]) -> httpx.Response:
        return httpx.Response(
            200,
            text='data: {"method":"notifications/progress"}\n\n' * 10_001,
            headers={"content-type": "text/event-stream"},
        )

    async with Scripted(**{"tools/call": streamed}).api(connected).mcp_connect("http://mcp/") as s:
        with pytest.raises(ProgramError, match="has sent 10000 messages and no answer"):
            await s.call_tool("a")
