"""Reads several decodes as one stream, with chunks in the order in which they arrive."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

from quire.core.decoding import DecodeChunk
from quire.programs.api import DecodeStream


async def merge(streams: Sequence[DecodeStream]) -> AsyncIterator[tuple[int, DecodeChunk]]:
    """Yield chunks with the index of their stream; raise the failure of the first stream that
    fails."""
    arrived: deque[int] = deque()
    news = asyncio.Event()

    def listener(index: int) -> None:
        arrived.append(index)
        news.set()

    for index, stream in enumerate(streams):
        stream.listen(lambda index=index: listener(index))  # type: ignore[misc]
    open_streams = set(range(len(streams)))
    while open_streams:
        await news.wait()
        news.clear()
        while arrived:
            index = arrived.popleft()
            chunk = streams[index].take()
            if chunk is None:
                continue
            yield index, chunk
            if chunk.finish_reason is not None:
                open_streams.discard(index)
