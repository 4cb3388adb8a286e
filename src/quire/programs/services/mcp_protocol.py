"""What both ways to an MCP server have in common: JSON-RPC messages and the first of them.

Model Context Protocol, revision 2025-06-18. Pure values; must not know how messages travel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from quire import __version__
from quire.core.errors import ProgramError

PROTOCOL_VERSION = "2025-06-18"
UNDERSTOOD = ("2025-06-18", "2025-03-26")
METHOD_NOT_FOUND = -32601

INITIALIZE: Mapping[str, Any] = {
    "protocolVersion": PROTOCOL_VERSION,
    "capabilities": {},
    "clientInfo": {"name": "quire", "version": __version__},
}
"""Parameters of ``initialize``."""
INITIALIZED: Mapping[str, Any] = {"method": "notifications/initialized"}


def encoded(message: Mapping[str, Any]) -> bytes:
    """``message`` in one line."""
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def parsed(server: str, text: str | bytes) -> dict[str, Any]:
    """A message of ``server``.

    Raises:
        ProgramError: it is none.
    """
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ProgramError(f"MCP server {server} sent what is not JSON: {exc}") from exc
    if not isinstance(message, dict):
        raise ProgramError(f"MCP server {server} sent JSON that is no JSON-RPC message")
    return message


def result_of(server: str, method: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The result in an answer to ``method``.

    Raises:
        ProgramError: it is an error, or neither.
    """
    if "error" in answer:
        error = answer["error"]
        words = error.get("message", error) if isinstance(error, dict) else error
        raise ProgramError(f"MCP server {server} refuses {method}: {words}")
    result = answer.get("result")
    if not isinstance(result, dict):
        raise ProgramError(f"MCP server {server} answered {method} without a result")
    return result


def agreed(server: str, result: Mapping[str, Any]) -> tuple[str, str]:
    """The version of the protocol and the server's name, from the result of ``initialize``.

    Raises:
        ProgramError: it is a version that is not understood.
    """
    version = result.get("protocolVersion")
    if version not in UNDERSTOOD:
        raise ProgramError(
            f"MCP server {server} speaks {version!r}, understood are {', '.join(UNDERSTOOD)}"
        )
    info = result.get("serverInfo")
    return version, str(info.get("name", "")) if isinstance(info, dict) else ""


def reply_to(request: Mapping[str, Any]) -> dict[str, Any]:
    """The server may ask too; this client offers nothing but its presence."""
    if request["method"] == "ping":
        return {"id": request["id"], "result": {}}
    error = {"code": METHOD_NOT_FOUND, "message": f"{request['method']} is not offered"}
    return {"id": request["id"], "error": error}
