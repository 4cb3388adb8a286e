"""A streamed HTTP response in a program: bytes, lines or server-sent events, as they arrive."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Mapping
from typing import Protocol, Self

from quire.core.errors import InvalidArgument
from quire.programs.services.network import Network
from quire.programs.services.server_sent_events import EventParser, ServerSentEvent


class OpenStream(Protocol):
    """An open response: ``HttpStream`` of the network, or a guest's stream from its host."""

    status: int
    headers: Mapping[str, str]

    async def read(self) -> bytes | None: ...

    async def close(self) -> None: ...


class StreamedReply:
    """The result of ``http_stream``: use ``async with``, then iterate over bytes, lines or events.

    ``status`` and ``headers`` are available inside ``async with``.
    """

    def __init__(
        self,
        network: Network,
        method: str,
        url: str,
        content: bytes | None,
        headers: Mapping[str, str] | None,
    ) -> None:
        self._network = network
        self._method = method
        self._url = url
        self._content = content
        self._request_headers = headers
        self._stream: OpenStream | None = None

    async def __aenter__(self) -> Self:
        self._stream = await self._network.open(
            self._method, self._url, content=self._content, headers=self._request_headers
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._stream is not None:
            await self._stream.close()

    @property
    def status(self) -> int:
        return self._opened().status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._opened().headers

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The pieces of the body as they arrive."""
        stream = self._opened()
        while (part := await stream.read()) is not None:
            yield part

    async def lines(self) -> AsyncIterator[str]:
        """Lines of UTF-8 text without line ends."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        rest = ""
        async for part in self:
            *lines, rest = (rest + decoder.decode(part)).split("\n")
            for line in lines:
                yield line.removesuffix("\r")
        rest += decoder.decode(b"", True)
        if rest:
            yield rest

    async def events(self) -> AsyncIterator[ServerSentEvent]:
        """Server-sent events, each with ``data``, ``event``, ``id`` and ``retry_ms``."""
        parser = EventParser()
        async for part in self:
            for event in parser.feed(part):
                yield event

    async def text(self) -> str:
        """The rest of the body."""
        return b"".join([part async for part in self]).decode("utf-8", "replace")

    def _opened(self) -> OpenStream:
        if self._stream is None:
            raise InvalidArgument("http_stream: use `async with api.http_stream(...) as reply`")
        return self._stream
