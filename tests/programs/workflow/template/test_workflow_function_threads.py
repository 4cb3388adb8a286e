"""Functions that block: they hold up no one else, and their number is bounded."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from quire.programs.api import Api
from quire.programs.workflow import App, Engine, Growth, Node, run_query
from quire.programs.workflow.template.function_threads import FunctionThreads
from quire.testing import LocalNode

NUM_HUNG = 40
"""More than the executor of a loop has threads, on any machine."""


class Hung:
    """A function that does not return before ``end`` is set."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.began = threading.Semaphore(0)
        self.num_begun = 0

    def __call__(self, text: str = "") -> str:
        self.num_begun += 1
        self.began.release()
        self.end.wait()
        return text


def test_functions_that_never_return_hold_up_neither_others_nor_the_loop() -> None:
    hung, threads = Hung(), FunctionThreads()

    async def run() -> None:
        calls = [asyncio.create_task(threads.run(hung)) for _ in range(NUM_HUNG)]
        await asyncio.sleep(0)
        assert await asyncio.to_thread(sum, [1, 2]) == 3
        assert await threads.run(lambda: threading.current_thread().daemon), "it ends with Python"
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)

    asyncio.run(run())  # its end waits for the threads of the executor
    hung.end.set()


async def test_more_calls_than_threads_wait_and_one_that_is_cancelled_never_begins() -> None:
    hung, threads = Hung(), FunctionThreads(most=2)
    first = [asyncio.create_task(threads.run(hung, text=str(n))) for n in range(2)]
    await asyncio.sleep(0)
    for _ in first:
        await asyncio.to_thread(hung.began.acquire)
    dropped, kept = (asyncio.create_task(threads.run(hung, text=text)) for text in ("a", "b"))
    await asyncio.sleep(0)
    dropped.cancel()
    await asyncio.wait([dropped])
    assert hung.num_begun == 2
    hung.end.set()
    assert await asyncio.gather(*first, kept) == ["0", "1", "b"]
    assert hung.num_begun == 3


async def test_a_thread_that_cannot_start_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = FunctionThreads(most=1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start"):
            await threads.run(str)
    assert await asyncio.wait_for(threads.run(str, object=3), 60) == "3"


async def test_a_call_that_waits_for_a_thread_that_cannot_start_fails_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = FunctionThreads(most=1)
    second: Future[str]

    def refused(thread: threading.Thread) -> None:
        nonlocal second
        second = executor.submit(lambda: asyncio.run(threads.run(str)))
        while not threads._waiting:
            time.sleep(0.001)
        raise RuntimeError("can't start new thread")

    with ThreadPoolExecutor(1) as executor, monkeypatch.context() as patched:
        executor.submit(int).result()  # its thread runs
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start"):
            await threads.run(str)
        with pytest.raises(RuntimeError, match="can't start"):
            second.result(60)


def _raises(error: type[BaseException]) -> Callable[[], None]:
    def function() -> None:
        raise error("so")

    return function


async def test_what_a_function_raises_arrives_and_its_context_is_the_callers() -> None:
    threads = FunctionThreads()
    for error in (KeyError, SystemExit):
        with pytest.raises(error):
            await threads.run(_raises(error))
    with pytest.raises(RuntimeError, match="StopIteration: so"):
        await threads.run(_raises(StopIteration))
    variable = contextvars.ContextVar[str]("variable")
    variable.set("set")
    assert await threads.run(variable.get) == "set"


async def test_tools_and_growths_of_an_application_use_its_threads() -> None:
    def where(text: str) -> str:
        return text + threading.current_thread().name

    def grow(place: str) -> Any:
        return Growth([again], {"place": place + threading.current_thread().name})

    config = {"function": "where"}
    tool = Node("tool", {"text": "text"}, {"place": "text"}, config=config, name="tool")
    config = {"function": "keep"}
    again = Node("tool", {"place": "text"}, {"answer": "text"}, config=config, name="again")
    config = {"function": "grow"}
    last = Node("growth", {"place": "text"}, {"answer": "text"}, config=config, name="last")
    functions = {"where": where, "keep": lambda place: where(place)}
    app = App(
        "threads",
        [
            Engine("tool", {"functions": functions}),
            Engine("growth", {"functions": {"grow": grow}}),
        ],
    )
    app.update_template([tool, last])

    async def main(api: Api) -> dict[str, Any]:
        return await run_query(api, app, {"text": ">"})

    async with LocalNode() as node:
        result = await node.run(main)
    assert result["answer"] == ">quire-function-wherequire-function-growquire-function-<lambda>"
