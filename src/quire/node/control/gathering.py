"""Gathers what the programs of one event loop issue in one pass, and hands it over together.

The results of one batch message wake several programs, which issue their next commands in the same
pass of their loop. Handed over one by one, the first command would find the engine idle and get a
batch message of its own, and each would cost control a wake-up and a decision. Knows nothing of
what it gathers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Gathering(Generic[T]):
    """``add`` gathers per running loop until that loop's next pass, which calls ``hand_over``.

    The order within a loop is kept. Items from outside a loop are handed over at once.
    """

    def __init__(self, hand_over: Callable[[list[T]], None]) -> None:
        self._hand_over = hand_over
        self._gathered: dict[asyncio.AbstractEventLoop, list[T]] = {}

    def add(self, item: T) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._hand_over([item])
            return
        gathered = self._gathered.get(loop)
        if gathered is None:
            gathered = self._gathered[loop] = []
            loop.call_soon(self._pass, loop)
        gathered.append(item)

    def hurry(self) -> None:
        """Hand over now what the running loop has gathered so far."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._pass(loop)

    def _pass(self, loop: asyncio.AbstractEventLoop) -> None:
        gathered = self._gathered.pop(loop, None)
        if gathered is not None:
            self._hand_over(gathered)
