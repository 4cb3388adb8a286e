"""Instances that are created in advance, so that a launch need not wait for one."""

from __future__ import annotations

import asyncio
from collections import deque

from quire.programs.sandbox.host.machine_memory import MachineRoom
from quire.programs.sandbox.wasm.engine import PythonGuest, PythonTemplate

_SPARE_MEMORY_BYTES = 256 << 20
_WARM_S = 5.0
_REFILL_PAUSE_S = 0.02
"""New instances are created one by one, between the guests' turns."""


class Runners:
    """At most ``num_warm`` instances that no program has used. Belongs to ``loop``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        template: PythonTemplate,
        num_warm: int,
        room: MachineRoom,
    ) -> None:
        self._loop = loop
        self._template = template
        self._num_warm = num_warm
        self._room = room
        self._spare: deque[PythonGuest] = deque()
        self._refill: asyncio.TimerHandle | None = None
        self._schedule()

    def take(self, memory_bytes: int) -> PythonGuest:
        """A fresh instance with a memory limit of ``memory_bytes``.

        Raises:
            CapacityError: the machine has hardly any memory left.
        """
        self._room.check()
        self._schedule()
        if not self._spare:
            return self._template.instantiate(memory_bytes)
        runner = self._spare.popleft()
        runner.limit_memory(memory_bytes)
        return runner

    def close(self) -> None:
        if self._refill is not None:
            self._refill.cancel()
        while self._spare:
            self._spare.popleft().close()

    def _schedule(self) -> None:
        if self._refill is None and len(self._spare) < self._num_warm:
            self._refill = self._loop.call_later(_REFILL_PAUSE_S, self._make)

    def _make(self) -> None:
        self._refill = None
        if len(self._spare) < self._num_warm:
            guest = self._template.instantiate(_SPARE_MEMORY_BYTES)
            guest.warm(_WARM_S)
            guest.cpu_ns = 0
            self._spare.append(guest)
            self._schedule()
