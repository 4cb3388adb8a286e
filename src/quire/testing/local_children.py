"""Children of programs on a ``LocalNode``: programs in this process, on the same loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from quire.core.errors import InvalidArgument, UnknownHandle
from quire.programs.inferlet import Inferlet
from quire.programs.library import LIBRARY
from quire.programs.runtime.running import RunningProgram
from quire.programs.services.children import ChildWanted


def child_program(wanted: ChildWanted) -> Inferlet:
    """The ``Inferlet`` that ``wanted`` holds, or the library's program of that name.

    Raises:
        InvalidArgument: source code, which only a node with a sandbox runs.
        UnknownHandle: no such program.
    """
    if wanted.source is not None:
        raise InvalidArgument("launch: a LocalNode has no sandbox for source; give an @inferlet")
    if isinstance(wanted.program, Inferlet):
        return wanted.program
    if wanted.program in LIBRARY:
        return LIBRARY[wanted.program]
    raise UnknownHandle(f"launch: no program {wanted.program!r}; a LocalNode has the library's")


class LocalChild:
    """``Child`` of a program that runs on this loop."""

    def __init__(self, running: RunningProgram) -> None:
        self._running = running
        self._log: list[dict[str, Any]] = []
        running.listen_log(self._note)

    @property
    def id(self) -> str:
        return f"prog-{self._running.id}"

    @property
    def name(self) -> str:
        return self._running.name

    @property
    def ended(self) -> bool:
        return self._running.state.ended

    @property
    def num_bytes(self) -> int:
        """Always 0: memory is not bounded here, as the programs of a test end with it."""
        return 0

    async def result(self) -> Any:
        return await self._running.result()

    def cancel(self, reason: str) -> None:
        self._running.cancel(reason)

    def send(self, message: str) -> Awaitable[None]:
        return self._running.send(message)

    async def receive(self) -> str:
        return await self._running.receive()

    def logs(self) -> list[dict[str, Any]]:
        return self._log

    def when_ended(self, callback: Callable[[], None]) -> None:
        self._running.add_done_callback(lambda _: callback())

    def _note(self, level: str, text: str, fields: Any) -> None:
        self._log.append({"time": 0.0, "level": level, "text": text, "fields": dict(fields)})
