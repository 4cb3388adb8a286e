"""The common part of both MCP channels: JSON-RPC messages and the initialization.

Model Context Protocol, revision 2025-06-18. Pure values; must not know how messages are
transported.
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
_MAX_SHOWN_CHARS = 1000
"""The most characters of a server's message that an error repeats."""

INITIALIZE: Mapping[str, Any] = {
    "protocolVersion": PROTOCOL_VERSION,
    "capabilities": {},
    "clientInfo": {"name": "quire", "version": __version__},
}
"""Parameters of ``initialize``."""
INITIALIZED: Mapping[str, Any] = {"method": "notifications/initialized"}


def encoded(message: Mapping[str, Any]) -> bytes:
    """``message`` as one line of JSON."""
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def parsed(server: str, text: str | bytes) -> dict[str, Any]:
    """A message of ``server``.

    Raises:
        ProgramError: it is not a JSON-RPC message.
    """
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ProgramError(f"MCP server {server} sent a message that is not JSON: {exc}") from exc
    if not isinstance(message, dict):
        raise ProgramError(f"MCP server {server} sent JSON that is not a JSON-RPC message")
    return message


def result_of(server: str, method: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The result in the answer to ``method``.

    Raises:
        ProgramError: the answer is an error, or has no result.
    """
    if "error" in answer:
        error = answer["error"]
        words = error.get("message", error) if isinstance(error, dict) else error
        raise ProgramError(f"MCP server {server} refuses {method}: {_shown(words)}")
    result = answer.get("result")
    if not isinstance(result, dict):
        raise ProgramError(f"MCP server {server} answered {method} without a result")
    return result


def agreed(server: str, result: Mapping[str, Any]) -> tuple[str, str]:
    """The protocol version and the server's name, from the result of ``initialize``.

    Raises:
        ProgramError: the version is not supported.
    """
    version = result.get("protocolVersion")
    if version not in UNDERSTOOD:
        raise ProgramError(
            f"MCP server {server} speaks version {_shown(version)!r} of the protocol; supported "
            f"are {', '.join(UNDERSTOOD)}"
        )
    info = result.get("serverInfo")
    return version, str(info.get("name", "")) if isinstance(info, dict) else ""


def _shown(words: Any) -> str:
    text = str(words)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."


def reply_to(request: Mapping[str, Any]) -> dict[str, Any]:
    """The reply to a request of the server. This client answers pings and offers nothing else."""
    if request["method"] == "ping":
        return {"id": request["id"], "result": {}}
    error = {"code": METHOD_NOT_FOUND, "message": f"{_shown(request['method'])} is not offered"}
    return {"id": request["id"], "error": error}
