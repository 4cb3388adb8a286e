"""Routes replies from the control thread to the programs' own loops.

Collects what one control round delivers and hands each loop its share in one call. Must not know
what a reply means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from quire.core.actions import Deliver, Fail, Terminate
from quire.core.errors import ErrorRecord
from quire.core.ids import ProgramId
from quire.core.interfaces import ReplySink
from quire.node.loops import call_on

Delivery = Deliver | Fail | Terminate

NODE_COMMANDS = 1 << 62
"""Commands from this number on are the node's own, on behalf of a program: encoder requests."""


@dataclass(frozen=True, slots=True)
class NodeSink:
    """Receives the replies to the node's own commands; its functions are called on ``loop``."""

    loop: asyncio.AbstractEventLoop
    on_answer: Callable[[Deliver | Fail], None]
    on_terminated: Callable[[ErrorRecord], None]


class ReplyRouter:
    """The sinks of all programs. ``add_program`` is called from any thread, the rest on the control
    thread alone."""

    def __init__(self) -> None:
        self._subscribers: dict[ProgramId, tuple[asyncio.AbstractEventLoop, ReplySink]] = {}
        self._pending: dict[asyncio.AbstractEventLoop, list[tuple[ReplySink, Delivery]]] = {}
        self._node: NodeSink | None = None
        self._for_node: list[Deliver | Fail] = []

    def __len__(self) -> int:
        """Number of programs that still expect replies."""
        return len(self._subscribers)

    def add_program(
        self, program: ProgramId, loop: asyncio.AbstractEventLoop, sink: ReplySink
    ) -> None:
        """Call it before the program's first event is posted; ids are never reused."""
        assert program not in self._subscribers
        self._subscribers[program] = loop, sink

    def answer_node(self, sink: NodeSink) -> None:
        """Send the answers to the node's own commands to ``sink``. Call it before the first such
        command."""
        self._node = sink

    def add(self, delivery: Delivery) -> None:
        """Add a delivery; it is dropped if the program has been forgotten, as its port is
        closed."""
        if not isinstance(delivery, Terminate) and delivery.command >= NODE_COMMANDS:
            self._for_node.append(delivery)
            return
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
        """Forget a program that has ended. Deliveries that were added before are still flushed."""
        self._subscribers.pop(program, None)

    def terminate_all(self, error: ErrorRecord) -> None:
        for program in list(self._subscribers):
            self.add(Terminate(program=program, error=error))
        if self._node is not None:
            call_on(self._node.loop, self._node.on_terminated, error)

    def flush(self) -> None:
        pending, self._pending = self._pending, {}
        for loop, deliveries in pending.items():
            call_on(loop, _deliver, deliveries)  # a closed loop runs no program
        if self._for_node:
            answers, self._for_node = self._for_node, []
            if self._node is not None:  # otherwise a program has made up the numbers
                call_on(self._node.loop, _answer_node, self._node, answers)


def _answer_node(sink: NodeSink, answers: list[Deliver | Fail]) -> None:
    for answer in answers:
        sink.on_answer(answer)


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
