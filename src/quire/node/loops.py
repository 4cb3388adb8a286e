"""Event loops: calling onto one of another thread, seldom or a thousand times; waking all who wait
on one; waiting for work that blocks."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar, TypeVarTuple

logger = logging.getLogger(__name__)

LONG_TURN_S = 0.002

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def call_on(loop: asyncio.AbstractEventLoop, callback: Callable[[*Ts], object], *args: *Ts) -> bool:
    """Run ``callback`` soon on ``loop``, from any thread. False: the loop has closed.

    Asking first whether the loop is closed would leave a race with its owner.
    """
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:
        if loop.is_closed():
            return False
        raise
    return True


async def in_daemon_thread(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """As ``asyncio.to_thread``, on a thread of its own that the end of the process need not wait
    for. A wait that is cancelled leaves it behind."""
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
    """Runs ``callback`` on another loop for what was left there; ``ring`` from any thread, behind
    leaving something.

    Rings until the callback begins are one. Of those that one turn of a producer's loop makes, the
    first wakes at once, all others once more at the turn's end, or after ``LONG_TURN_S`` of a turn
    that is long: what is left there meanwhile is not to wait for it. Waking is a system call, which
    lets go of the interpreter's lock: a thousand of them in a turn would hand it to and fro a
    thousand times, and on a busy machine each time may take milliseconds.
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
        """``callback`` belongs to ``loop``. What was rung for before is done now."""
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
        self._pending = True  # two producers may both wake it: the second call finds nothing left
        if self._loop is not None:
            call_on(self._loop, self._run)

    def _run(self) -> None:
        self._pending = False  # before anything is taken: a later producer wakes us again
        self._callback()


class _Turn(threading.local):
    """Of the producing thread: the loop whose turn has rung, and whether it has rung again."""

    loop: asyncio.AbstractEventLoop | None = None
    missed = False
    wakes_s = 0.0
    """When rings of this turn wake again."""


class LoopCalls:
    """Calls that any thread leaves for one loop, in order: one wake for all that a turn leaves."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], object]] = deque()
        self._wake = Wake(self._run)

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """They run on ``loop``. What was left before is done soon."""
        self._wake.begin(loop)

    def soon(self, callback: Callable[[], object]) -> None:
        self._calls.append(callback)
        self._wake.ring()

    def _run(self) -> None:
        for _ in range(len(self._calls)):  # what they leave themselves has a wake of its own
            callback = self._calls.popleft()
            try:
                callback()
            except Exception:  # a fault of ours with one program; the others have their calls
                logger.exception("%s failed", callback)


class Bell:
    """Wakes everyone who waits, once per ring. Belongs to one loop; whoever wakes looks again at
    what it waits for."""

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
