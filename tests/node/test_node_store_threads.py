"""The threads of a node's stores."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from quire.node.store_threads import StoreThreads


async def test_a_job_that_fails_when_nobody_waits_for_it_is_no_news(
    caplog: pytest.LogCaptureFixture,
) -> None:
    threads, go = StoreThreads(1), threading.Event()

    def fails() -> None:
        go.wait()
        raise OSError("away")

    waiting = asyncio.create_task(threads.run(fails))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    go.set()
    await threads.run(lambda: None)  # the only thread has ended the job before
    await asyncio.to_thread(threads.close)
    del waiting
    gc.collect()  # asyncio logs an error that nobody has looked at when it is collected
    assert caplog.records == []
