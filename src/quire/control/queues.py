"""Command queues: FIFO order, poison, and the place of each command in them.

Owns order only. What a command does is known to ``host_commands`` and ``scheduler``; when the next
one may start is decided in ``flow``.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from quire.control.states import TRANSITIONS, CommandState
from quire.core.actions import Reply
from quire.core.commands import Command
from quire.core.errors import ErrorRecord
from quire.core.ids import CommandId, EngineId, QueueId, ThreadId, TokenSlotId

if TYPE_CHECKING:
    from quire.control.process_table import Program
    from quire.control.resources.embeds import Embed
    from quire.control.resources.pages import Page


Seniority = tuple[float, ...]

_QUEUED = CommandState.QUEUED
"""Python 3.11 looks a member of an enum up anew each time, which costs more than what it is for."""


class Entry:
    """A command's place in its queue, from issue to end. ``id`` and ``program`` are its command's.

    ``pages`` and ``embeds``  what it names and therefore pins ·
    ``freed``  what it deallocates: the things that its ids meant when it was issued ·
    ``num_blockers``  commands named by ``after`` that have not ended ·
    ``dependents``  commands that wait for this one ·
    ``service_tokens``  tokens that the engine has computed for it ·
    ``num_in_flight``  messages in flight that carry it ·
    ``error``  set when it has to fail as soon as it is out of flight ·
    ``is_answered``  its end was reported already (its program is gone) ·
    ``reply``  what will be delivered once it is at the front.
    """

    __slots__ = (
        "arrival_s",
        "command",
        "dependents",
        "embeds",
        "error",
        "freed",
        "id",
        "is_answered",
        "is_cancelled",
        "num_blockers",
        "num_in_flight",
        "num_tokens_next",
        "pages",
        "program",
        "queue",
        "ready_s",
        "reply",
        "run",
        "service_tokens",
        "state",
    )

    def __init__(self, command: Command, queue: CommandQueue, now_s: float) -> None:
        self.id = command.id
        self.command = command
        self.queue = queue
        self.program = queue.program
        self.state = _QUEUED
        self.arrival_s = now_s
        self.ready_s = now_s
        self.pages: tuple[Page, ...] = ()
        self.embeds: tuple[Embed, ...] = ()
        self.freed: tuple[Page | Embed, ...] = ()
        self.num_blockers = 0
        self.dependents: tuple[Entry, ...] = ()
        self.service_tokens = 0
        self.num_tokens_next = 1
        self.is_cancelled = False
        self.is_answered = False
        self.num_in_flight = 0
        self.run: object | None = None
        self.reply: Reply = None
        self.error: ErrorRecord | None = None

    @property
    def seniority(self) -> Seniority:
        """The smaller, the more senior; it never changes. Programs by age, a program's commands as
        they were issued."""
        return (self.program.serial, self.arrival_s, self.id)

    def move(self, to: CommandState) -> None:
        """Every change of ``state``: an impossible history is found where it happens."""
        assert to in TRANSITIONS[self.state], f"a command cannot go from {self.state} to {to}"
        self.state = to


class CommandQueue:
    """One queue of one program on one engine.

    ``entries[:num_started]`` have begun; the rest wait, in order. ``poison`` is the failed command.
    ``orphans`` are pages and embeds whose dealloc failed behind it: freed at reset or close.
    """

    __slots__ = (
        "depth",
        "embeds",
        "engine",
        "entries",
        "id",
        "num_started",
        "orphans",
        "pages",
        "poison",
        "priority",
        "program",
        "serial",
        "thread",
        "token_slots",
    )

    def __init__(
        self,
        queue: QueueId,
        program: Program,
        engine: EngineId,
        thread: ThreadId,
        depth: int,
        priority: int,
        serial: int,
    ) -> None:
        self.id = queue
        self.program = program
        self.engine = engine
        self.thread = thread
        self.depth = depth
        self.priority = priority
        self.serial = serial
        self.entries: deque[Entry] = deque()
        self.num_started = 0
        self.poison: CommandId | None = None
        self.pages: dict[Page, None] = {}
        self.embeds: dict[Embed, None] = {}
        self.token_slots: set[TokenSlotId] = set()
        self.orphans: dict[Page | Embed, None] = {}

    @property
    def next_entry(self) -> Entry | None:
        """The first command that has not begun."""
        entries, index = self.entries, self.num_started
        return entries[index] if index < len(entries) else None

    @property
    def is_closed(self) -> bool:
        """Its program has closed it; what is in flight still ends."""
        return self.program.queues.get(self.id) is not self

    @property
    def is_quiet(self) -> bool:
        """Nothing has begun that has not ended."""
        return self.num_started == 0

    def begin(self, entry: Entry, state: CommandState) -> None:
        """The next command is ``STARTED``, or ``FINISHED`` at once."""
        assert self.next_entry is entry
        entry.move(state)
        self.num_started += 1

    def pop_front(self) -> Entry:
        entry = self.entries.popleft()
        self.num_started -= 1
        return entry

    def remove(self, entry: Entry) -> None:
        """Take out an entry that ends without having begun, or that begun and is torn down."""
        if entry.state is not _QUEUED:
            self.num_started -= 1
        self.entries.remove(entry)


__all__ = ["CommandQueue", "Entry", "Seniority"]
