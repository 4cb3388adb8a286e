"""The strategy in force, and how it is exchanged while requests run.

Owns the moment of the exchange: a request keeps the strategy that it began with; a strategy that
cannot be loaded changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from quire.cluster.routing.apart import TrialApart
from quire.cluster.routing.strategy import Strategy, StrategySource, load, read_source
from quire.core.errors import InvalidArgument

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
"""Time between two looks at a strategy's file: no portable way reports a change."""


Try = Callable[[StrategySource], Awaitable[None]]
"""Raises ``InvalidArgument`` if a strategy cannot be used."""


@dataclass(slots=True, eq=False)
class StrategyTerm:
    """The time in which one strategy is in force, with the requests that began in it."""

    strategy: Strategy
    since_unix_s: float
    num_running: int = 0
    num_failed: int = 0


class RunningStrategy:
    """The strategy in force, at first ``strategy``. Later ones must pass ``try_apart`` before they
    are loaded here. Belongs to one loop."""

    def __init__(
        self,
        strategy: Strategy,
        unix_s: Callable[[], float] = time.time,
        try_apart: Try | None = None,
    ) -> None:
        self._unix_s = unix_s
        self._try_apart = try_apart or TrialApart()
        self.current = StrategyTerm(strategy, unix_s())
        self._before: Strategy | None = None
        """The strategy that was in force before; it comes back when the present one is
        withdrawn."""
        self.withdrawal: str | None = None
        """Which strategy was withdrawn last, and why; None if none was."""
        self._leaving: list[StrategyTerm] = []
        self._changing = asyncio.Lock()
        self.refusal: str | None = None
        """Why the last change of the strategy's file was refused."""
        self._tried_text: str | None = None  # a broken text is tried once

    @property
    def leaving(self) -> tuple[StrategyTerm, ...]:
        """The terms of strategies that are no longer in force and still have requests."""
        return tuple(self._leaving)

    @contextmanager
    def request(self) -> Iterator[StrategyTerm]:
        """Count one request under the strategy that is in force now."""
        shift = self.current
        shift.num_running += 1
        try:
            yield shift
        finally:
            shift.num_running -= 1
            if not shift.num_running and shift in self._leaving:
                self._leaving.remove(shift)

    async def change(self, source: StrategySource) -> None:
        """Put ``source`` in force.

        Raises:
            InvalidArgument: it is refused; the present one stays.
        """
        async with self._changing:
            await self._change(source)

    async def _change(self, source: StrategySource) -> None:
        await self._try_apart(source)
        strategy = await load(source)
        self._before = self.current.strategy
        self._put_in_force(strategy)
        self.refusal = self.withdrawal = None

    def _put_in_force(self, strategy: Strategy) -> None:
        if self.current.num_running:
            self._leaving.append(self.current)
        logger.info("strategy %s follows %s", strategy.label, self.current.strategy.label)
        self.current = StrategyTerm(strategy, self._unix_s())

    def withdraw(self, shift: StrategyTerm, why: str) -> bool:
        """Put the strategy before that of ``shift`` in force again, because of ``why``. Return
        whether another strategy is in force now than that of ``shift``."""
        if shift is self.current and self._before is not None:
            before, self._before = self._before, None
            self.withdrawal = f"{shift.strategy.label} is withdrawn: {why}"
            logger.error("strategy %s", self.withdrawal)
            self._put_in_force(before)
        return shift is not self.current

    async def follow_file(self) -> None:
        """Take over each change of the file that the strategy comes from, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Take over a change of the strategy's file, if the strategy comes from one."""
        async with self._changing:  # a strategy put in force meanwhile may have no file
            source = self.current.strategy.source
            if source.path is None:
                return
            try:
                found = read_source(f"{source.path}:{source.name}", source.options)
                if found.text in (source.text, self._tried_text):
                    return
                self._tried_text = found.text
                await self._change(found)
            except OSError as exc:  # it is not the text's fault: it is tried again
                self._tried_text = None
                logger.warning("the change of %s cannot be tried now: %s", source.path, exc)
            except InvalidArgument as exc:
                if exc.message != self.refusal:
                    self.refusal = exc.message
                    logger.error("the change of %s is not taken over: %s", source.path, exc.message)
