"""The ``ProgramPort`` of a ``LocalNode``: passes events to the node and answers to the program's
loop."""

from __future__ import annotations

import asyncio
from typing import Protocol

from quire.core.actions import Deliver, Fail, Terminate
from quire.core.events import EventAt
from quire.core.ids import ProgramId
from quire.core.interfaces import ProgramClock, ReplySink, ServedModel, Services
from quire.core.quotas import Quotas
from quire.programs.runtime import EventPort


class PortOwner(Protocol):
    """The part of a node that a port needs. All methods may be called from any thread."""

    @property
    def clock(self) -> ProgramClock: ...

    def submit(self, event: EventAt) -> None: ...

    def models(self) -> list[ServedModel]: ...

    def forget(self, program: ProgramId) -> None: ...


class LocalPort(EventPort):
    """One program's ``ProgramPort``. Each reply reaches ``sink`` in a separate turn of ``loop``."""

    def __init__(
        self,
        node: PortOwner,
        program: ProgramId,
        quotas: Quotas,
        sink: ReplySink,
        loop: asyncio.AbstractEventLoop,
        services: Services | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            program, quotas, node.models, self._submit, services, seed, clock=node.clock
        )
        self._node = node
        self._sink = sink
        self._loop = loop
        self._open = True

    def close(self, reason: str = "finished") -> None:
        super().close(reason)
        self._end()

    def deliver(self, action: Deliver | Fail | Terminate) -> None:
        """Pass an answer of the node to the program."""
        match action:
            case Deliver(command=command, reply=reply, last=last):
                for earlier in action.done_before:
                    self._loop.call_soon_threadsafe(self._sink.on_reply, earlier, None, True)
                self._loop.call_soon_threadsafe(self._sink.on_reply, command, reply, last)
            case Fail(command=command, error=error):
                self._loop.call_soon_threadsafe(self._sink.on_failure, command, error)
            case Terminate(error=error):
                self._end()
                self._loop.call_soon_threadsafe(self._sink.on_terminated, error)

    def _submit(self, event: EventAt) -> None:
        # a terminated program is notified once; later replies are dropped
        if self._open:
            self._node.submit(event)

    def _end(self) -> None:
        self._open = False
        self._node.forget(self.program)
