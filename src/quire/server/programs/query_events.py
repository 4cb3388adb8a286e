"""A query of a workflow as server-sent events.

First ``started``, then ``planned``, and ``resumed`` if the query goes on after an interruption;
while it runs, its primitives (``primitive.started``, ``primitive.ended``, ``primitive.repeated``),
the primitives by which the graph has grown (``grown``) and the text of results that models write
(``delta``); last ``ended`` with the results, or an error. ``[DONE]`` ends the stream.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from quire.core.errors import QuireError
from quire.node import MessageReader, ProgramHandle
from quire.server.answers.event_stream import EventStream
from quire.server.errors.errors import body_of
from quire.server.events import DATA_EVENTS, data_event
from quire.server.schemas.workflows import QueryResult


class QueryEvents(EventStream):
    """Sends the events of a query of workflow ``name``, launched as ``handle``; a client that
    disconnects ends it.

    ``result`` waits for the query's results, or raises why there are none.
    """

    def __init__(
        self,
        name: str,
        handle: ProgramHandle,
        result: Callable[[], Awaitable[QueryResult]],
        write_timeout_s: float,
    ) -> None:
        super().__init__(write_timeout_s)
        self._name, self._handle, self._result = name, handle, result
        self._reader: MessageReader

    def opened(self) -> None:
        self._reader = self._handle.attach()

    def closed(self) -> None:
        self._reader.close()
        if not self._handle.ended:
            self._handle.terminate("its client, which was to read its events, has left")

    async def events(self) -> AsyncGenerator[bytes, None]:
        started = {"type": "started", "id": self._handle.id, "workflow": self._name}
        yield _event(started)
        try:
            async for message in self._reader:
                yield b"id: %d\n" % message.sequence + data_event(message.text.encode())
            result = await self._result()
            yield _event({"type": "ended", **json.loads(result.to_json())})
        except QuireError as error:
            yield _event({"type": "error", **body_of(error)})
        yield DATA_EVENTS.done


def _event(frame: dict[str, Any]) -> bytes:
    return data_event(json.dumps(frame).encode())
