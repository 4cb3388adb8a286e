"""The move of one program to another node: it stops here, is away, and has left or comes back.

Owns the state of the move, and the time within which the mover must report whether another node has
taken the program. Belongs to the edge's loop. Must not know the program's clients, nor how it is
started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire.core.errors import EngineLost, InvalidArgument, ProgramTerminated, QuireError
from quire.node.programs.records import ProgramLaunch
from quire.node.programs.restarting.handing_over import HandedProgram, Origin, handed, movable
from quire.node.programs.restarting.restarts import Restarts


class ProgramMove:
    """The move of the program ``id``. ``on_unheard`` is called with an error if the program was
    handed over and its mover does not report within ``limit_s`` whether it was taken: it may run on
    another node, so it must not run here."""

    def __init__(self, id: str, limit_s: float, on_unheard: Callable[[QuireError], None]) -> None:
        self._id = id
        self._limit_s = limit_s
        self._on_unheard = on_unheard
        self._departure: _Departure | None = None
        self._is_here = asyncio.Event()
        self._is_here.set()
        self.has_left = False

    @property
    def has_begun(self) -> bool:
        """Whether a move has begun: the program receives nothing more here."""
        return self._departure is not None

    @property
    def is_away(self) -> bool:
        """Whether the program has stopped here and was handed to its mover."""
        return self._departure is not None and self._departure.has_stopped

    def check_here(self) -> None:
        """Raise ``EngineLost`` while the program moves."""
        if self.has_begun:
            raise EngineLost(f"program {self._id} moves to another node now: send it again")

    async def wait_here(self) -> None:
        """Wait until the program can receive something, or has ended; for ever if it has left."""
        while not self._is_here.is_set():  # the next move may begin before this task goes on
            await self._is_here.wait()

    def check(
        self,
        launch: ProgramLaunch,
        origin: Origin | None,
        restarts: Restarts | None,
        *,
        is_over: bool,
        is_alone: bool,
    ) -> None:
        """Raise ``InvalidArgument``, with the reason, if the program cannot move. ``is_alone``: its
        parent does not move with it."""
        is_here = not (is_over or self.has_begun)
        movable(self._id, launch, origin, restarts, is_here=is_here, is_alone=is_alone)

    async def begin(
        self, name: str, launch: ProgramLaunch, origin: Origin, restarts: Restarts
    ) -> HandedProgram:
        """Stop the program, which can move (``check``); its owner then calls ``stopped``.

        Raises:
            InvalidArgument: it has ended.
        """
        departure = self._departure = _Departure()
        self._is_here.clear()
        restarts.log.stop()
        await departure.stopped(self._id)
        loop = asyncio.get_running_loop()
        loop.call_later(self._limit_s, self._end_unheard, departure)
        return handed(self._id, name, origin, launch, restarts)

    def stopped(self) -> None:
        if self._departure is not None:
            self._departure.end(has_stopped=True)

    def ended(self) -> None:
        """Note that the program has ended by itself."""
        if self._departure is not None:
            self._departure.end(has_stopped=False)
        self._is_here.set()

    def come_back(self) -> None:
        """Note that no other node has taken the program."""
        self._departure = None
        self._is_here.set()

    def leave(self) -> EngineLost:
        """Note that another node has taken the program; return the error for its clients here."""
        self.has_left = True
        return EngineLost(f"program {self._id} has moved to another node: ask the router for it")

    def _end_unheard(self, departure: _Departure) -> None:
        if self._departure is departure and not self.has_left:
            self._departure = None
            self._is_here.set()
            self._on_unheard(
                ProgramTerminated(
                    f"program {self._id} was handed over, and for {self._limit_s:g} s nobody "
                    "has said whether another node took it: ask the router for it"
                )
            )


class _Departure:
    """One attempt to move the program."""

    def __init__(self) -> None:
        self._end: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def stopped(self, id: str) -> None:
        """Wait until the program has stopped. Raises ``InvalidArgument`` if it ends instead."""
        if not await self._end:
            raise InvalidArgument(f"program {id} cannot move to another node: it has ended")

    @property
    def has_stopped(self) -> bool:
        return self._end.done() and self._end.result()

    def end(self, *, has_stopped: bool) -> None:
        """Note that the program has stopped, or has ended by itself."""
        if not self._end.done():
            self._end.set_result(has_stopped)
