"""HTTP responses that a guest streams: its host opens, reads and closes them."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any, Literal

from quire.core.errors import QuotaExceeded, UnknownHandle
from quire.programs.services.network import HttpStream, Network
from quire.programs.services.operations import ProgramService, operation


class GuestHttp(ProgramService):
    """The streams of one guest, at most ``max_streams`` at a time. Belongs to the host's loop."""

    def __init__(self, network: Network, max_streams: int) -> None:
        self._network = network
        self._max_streams = max_streams
        self._numbers = count(1)
        self._streams: dict[int, HttpStream] = {}
        self._num_opening = 0
        self._closing: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Close all streams: the guest has ended."""
        while self._streams:
            stream = self._streams.popitem()[1]
            task = asyncio.get_running_loop().create_task(stream.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def closed(self) -> None:
        """Wait until every stream is closed."""
        await asyncio.gather(*self._closing)

    @operation("http.open")
    async def open(
        self,
        method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"],
        url: str,
        content: bytes | None,
        headers: dict[str, str] | None,
    ) -> dict[str, Any]:
        num_open = len(self._streams) + self._num_opening
        if num_open >= self._max_streams:
            raise QuotaExceeded(
                f"{num_open} HTTP responses are being streamed; {self._max_streams} are allowed at "
                "a time: close some of them first"
            )
        self._num_opening += 1
        try:
            stream = await self._network.open(method, url, content=content, headers=headers)
        finally:
            self._num_opening -= 1
        number = next(self._numbers)
        self._streams[number] = stream
        return {"stream": number, "status": stream.status, "headers": dict(stream.headers)}

    @operation("http.read")
    async def read(self, stream: int) -> bytes | None:
        found = self._streams.get(stream)
        if found is None:
            raise UnknownHandle(f"no HTTP response {stream}: it was closed")
        return await found.read()

    @operation("http.close")
    async def close_stream(self, stream: int) -> None:
        found = self._streams.pop(stream, None)
        if found is not None:
            await found.close()
