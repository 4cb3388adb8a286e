"""Routes replies from the control thread to the programs' own loops.

Collects what one control round delivers and hands each loop its share in one call. Must not know
what a reply means.
"""

from __future__ import annotations

import asyncio

from quire.core.actions import Deliver, Fail, Terminate
from quire.core.errors import ErrorRecord
from quire.core.ids import ProgramId
from quire.core.interfaces import ReplySink
from quire.node.loops import call_on

Delivery = Deliver | Fail | Terminate


class ReplyRouter:
    """``add_program`` is called from any thread, the rest on the control thread alone."""

    def __init__(self) -> None:
        self._subscribers: dict[ProgramId, tuple[asyncio.AbstractEventLoop, ReplySink]] = {}
        self._pending: dict[asyncio.AbstractEventLoop, list[tuple[ReplySink, Delivery]]] = {}

    def __len__(self) -> int:
        """Number of programs that still expect replies."""
        return len(self._subscribers)

    def add_program(
        self, program: ProgramId, loop: asyncio.AbstractEventLoop, sink: ReplySink
    ) -> None:
        """Call it before the program's first event is posted; ids are never reused."""
        assert program not in self._subscribers
        self._subscribers[program] = loop, sink

    def add(self, delivery: Delivery) -> None:
        """Dropped for a program that has been forgotten: its port is closed."""
        subscriber = self._subscribers.get(delivery.program)
        if subscriber is None:
            return
        loop, sink = subscriber
        pending = self._pending.get(loop)
        if pending is None:
            pending = self._pending[loop] = []
        pending.append((sink, delivery))
        if type(delivery) is Terminate:
            self.forget(delivery.program)

    def forget(self, program: ProgramId) -> None:
        """The program has ended. Deliveries that were added before are still flushed."""
        self._subscribers.pop(program, None)

    def terminate_all(self, error: ErrorRecord) -> None:
        for program in list(self._subscribers):
            self.add(Terminate(program=program, error=error))

    def flush(self) -> None:
        pending, self._pending = self._pending, {}
        for loop, deliveries in pending.items():
            call_on(loop, _deliver, deliveries)  # a closed loop runs no program


def _deliver(deliveries: list[tuple[ReplySink, Delivery]]) -> None:
    for sink, delivery in deliveries:
        try:
            if isinstance(delivery, Deliver):
                for command in delivery.done_before:
                    sink.on_reply(command, None, True)
                sink.on_reply(delivery.command, delivery.reply, delivery.last)
            else:
                _deliver_end(sink, delivery)
        except Exception as exc:  # a fault of one program must not lose another's reply
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"a reply sink failed on {delivery!r}", "exception": exc}
            )


def _deliver_end(sink: ReplySink, delivery: Fail | Terminate) -> None:
    if isinstance(delivery, Fail):
        sink.on_failure(delivery.command, delivery.error)
    else:
        sink.on_terminated(delivery.error)
