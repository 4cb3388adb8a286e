"""The node's readers of documents: a few processes that all programs share.

Owns the processes and the threads that wait for them. Who reads, and under which bounds, is for
``DocumentService``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from quire.core.errors import Draining
from quire.node.documents.process import ReadingProcess

NUM_PROCESSES = 2


class DocumentReaders:
    """``read`` is for any loop. The first document starts a process."""

    def __init__(self, make: Callable[[], ReadingProcess] = ReadingProcess) -> None:
        self._processes = [make() for _ in range(NUM_PROCESSES)]
        self._idle: SimpleQueue[ReadingProcess] = SimpleQueue()
        for process in reversed(self._processes):
            self._idle.put(process)
        self._threads = ThreadPoolExecutor(NUM_PROCESSES, thread_name_prefix="quire-documents")
        self._closed = False

    async def read(self, name: str, kind: str, file: bytes) -> str:
        """The text of an HTML or PDF file. When the wait is cancelled, a file that is being read is
        read to its end.

        Raises:
            InvalidArgument: it cannot be read, has no text, or exceeds a limit.
            ConfigError: the extra that reads this kind is not installed.
            Draining: the readers are closed.
        """
        if self._closed:
            raise Draining("the node is stopping and reads no further documents")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._read, name, kind, file)

    def _read(self, name: str, kind: str, file: bytes) -> str:
        process = self._idle.get_nowait()  # there are as many as threads
        try:
            return process.read(name, kind, file)
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """Documents that are being read are refused. Blocks until the processes have ended.
        Idempotent."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.close()
        self._threads.shutdown()
        for process in self._processes:  # one may have been started meanwhile
            process.close()
