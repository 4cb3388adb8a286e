"""What every HTTP client of a node needs: its address, code as a request body, and errors as
exceptions."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from quire.core.errors import (
    ConfigError,
    EngineLost,
    ErrorRecord,
    InvalidArgument,
    QuireError,
    from_record,
)

TIMEOUT = httpx.Timeout(30.0, connect=5.0)
CODE_TIMEOUT = httpx.Timeout(660.0, connect=5.0)
"""Timeout of requests with code: the first of them builds the node's sandbox, which takes a minute
on an idle machine. The node ends each of the two steps after five minutes."""
FOR_EVER = httpx.Timeout(None, connect=5.0)
"""Timeout of requests that return when a program ends: none."""

_WASM_MAGIC = b"\0asm"
_ENDED = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)


def node_url(url: str) -> str:
    """Return the base URL of a node's routes; ``url`` may be the base URL of OpenAI clients.

    Raises:
        ConfigError: ``url`` is no HTTP address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"{url!r} is not the address of a node: write e.g. http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")


def key_headers(api_key: str | None) -> dict[str, str]:
    """Return the headers that carry ``api_key``.

    Raises:
        ConfigError: it has a character that no header can carry.
    """
    if api_key is None:
        return {}
    wrong = next((one for one in api_key if not " " <= one <= "~"), None)
    if wrong is not None or api_key != api_key.strip():
        what = "a space at an end" if wrong is None else f"the character {wrong!r}"
        raise ConfigError(
            f"the API key has {what}, which no request can carry: use printable ASCII characters"
        )
    return {"authorization": f"Bearer {api_key}"}


def program_path(public_id: str) -> str:
    return f"/v1/programs/{quote(public_id, safe='')}"


def session_path(public_id: str) -> str:
    return f"/v1/sessions/{quote(public_id, safe='')}"


def upload_path(name: str) -> str:
    return f"/v1/programs/uploads/{quote(name, safe='')}"


def query_path(workflow: str) -> str:
    return f"/v1/workflows/{quote(workflow, safe='')}/query"


def kept_query_path(workflow: str, query_id: str) -> str:
    return f"/v1/workflows/{quote(workflow, safe='')}/queries/{quote(query_id, safe='')}"


def code_body(code: bytes) -> dict[str, Any]:
    """Return a program's code in the form of a request.

    Raises:
        InvalidArgument: it is neither WebAssembly nor UTF-8 text.
    """
    if code.startswith(_WASM_MAGIC):
        return {"module": base64.b64encode(code).decode()}
    try:
        return {"source": code.decode("utf-8")}
    except UnicodeDecodeError as exc:
        raise InvalidArgument(
            f"neither a WebAssembly module nor Python source in UTF-8 ({exc.reason} at byte "
            f"{exc.start}): give a Python file, a .wasm module or a folder"
        ) from exc


def unreachable(url: str, reason: Exception) -> QuireError:
    """Return the error for a node that cannot be reached, or that ended the connection."""
    told = str(reason) or type(reason).__name__
    if isinstance(reason, _ENDED):
        return EngineLost(
            f"{url} ended the connection before it had answered ({told}): see its log. It may have "
            "stopped, or the request is far longer than its --max-body-bytes or --max-query-bytes"
        )
    return EngineLost(
        f"no node answers at {url} ({told}): start one with 'quire serve' or name another with "
        "--url"
    )


def answer_of(url: str, response: httpx.Response) -> dict[str, Any]:
    """Return the body of a response; raise an error response."""
    if not response.is_success:
        raise error_of_body(url, response.status_code, response.content)
    try:
        answer = response.json() if response.content else {}
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise QuireError(f"{url} answered with no JSON object: check that it is a Quire node")
    return answer


def event_of(url: str, line: str) -> dict[str, Any]:
    """Return the JSON of a streamed event; raise an error.

    An error has the type ``error`` or, in a completion's stream, no type. Events of other types may
    report an error that is not the end, such as ``primitive.repeated``.
    """
    event: dict[str, Any] = json.loads(line)
    if "error" in event and event.get("type", "error") == "error":
        raise error_of_body(url, 500, line.encode())
    return event


async def streamed(
    http: httpx.AsyncClient, url: str, path: str, body: Mapping[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the events of the answer to ``body``. Closing the generator ends the request.

    Raises:
        QuireError: the node refuses it, cannot be reached, or reports a failure in an event.
    """
    try:
        async with http.stream("POST", path, json=body, timeout=FOR_EVER) as answer:
            if not answer.is_success:
                raise error_of_body(url, answer.status_code, await answer.aread())
            async for line in answer.aiter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield event_of(url, line[6:])
    except httpx.TransportError as exc:
        raise unreachable(url, exc) from exc


def error_of_body(url: str, status: int, body: bytes | None) -> QuireError:
    """Return the exception for an error response; ``details["param"]`` is the field it names."""
    try:
        error = json.loads(body or b"")["error"]
        code, message = str(error["code"]), str(error["message"])
        param = error.get("param")
    except (ValueError, KeyError, TypeError):
        return QuireError(
            f"{url} answered {status} with no error of Quire's: check that it is a Quire node"
        )
    details = {"param": param} if isinstance(param, str) else {}
    return from_record(ErrorRecord(code, message, details=details))
