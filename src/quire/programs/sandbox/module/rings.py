"""A compiled guest's rings as its host uses them: reads commands, writes events.

Every address and count from the guest is checked against its current memory. Must not know what a
command means.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from quire.core.errors import InvalidArgument
from quire.programs.sandbox.module import abi
from quire.programs.sandbox.module.abi import RingCommand, Status
from quire.programs.sandbox.module.events import RingEvent
from quire.programs.sandbox.module.memory import GuestMemory
from quire.programs.sandbox.module.wasm_module import ModuleGuest

_ALIGNMENT = 8
_COMMAND_OF = partial(tuple.__new__, RingCommand)
"""``RingCommand._make`` without its check of the length, because a ring entry always has as many
fields."""


class ModuleRings:
    """The rings of ``guest``, which its ``quire_abi_1`` describes at ``address``.

    Raises:
        InvalidArgument: they are too large, or not within its memory.
    """

    __slots__ = ("_guest", "_io")

    def __init__(self, guest: ModuleGuest, address: int) -> None:
        self._guest = guest
        memory = GuestMemory(guest.memory())
        memory.check(address, abi.IO.size)
        self._io = io = abi.IoArea(*abi.IO.unpack_from(memory.view, address))
        if not 1 <= io.max_commands <= abi.MAX_RING or not 1 <= io.max_events <= abi.MAX_RING:
            raise InvalidArgument(
                f"rings of {io.max_commands} commands and {io.max_events} events: each has 1 to "
                f"{abi.MAX_RING} entries"
            )
        memory.check(io.commands, io.max_commands * abi.COMMAND.size)
        memory.check(io.events, io.max_events * abi.EVENT.size)
        memory.check(io.inbox, io.inbox_bytes)

    def put_arguments(self, args: Sequence[str]) -> tuple[int, int]:
        """Write the arguments; return their address and length in bytes."""
        arguments = b"".join(arg.encode("utf-8", "replace") + b"\0" for arg in args)
        io = self._io
        if len(arguments) > io.inbox_bytes:
            raise InvalidArgument(
                f"{len(arguments)} bytes of arguments do not fit into the program's inbox of "
                f"{io.inbox_bytes}"
            )
        if arguments:
            self._guest.memory()[io.inbox : io.inbox + len(arguments)] = arguments
        return io.inbox, len(arguments)

    def commands(self, num_commands: int) -> list[RingCommand]:
        """The commands that the guest has written."""
        io = self._io
        if num_commands > io.max_commands:
            raise InvalidArgument(
                f"the program announced {num_commands} commands; its ring has {io.max_commands} "
                "entries"
            )
        end = io.commands + num_commands * abi.COMMAND.size
        ring = self._guest.memory()[io.commands : end]  # in bounds, because memory never shrinks
        return list(map(_COMMAND_OF, abi.COMMAND.iter_unpack(ring)))

    def put_events(
        self, events: deque[RingEvent], undelivered: Callable[[RingEvent], object]
    ) -> int:
        """Write events from the front of ``events`` while there is room; return their number. An
        event that can never fit is passed to ``undelivered``, and the guest gets its size."""
        io, memory = self._io, self._guest.memory()
        used, number = 0, 0
        while events and number < io.max_events:
            event = events[0]
            size = len(event.payload)
            if size > io.inbox_bytes:
                undelivered(event)
                event = RingEvent(event.op, event.command, status=Status.TOO_LARGE, c=size)
                size = 0
            elif used + size > io.inbox_bytes:
                break
            events.popleft()
            start = io.inbox + used
            if size:
                memory[start : start + size] = event.payload
            abi.EVENT.pack_into(
                memory, io.events + number * abi.EVENT.size,
                event.op, abi.FLAG_LAST if event.last else 0, event.command, event.status,
                event.a, event.b, event.c, start, size,
            )  # fmt: skip
            used += -(-size // _ALIGNMENT) * _ALIGNMENT
            number += 1
        return number
