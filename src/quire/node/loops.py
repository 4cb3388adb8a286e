"""Tools for event loops: calls onto a loop of another thread, once or a thousand times; waking all
waiters; waiting for blocking work.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar, TypeVarTuple

logger = logging.getLogger(__name__)

LONG_TURN_S = 0.002

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[[*Ts], object], *args: *Ts) -> bool:
    """Run ``callback`` soon on ``loop``, from any thread. False: the loop is closed.

    Checking first whether the loop is closed would leave a race with its owner.
    """
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if loop.is_closed():
            return False
        raise
    return True


async def on_loop_of(loop: asyncio.AbstractEventLoop, work: Callable[[], Awaitable[T]]) -> T:
    """Wait for ``work()`` on ``loop``, from any loop."""

    async def run() -> T:
        return await work()

    if asyncio.get_running_loop() is loop:
        return await run()
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), loop))


async def in_daemon_thread(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Like ``asyncio.to_thread``, on a thread of its own that the end of the process does not wait
    for. Cancelling the wait leaves the thread running."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(tell: Callable[[], None]) -> None:
        if not future.done():
            tell()

    def work() -> None:
        try:
            result = function(*args)
        except BaseException as exc:
            call_on(loop, settle, partial(future.set_exception, exc))
        else:
            call_on(loop, settle, partial(future.set_result, result))

    threading.Thread(target=work, name=f"quire-{function.__name__}", daemon=True).start()
    return await future


class Wake:
    """Runs ``callback`` on another loop to process what producers left there; a producer calls
    ``ring`` from any thread, after leaving something.

    Rings before the callback begins count as one. Of the rings in one turn of a producer's loop,
    the first wakes the other loop at once. All others wake it once more at the end of the turn, or
    after ``LONG_TURN_S`` of a long turn, so that nothing waits for the end of that turn. The
    reason: waking is a system call that releases the interpreter's lock. A thousand of them in a
    turn would hand the lock to and fro a thousand times, and on a busy machine each time may take
    milliseconds.
    """

    def __init__(
        self, callback: Callable[[], object], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._callback = callback
        self._now_s = now_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pending = False
        self._turn = _Turn()

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run ``callback`` on ``loop`` from now on; earlier rings take effect now."""
        self._loop = loop
        if self._pending:
            call_on(loop, self._run)

    def ring(self) -> None:
        if self._pending:
            return
        turn = self._turn
        try:
            producer = asyncio.get_running_loop()
        except RuntimeError:
            self._wake()
            return
        if turn.loop is producer:
            turn.missed = True
            now_s = self._now_s()
            if now_s > turn.wakes_s:
                turn.missed, turn.wakes_s = False, now_s + LONG_TURN_S
                self._wake()
            return
        turn.loop = producer
        turn.wakes_s = self._now_s() + LONG_TURN_S
        producer.call_soon(self._turn_ended)
        self._wake()

    def _turn_ended(self) -> None:
        turn = self._turn
        missed, turn.missed, turn.loop = turn.missed, False, None
        if missed and not self._pending:
            self._wake()

    def _wake(self) -> None:
        self._pending = True  # two producers may both wake the loop: the second run finds nothing
        if self._loop is not None:
            call_on(self._loop, self._run)

    def _run(self) -> None:
        self._pending = False  # before anything is taken: a later producer wakes the loop again
        self._callback()


class _Turn(threading.local):
    """The state of a producing thread: the loop whose turn has rung, and whether it has rung
    again."""

    loop: asyncio.AbstractEventLoop | None = None
    missed = False
    wakes_s = 0.0
    """The time from which a ring of this turn wakes the other loop again."""


class LoopCalls:
    """Calls that any thread leaves for one loop, in order; the loop is woken once for all calls of
    a turn."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._wake = Wake(self._run)

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the calls on ``loop`` from now on; calls that were left earlier run soon."""
        self._wake.begin(loop)

    def soon(self, callback: Callable[[], object]) -> None:
        self._calls.append(callback)
        self._wake.ring()

    def _run(self) -> None:
        for _ in range(len(self._calls)):  # calls that they leave wake the loop again
            callback = self._calls.popleft()
            try:
                callback()
            except Exception:  # a bug of ours with one program must not lose the others' calls
                logger.exception("%s failed", callback)


class Bell:
    """Wakes every waiter, once per ring. Belongs to one loop; a waiter must check its condition
    again."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)
