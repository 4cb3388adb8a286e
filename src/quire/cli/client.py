"""A blocking HTTP client of a running node, for the commands.

The counterpart of ``quire.client.Client``, with the requests that only commands make. Must not know
what a command prints.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import httpx

from quire.client.wire import (
    CODE_TIMEOUT,
    TIMEOUT,
    answer_of,
    code_body,
    key_headers,
    node_url,
    program_path,
    session_path,
    unreachable,
    upload_path,
)
from quire.core.errors import InvalidArgument, UnknownHandle

AGAIN_TIMEOUT = httpx.Timeout(5.0)
"""Timeout of a question that is asked again soon."""


class NodeClient:
    """A connection to one node. A context manager; not shared between threads."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        """Make a client, which connects at the first request.

        Raises:
            ConfigError: ``url`` is no HTTP address, or a header cannot carry ``api_key``.
        """
        self.url = node_url(url)
        self.headers = key_headers(api_key)
        self._api_key = api_key
        self._http = httpx.Client(base_url=self.url, headers=self.headers, timeout=TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._http.close()

    def another(self) -> NodeClient:
        """Return a further client of the same node, for another thread."""
        return NodeClient(self.url, self._api_key)

    def models(self) -> list[dict[str, Any]]:
        """Return the models that the node serves, the default model first."""
        return list(self._call("GET", "/v1/models")["data"])

    def is_ready(self) -> bool:
        """Return whether the node accepts new work; also False while nothing listens yet."""
        try:
            return self._http.get("/ready").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def sandbox_stage(self) -> str:
        """Return what a sandbox process of the node that starts is doing; an empty text if none
        starts, or the node does not say (a router)."""
        try:
            health = self._http.get("/health").json()
        except (httpx.TransportError, ValueError):
            return ""
        sandboxes = health.get("sandbox", {}).values() if isinstance(health, dict) else ()
        return next((one["detail"] for one in sandboxes if one["state"] == "starting"), "")

    def programs(self, timeout: httpx.Timeout = TIMEOUT) -> list[dict[str, Any]]:
        """Return the programs of this caller, sessions included."""
        return list(self._call("GET", "/v1/programs", timeout=timeout)["data"])

    def changes(self, since: str) -> dict[str, Any]:
        """Return what has changed of the process table since ``since``, the ``next`` of an earlier
        answer; with an empty text the whole table. Who asks again and again waits less long for an
        answer."""
        if not since:
            return self._call("GET", "/v1/programs/changes")
        path = f"/v1/programs/changes?since={since}"
        return self._call("GET", path, timeout=AGAIN_TIMEOUT)

    def full_id(self, beginning: str) -> str:
        """Return the id of the one program whose id begins with ``beginning``.

        Raises:
            UnknownHandle: no id does, or several do.
            InvalidArgument: it is that of a session.
        """
        found = self.found(beginning)
        if found["form"] == "session":
            raise InvalidArgument(
                f"{found['id']} is a session, which has neither messages nor a log: 'quire trace' "
                "shows its calls, 'quire kill' ends it"
            )
        return str(found["id"])

    def found(self, beginning: str) -> dict[str, Any]:
        """Return the record of the one program or session whose id begins with ``beginning``.

        Raises:
            UnknownHandle: no id does, or several do.
        """
        found = [one for one in self.programs() if one["id"].startswith(beginning)]
        exact = [one for one in found if one["id"] == beginning]
        if len(found) == 1 or exact:
            return (exact or found)[0]
        if not found:
            raise UnknownHandle(
                f"no program of this node begins with {beginning!r}: see 'quire ps'"
            )
        raise UnknownHandle(f"{len(found)} programs begin with {beginning!r}: write more of the id")

    def library(self) -> list[dict[str, Any]]:
        """Return the programs that the node can launch by name."""
        return list(self._call("GET", "/v1/programs/library")["data"])

    def workflows(self) -> list[dict[str, Any]]:
        """Return the workflows that the node serves."""
        return list(self._call("GET", "/v1/workflows")["data"])

    def launch(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start a program; see ``/v1/programs`` in docs/reference/http.md."""
        return self._call("POST", "/v1/programs", request, CODE_TIMEOUT)

    def push(self, code: bytes) -> dict[str, Any]:
        """Upload a program: Python source, or a WebAssembly module."""
        return self._call("POST", "/v1/programs/uploads", code_body(code), CODE_TIMEOUT)

    def uploads(self) -> list[dict[str, Any]]:
        """Return the programs that this caller has uploaded, newest first."""
        return list(self._call("GET", "/v1/programs/uploads")["data"])

    def delete_upload(self, name: str) -> dict[str, Any]:
        """Delete an uploaded program, by its id or its name."""
        return self._call("DELETE", upload_path(name))

    def program(self, public_id: str) -> dict[str, Any]:
        """Return the record of one launched program."""
        return self._call("GET", program_path(public_id))

    def trace(self, name: str, *, family: bool) -> dict[str, Any]:
        """Return the trace of a program or session, with ``family`` those below it too."""
        return self._call("GET", f"{program_path(name)}/trace?family={str(family).lower()}")

    def logs(self, public_id: str) -> list[dict[str, Any]]:
        """Return the program's log, oldest entry first."""
        return list(self._call("GET", f"{program_path(public_id)}/logs")["data"])

    def terminate(self, public_id: str, *, node: str | None = None) -> dict[str, Any]:
        """End a program. ``node``: behind a router, the node that has it."""
        return self._call("DELETE", program_path(public_id), headers=_at(node))

    def signal(
        self, public_id: str, signal: str, message: str | None = None, *, node: str | None = None
    ) -> dict[str, Any]:
        """Send a program ``message`` (with a text), ``end_of_input`` or ``cancel``."""
        body = {"signal": signal} if message is None else {"signal": signal, "message": message}
        path = f"{program_path(public_id)}/signal"
        return self._call("POST", path, body, headers=_at(node))

    def end_session(self, public_id: str, *, node: str | None = None) -> dict[str, Any]:
        return self._call("DELETE", session_path(public_id), headers=_at(node))

    def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        timeout: httpx.Timeout = TIMEOUT,
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        try:
            response = self._http.request(method, path, json=body, timeout=timeout, headers=headers)
        except httpx.TransportError as exc:
            raise unreachable(self.url, exc) from exc
        return answer_of(self.url, response)


def _at(node: str | None) -> dict[str, str] | None:
    return None if node is None else {"x-quire-node": node}
