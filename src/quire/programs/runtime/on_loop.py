"""The runtime of the node's own programs: on the loop that starts it, without a thread.

For programs that are known never to block, so that they may share a loop with whoever reads what
they yield: no item of theirs then has to cross from thread to thread. Users' programs belong on a
``NativeRuntime``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from quire.core.errors import Draining
from quire.programs.inferlet import Inferlet
from quire.programs.runtime.host import ProgramHost
from quire.programs.runtime.running import Connect, RunningProgram


class LoopRuntime:
    """``Runtime`` on one running loop, to which every method belongs.

    ``grace_s``: how long a cancelled program may clean up. Its programs have no network.
    """

    def __init__(self, grace_s: float = 5.0) -> None:
        self._grace_s = grace_s
        self._host: ProgramHost | None = None

    def start(self) -> None:
        """Programs run on the loop that runs the caller."""
        self._host = ProgramHost(asyncio.get_running_loop(), grace_s=self._grace_s)

    def launch(self, inferlet: Inferlet, args: Sequence[str], connect: Connect) -> RunningProgram:
        """Start a program and return its handle at once; see ``ProgramHost.launch``."""
        if self._host is None:
            raise Draining("this runtime is not running: start() it first")
        return self._host.launch(inferlet, args, connect)

    def programs(self) -> list[RunningProgram]:
        return [] if self._host is None else self._host.programs()

    async def close(self) -> None:
        """Cancel every program and wait for their ends. Idempotent."""
        if self._host is not None:
            await self._host.shutdown()


__all__ = ["LoopRuntime"]
