"""The end of one launched program: how it is asked for, what it was, and who waits for it.

Belongs to the edge's loop. Must not know what a program is or how it is made to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from quire.core.errors import QuireError
from quire.programs.runtime.running import RunningProgram


class ProgramEnding:
    """The end of a program with several incarnations: what the last of them returns counts, unless
    the node has given the program up before.

    ``given_up``: the error with which the node has ended the program, or its move to another node.
    ``result``: what the program has returned, once it has ended.
    """

    def __init__(self) -> None:
        self.given_up: QuireError | None = None
        self.result: Any = None
        self._is_wanted = True
        """False once a client or the node has asked the program to end."""
        self._has_come = asyncio.Event()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def has_come(self) -> bool:
        """Whether the program has ended and its last message is in the log."""
        return self._has_come.is_set()

    @property
    def is_due(self) -> bool:
        """Whether the program has ended, or was asked to end."""
        return self.has_come or not self._is_wanted or self.given_up is not None

    def ask(self) -> None:
        """Note that a client or the node has asked the program to end."""
        self._is_wanted = False

    def give_up(self, error: QuireError) -> None:
        """Let the program end with ``error``; of several errors the first counts."""
        self.given_up = self.given_up or error

    def come(self) -> None:
        """Release those who wait."""
        self._has_come.set()

    def call_back(self) -> None:
        """Call those who have asked for it (``when_come``), after the end has come."""
        for callback in self._callbacks:
            callback()

    def error(self, last: RunningProgram) -> QuireError | None:
        """The error with which the program has ended; ``last`` is its last incarnation."""
        return self.given_up or last.error

    async def wait(self) -> None:
        await self._has_come.wait()

    def when_come(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when the program has ended, or soon if it already has."""
        if self.has_come:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._callbacks.append(callback)
