"""``Client``: a connection to one running node. ``RemoteProgram``: one program on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

import httpx

from quire.client.attachment import Attachment, result_of
from quire.client.requests import (
    LaunchSettings,
    QuerySettings,
    launch_body,
    query_body,
    read_code,
)
from quire.client.wire import (
    CODE_TIMEOUT,
    FOR_EVER,
    TIMEOUT,
    answer_of,
    code_body,
    kept_query_path,
    key_headers,
    node_url,
    program_path,
    query_path,
    streamed,
    unreachable,
    upload_path,
)


class Client:
    """The node at ``url``, used with ``api_key``. An async context manager.

    Belongs to one event loop. Every method raises an error response as an exception of
    ``quire.core.errors``, and ``EngineLost`` if no node answers.
    """

    def __init__(self, url: str = "http://127.0.0.1:8000", api_key: str | None = None) -> None:
        """Make a client, which connects at the first request.

        Raises:
            ConfigError: ``url`` is no HTTP address, or a header cannot carry ``api_key``.
        """
        self._url = node_url(url)
        self._headers = key_headers(api_key)
        self._http = httpx.AsyncClient(base_url=self._url, headers=self._headers, timeout=TIMEOUT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; programs keep running."""
        await self._http.aclose()

    async def library(self) -> list[dict[str, Any]]:
        """Return the programs that are shipped with the node: name, theme, summary."""
        return list((await self._call("GET", "/v1/programs/library"))["data"])

    async def push(self, code: str | bytes | Path) -> dict[str, Any]:
        """Upload a program, to be launched by name: Python text, a WebAssembly module, the path of
        a file with either, or that of a folder with a ``main.py``.

        Raises:
            InvalidArgument: it is not a program, or cannot be read.
        """
        read = await asyncio.to_thread(read_code, code)  # pip may download what a folder requires
        body = code_body(read)
        return await self._call("POST", "/v1/programs/uploads", body, CODE_TIMEOUT)

    async def uploads(self) -> list[dict[str, Any]]:
        """Return the uploads of this caller's tenant, newest first."""
        return list((await self._call("GET", "/v1/programs/uploads"))["data"])

    async def delete_upload(self, name: str) -> None:
        """Delete an uploaded program, by its id or its name."""
        await self._call("DELETE", upload_path(name))

    async def launch(
        self,
        program: str | None = None,
        args: Sequence[Any] = (),
        **settings: Unpack[LaunchSettings],
    ) -> RemoteProgram:
        """Start ``program`` (of the library, or the name or id of an upload), or the ``code`` among
        ``settings`` (``LaunchSettings``). ``args``: arguments by position, strings or other JSON
        values. Returns when the program has started.

        Raises:
            InvalidArgument: neither or both of ``program`` and ``code`` are given, or an argument
                is missing, unknown, or of the wrong type.
            UnknownHandle: no program has that name.
        """
        body = await asyncio.to_thread(launch_body, program, args, settings)
        launched = await self._call("POST", "/v1/programs", body, CODE_TIMEOUT)
        return RemoteProgram(self, str(launched["id"]))

    async def run(
        self,
        program: str | None = None,
        args: Sequence[Any] = (),
        **settings: Unpack[LaunchSettings],
    ) -> Any:
        """Launch like ``launch`` and return the program's result, in one request. If this call is
        cancelled, the program is cancelled.

        Raises:
            ProgramFailed: it raised; the message has its traceback.
            ProgramCancelled: it was cancelled.
            QuotaExceeded: it used more than it may.
        """
        body = await asyncio.to_thread(launch_body, program, args, settings)
        return result_of(await self._call("POST", "/v1/programs", body | {"wait": True}, FOR_EVER))

    async def workflows(self) -> list[dict[str, Any]]:
        """Return the workflows that the node serves, with the schemas of their queries."""
        return list((await self._call("GET", "/v1/workflows"))["data"])

    async def query(
        self,
        workflow: str,
        query: Mapping[str, Any] | None = None,
        **settings: Unpack[QuerySettings],
    ) -> dict[str, Any]:
        """Run ``workflow`` on a query and return its results by name. ``query``: the inputs by
        name. ``settings``: see ``QuerySettings``. If this call is cancelled, so is the query.

        Raises:
            UnknownHandle: the node serves no such workflow, or has no record to resume.
            InvalidArgument: an input or a setting that the workflow does not take; or a tool was
                interrupted, and ``repeat_interrupted`` is not given.
            AlreadyExists: the id belongs to a query with other inputs.
        """
        body = query_body(query, settings)
        answer = await self._call("POST", query_path(workflow), body, FOR_EVER)
        results: dict[str, Any] = answer["results"]
        return results

    def query_events(
        self,
        workflow: str,
        query: Mapping[str, Any] | None = None,
        **settings: Unpack[QuerySettings],
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Like ``query``, but yield the events: ``started``, the primitives, the text of results
        (``delta``), and ``ended``, which has the results. Closing the generator cancels the
        query."""
        body = query_body(query, settings)
        return streamed(self._http, self._url, query_path(workflow), body | {"stream": True})

    async def forget_query(self, workflow: str, query_id: str) -> None:
        """Delete the record of a query with an id. Raises ``UnknownHandle`` if there is none."""
        await self._call("DELETE", kept_query_path(workflow, query_id))

    async def programs(self) -> list[dict[str, Any]]:
        """Return the records of this caller's programs, sessions included."""
        return list((await self._call("GET", "/v1/programs"))["data"])

    def program(self, public_id: str) -> RemoteProgram:
        """Return a program that was launched earlier, by anyone with the same key. Sends no
        request."""
        return RemoteProgram(self, public_id)

    async def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        limit: httpx.Timeout = TIMEOUT,
    ) -> dict[str, Any]:
        try:
            response = await self._http.request(method, path, json=body, timeout=limit)
        except httpx.TransportError as exc:
            raise unreachable(self._url, exc) from exc
        return answer_of(self._url, response)

    def _attachment(self, public_id: str, after: int) -> Attachment:
        return Attachment(self._url, self._headers, public_id, after)


