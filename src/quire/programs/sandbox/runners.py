"""Instances that wait for a launch, so that one does not wait for an instance."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from quire.core.errors import CapacityError
from quire.programs.sandbox.machine_memory import available_bytes
from quire.programs.sandbox.wasm import PythonGuest, PythonTemplate

_SPARE_MEMORY_BYTES = 256 << 20
_WARM_S = 5.0
_REFILL_PAUSE_S = 0.02
"""New ones are made one by one, behind what guests have to do."""
KEPT_FREE_BYTES = 512 << 20
"""With less memory left on the machine no further guest begins: those that run may still grow."""
_CHECK_EVERY = 16
"""Guests: to ask for the machine's memory costs a twentieth of a launch."""


class Runners:
    """At most ``num_warm`` instances that no program has seen. Belongs to ``loop``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        template: PythonTemplate,
        num_warm: int,
        available: Callable[[], int | None] = available_bytes,
    ) -> None:
        self._loop = loop
        self._template = template
        self._num_warm = num_warm
        self._available = available
        self._num_until_check = 0
        self._spare: deque[PythonGuest] = deque()
        self._refill: asyncio.TimerHandle | None = None
        self._schedule()

    def take(self, memory_bytes: int) -> PythonGuest:
        """A fresh instance with at most so much memory.

        Raises:
            CapacityError: the machine has hardly any left.
        """
        self._check_machine()
        self._schedule()
        if not self._spare:
            return self._template.instantiate(memory_bytes)
        runner = self._spare.popleft()
        runner.limit_memory(memory_bytes)
        return runner

    def _check_machine(self) -> None:
        self._num_until_check -= 1
        if self._num_until_check > 0:
            return
        left_bytes = self._available()
        if left_bytes is not None and left_bytes < KEPT_FREE_BYTES:
            self._num_until_check = 0  # the next one asks again
            raise CapacityError(
                f"the machine or its container has {left_bytes >> 20} MiB of memory left, and "
                f"sandboxed programs begin with at least {KEPT_FREE_BYTES >> 20}: launch again "
                "when others have ended"
            )
        self._num_until_check = _CHECK_EVERY

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


__all__ = ["Runners"]
