"""The commands' way to a running node: its HTTP routes as methods.

Owns URLs, the API key and the translation of error bodies back into the exceptions they stand for.
Must not know what a command prints.
"""

from __future__ import annotations

import base64
import json
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx

from quire.core.errors import (
    ConfigError,
    EngineLost,
    ErrorRecord,
    InvalidArgument,
    QuireError,
    UnknownHandle,
    from_record,
)
from quire.programs.sandbox.program import is_module

_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_CODE_TIMEOUT = httpx.Timeout(300.0, connect=5.0)
"""For what brings code: the first of it builds the node's sandbox, half a minute where nothing else
runs."""


class NodeClient:
    """A connection to one node. A context manager; not shared between threads."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """Connects at the first call.

        Raises:
            ConfigError: ``url`` is no HTTP address.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"{url!r} is no node's address: write e.g. http://127.0.0.1:8000")
        self.url = url.rstrip("/").removesuffix("/v1")
        self.headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._http = httpx.Client(base_url=self.url, headers=self.headers, timeout=_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._http.close()

    def models(self) -> list[dict[str, Any]]:
        """What the node serves, the default model first."""
        return list(self._call("GET", "/v1/models")["data"])

    def is_ready(self) -> bool:
        """Whether new work is accepted now; False also while nothing listens yet."""
        try:
            return self._http.get("/ready").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def programs(self) -> list[dict[str, Any]]:
        """The programs of this caller, sessions included."""
        return list(self._call("GET", "/v1/programs")["data"])

    def full_id(self, beginning: str) -> str:
        """The id of the one program whose id begins so.

        Raises:
            UnknownHandle: none does, or several do.
        """
        found = [p["id"] for p in self.programs() if p["id"].startswith(beginning)]
        if len(found) == 1 or beginning in found:
            return beginning if beginning in found else str(found[0])
        if not found:
            raise UnknownHandle(
                f"no program of this node begins with {beginning!r}: see 'quire ps'"
            )
        raise UnknownHandle(f"{len(found)} programs begin with {beginning!r}: write more of the id")

    def library(self) -> list[dict[str, Any]]:
        """The programs that the node can launch by name."""
        return list(self._call("GET", "/v1/programs/library")["data"])

    def launch(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start a program; see ``/v1/programs`` in docs/reference/http.md."""
        return self._call("POST", "/v1/programs", request, _CODE_TIMEOUT)

    def push(self, code: bytes) -> dict[str, Any]:
        """Upload a program: Python source, or a WebAssembly module."""
        return self._call("POST", "/v1/programs/uploads", code_body(code), _CODE_TIMEOUT)

    def uploads(self) -> list[dict[str, Any]]:
        """The programs that this caller has uploaded, newest first."""
        return list(self._call("GET", "/v1/programs/uploads")["data"])

    def delete_upload(self, name: str) -> dict[str, Any]:
        """Forget an uploaded program, by its id or its name."""
        return self._call("DELETE", f"/v1/programs/uploads/{quote(name, safe='')}")

    def logs(self, public_id: str) -> list[dict[str, Any]]:
        """What the node has noted about the program, oldest first."""
        return list(self._call("GET", f"{_program(public_id)}/logs")["data"])

    def terminate(self, public_id: str) -> dict[str, Any]:
        return self._call("DELETE", _program(public_id))

    def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        timeout: httpx.Timeout = _TIMEOUT,
    ) -> dict[str, Any]:
        try:
            response = self._http.request(method, path, json=body, timeout=timeout)
        except httpx.TransportError as exc:
            raise unreachable(self.url, exc) from exc
        if response.is_success:
            answer: dict[str, Any] = response.json() if response.content else {}
            return answer
        raise error_of_body(self.url, response.status_code, response.content)


def code_body(code: bytes) -> dict[str, Any]:
    """A program's code as a request carries it.

    Raises:
        InvalidArgument: it is neither WebAssembly nor UTF-8 text.
    """
    if is_module(code):
        return {"module": base64.b64encode(code).decode()}
    try:
        return {"source": code.decode("utf-8")}
    except UnicodeDecodeError as exc:
        raise InvalidArgument(f"neither a WebAssembly module nor Python source: {exc}") from exc


def _program(public_id: str) -> str:
    return f"/v1/programs/{quote(public_id, safe='')}"


def unreachable(url: str, reason: Exception) -> QuireError:
    """The error of a node that cannot be reached."""
    return EngineLost(
        f"no node answers at {url} ({reason}): start one with 'quire serve' or name another "
        "with --url"
    )


def error_of_body(url: str, status: int, body: bytes | None) -> QuireError:
    """The exception that an error response stands for."""
    try:
        error = json.loads(body or b"")["error"]
        record = ErrorRecord(str(error["code"]), str(error["message"]))
    except (ValueError, KeyError, TypeError):
        return QuireError(
            f"{url} answered {status} with no error of Quire's: check that it is a Quire node"
        )
    return from_record(record)


__all__ = ["NodeClient", "code_body", "error_of_body", "unreachable"]