class RemoteProgram:
    """A launched program, by its public ``id``. Dropping this object leaves it running."""

    def __init__(self, client: Client, public_id: str) -> None:
        self._client = client
        self.id = public_id

    def attach(self, after: int = 0) -> Attachment:
        """Return a connection: ``async with program.attach() as attached``. Messages up to sequence
        number ``after`` are skipped."""
        return self._client._attachment(self.id, after)

    async def record(self) -> dict[str, Any]:
        """Return its name, state and figures, and after its end its result or error."""
        return await self._client._call("GET", program_path(self.id))

    async def result(self) -> Any:
        """Wait for its end and return its result. Its messages can still be read afterwards.

        Raises:
            ProgramFailed: it raised; the message has its traceback.
            ProgramCancelled: it was cancelled.
            QuotaExceeded: it used more than it may.
        """
        async with self.attach() as attached:
            async for _ in attached.messages():
                pass
            return await attached.result()

    async def send(self, message: str) -> None:
        """Send it a message, which its ``receive`` returns."""
        await self._signal({"signal": "message", "message": message})

    async def end_input(self) -> None:
        """Announce that nothing more will be sent: ``receive`` then raises in the program."""
        await self._signal({"signal": "end_of_input"})

    async def cancel(self) -> None:
        """Ask it to end; it may still clean up."""
        await self._signal({"signal": "cancel"})

    async def logs(self) -> list[dict[str, Any]]:
        """Return its log entries, its output, and the node's notes about it, oldest first."""
        return list((await self._client._call("GET", f"{program_path(self.id)}/logs"))["data"])

    async def _signal(self, body: dict[str, Any]) -> None:
        await self._client._call("POST", f"{program_path(self.id)}/signal", body)
