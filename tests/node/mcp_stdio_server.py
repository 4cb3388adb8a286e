"""A small MCP server over standard streams, of the standard library alone: its tools misbehave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

NOTIFIED: list[str] = []
TOOLS: dict[str, Callable[[Mapping[str, Any]], str]] = {}
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}


def tool(function: Callable[[Mapping[str, Any]], str]) -> Callable[[Mapping[str, Any]], str]:
    TOOLS[function.__name__] = function
    return function


@tool
def echo(arguments: Mapping[str, Any]) -> str:
    return str(arguments["text"])


@tool
def pid(arguments: Mapping[str, Any]) -> str:
    return str(os.getpid())


@tool
def environment(arguments: Mapping[str, Any]) -> str:
    return json.dumps(dict(os.environ))


@tool
def directory(arguments: Mapping[str, Any]) -> str:
    return os.getcwd()


@tool
def size(arguments: Mapping[str, Any]) -> str:
    return "x" * int(arguments["num_bytes"])


@tool
def crash(arguments: Mapping[str, Any]) -> str:
    print("about to crash", file=sys.stderr, flush=True)
    os._exit(7)


@tool
def prints(arguments: Mapping[str, Any]) -> str:
    print("this is no message", flush=True)
    return "printed"


@tool
def fail(arguments: Mapping[str, Any]) -> str:
    raise ValueError("it cannot")


@tool
def notified(arguments: Mapping[str, Any]) -> str:
    return json.dumps(NOTIFIED)


@tool
def asks(arguments: Mapping[str, Any]) -> str:
    """The server may ask its client too."""
    heard = []
    for method in ("ping", "roots/list"):
        say({"id": f"server-{method}", "method": method})
        reply = json.loads(sys.stdin.readline())
        heard.append(sorted(set(reply) - {"jsonrpc"}))
    return json.dumps(heard)


@tool
def leaves_a_child(arguments: Mapping[str, Any]) -> str:
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    return str(child.pid)


@tool
def closes_its_input(arguments: Mapping[str, Any]) -> str:
    os.close(0)
    return "deaf"


def say(message: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(message: Mapping[str, Any]) -> dict[str, Any] | None:
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        version = os.environ.get("MCP_VERSION", params["protocolVersion"])
        info = {"name": "scripted", "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        names = sorted(TOOLS)
        start = int(params.get("cursor", 0))
        page = [{"name": name, "inputSchema": SCHEMA} for name in names[start : start + 5]]
        more = {"nextCursor": str(start + 5)} if start + 5 < len(names) else {}
        return {"tools": page, **more}
    if params["name"] == "silence":
        return None
    try:
        text = TOOLS[params["name"]](params["arguments"])
    except Exception as exc:
        return {"content": [{"type": "text", "text": str(exc)}], "isError": True}
    return {"content": [{"type": "text", "text": text}]}


def main() -> None:
    print("ready", file=sys.stderr, flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            NOTIFIED.append(message["method"])
        elif message["method"] == "refused":
            say({"id": message["id"], "error": {"code": -32601, "message": "not here"}})
        elif (result := answer(message)) is not None:
            say({"id": message["id"], "result": result})


if __name__ == "__main__":
    main()
