"""What control knows of one program: its queues, the commands in them, what it holds and has used.

Owns order within a queue (FIFO, poison, the place of each command) and the counts; three classes
that name one another. ``host_commands`` and ``scheduler`` know what a command does; ``flow``
decides when the next one may start, and ``holdings`` when what is held is freed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

from quire.control.memory.content import PromptKeys
from quire.control.memory.embeds import HeldEmbed
from quire.control.memory.packed_tokens import PackedPrompt, packed_prompt
from quire.control.memory.pages import Page
from quire.control.programs.accounts import Account
from quire.control.programs.failures import Failures
from quire.control.programs.id_ranges import IdRanges
from quire.control.programs.states import TRANSITIONS, CommandState
from quire.control.programs.threads import Threads
from quire.core.actions import ReplyValue
from quire.core.calls import SPARE_PRIORITY
from quire.core.commands import Command
from quire.core.errors import ErrorRecord
from quire.core.events import ProgramStarted
from quire.core.ids import (
    CommandId,
    EmbedId,
    EngineId,
    ModelId,
    PageId,
    ProgramForm,
    ProgramId,
    QueueId,
    ThreadId,
    TokenSlotId,
)
from quire.core.policy import GraphPlace, ReadyCommand, ServiceFigures

MAX_REFUSED_QUEUES = 256
"""The most refused queues that are remembered of one program, the latest: the commands on them are
answered with the reason."""

ProgramState = Literal["idle", "waiting", "running"]

Seniority = tuple[float, ...]

_QUEUED = CommandState.QUEUED
"""Bound once: Python 3.11 looks up a member of an enum at each use, which costs more than the
use."""


class Program:
    """Everything control knows of one program.

    ``serial`` orders programs by age. ``entries`` are its unfinished commands; ``ended`` and
    ``failed`` remember the others for ``after``. ``account`` is its tenant's. ``launcher`` and
    ``launched`` are its family (``programs.families``); ``num_family_tokens`` includes what all
    programs below it have generated. ``family_figures`` are one object for it, its ``parent`` and
    all below: to policies these are one program, with the id of its root (``family``) and the
    root's ``kind``. It begins with its parent's critical path. ``home_engines``: those that a
    balancer has chosen for its long prompts. ``num_calls``: unfinished commands that need an
    engine; ``last_call_s``: when the last one ended.
    """

    def __init__(
        self,
        started: ProgramStarted,
        serial: int,
        account: Account | None = None,
        parent: Program | None = None,
    ) -> None:
        self.account = account or Account(started.tenant)
        self.id, self.tenant, self.serial = started.program, started.tenant, serial
        self.form: ProgramForm = started.form
        self.name, self.client_id = started.name, started.client_id
        self.priority, self.deadline_s = started.priority, started.deadline_s
        self.idle_ttl_s, self.quotas = started.idle_ttl_s, started.quotas
        self.started_s = self.idle_since_s = started.time_s
        self.parent = started.parent
        self.launcher: Program | None = None
        self.launched: dict[ProgramId, Program] = {}
        self.queues: dict[QueueId, CommandQueue] = {}
        self.refused_queues: dict[QueueId, ErrorRecord] = {}
        self.entries: dict[CommandId, Entry] = {}
        self.ended, self.failed = IdRanges(), Failures()
        self.pages: dict[PageId, Page] = {}
        self.embeds: dict[EmbedId, HeldEmbed] = {}
        self.token_slots: dict[tuple[EngineId, TokenSlotId], int] = {}
        self.num_held_pages = self.num_held_embeds = 0
        self.num_running = self.num_calls = self.num_preemptions = 0
        self.num_generated_tokens = self.num_family_tokens = 0
        self.num_prefilled_tokens = self.num_cached_tokens = self.num_encoded_tokens = 0
        self.cost_s = 0.0
        self.family: ProgramId = started.program if parent is None else parent.family
        self.kind: str = started.kind if parent is None else parent.kind
        self.figures, self.family_figures = _figures(started, parent)
        self.threads = Threads(started.time_s)
        self.last_call_s: float | None = None
        self.last_arrival_s: float | None = None
        self.last_completion_s: float | None = None
        self.home_engines: dict[ModelId, EngineId] = {}

    @property
    def state(self) -> ProgramState:
        if not self.entries:
            return "idle"
        return "running" if self.num_running else "waiting"

    def refuse_queue(self, queue: QueueId, error: ErrorRecord) -> None:
        """Remember why ``queue`` was refused. Its creation has no reply, so the commands on it are
        answered."""
        self.refused_queues[queue] = error
        if len(self.refused_queues) > MAX_REFUSED_QUEUES:
            del self.refused_queues[next(iter(self.refused_queues))]


def _figures(
    started: ProgramStarted, parent: Program | None
) -> tuple[ServiceFigures, ServiceFigures]:
    """A program's own figures and its family's, which it shares with its ``parent``."""
    own = ServiceFigures(
        arrival_s=started.time_s,
        parent=started.parent,
        parent_thread=started.parent_thread,
        deadline_s=started.deadline_s,
    )
    if parent is None:
        return own, ServiceFigures(arrival_s=started.time_s)
    own.path_s, own.path_tokens = parent.figures.path_s, parent.figures.path_tokens
    return own, parent.family_figures


class CommandQueue:
    """One queue of one program for one model.

    ``placed_on``: the engine that serves it, None until its first command comes. ``place``: the
    step of the program's graph that newly issued commands serve. ``entries[:num_started]`` have
    begun; the rest wait, in order. ``poison`` is the failed command. ``orphans`` are pages and
    embeds whose dealloc failed behind it: they are freed at reset or close. ``prompt_keys``: keys
    of the prompt of its first decode, until that begins. ``packed``: the prompt that was packed
    last, until its command begins.
    """

    __slots__ = (
        "embeds",
        "entries",
        "id",
        "model",
        "num_started",
        "orphans",
        "packed",
        "pages",
        "place",
        "placed_on",
        "poison",
        "priority",
        "program",
        "prompt_keys",
        "serial",
        "thread",
        "token_slots",
    )

    def __init__(
        self,
        queue: QueueId,
        program: Program,
        model: ModelId,
        thread: ThreadId,
        place: GraphPlace,
        priority: int,
        serial: int,
    ) -> None:
        self.id = queue
        self.program = program
        self.model = model
        self.placed_on: EngineId | None = None
        self.thread = thread
        self.place = place
        self.priority = priority
        self.serial = serial
        self.entries: deque[Entry] = deque()
        self.num_started = 0
        self.poison: CommandId | None = None
        self.pages: dict[Page, None] = {}
        self.embeds: dict[HeldEmbed, None] = {}
        self.token_slots: set[TokenSlotId] = set()
        self.orphans: dict[Page | HeldEmbed, None] = {}
        self.prompt_keys: PromptKeys | None = None
        self.packed: PackedPrompt | None = None

    @property
    def engine(self) -> EngineId:
        """The engine that serves it, once its first command has come."""
        assert self.placed_on is not None, "the first command of a queue places it"
        return self.placed_on

    def pack(self, tokens: list[int]) -> PackedPrompt | None:
        """Pack a prompt, once for all that look at it; None if something in ``tokens`` is no
        token."""
        if self.packed is None or self.packed.tokens is not tokens:
            self.packed = packed_prompt(tokens)
        return self.packed

    def take_packed(self, tokens: list[int]) -> bytes:
        """Return the packed prompt of a command that begins, and forget it."""
        found = self.pack(tokens)
        assert found is not None, "tokens are checked when their command is issued"
        self.packed = None
        return found.packed

    @property
    def is_spare(self) -> bool:
        """Whether its commands run only while no other wants its engine."""
        return self.priority <= SPARE_PRIORITY

    @property
    def next_entry(self) -> Entry | None:
        """The first command that has not begun."""
        entries, index = self.entries, self.num_started
        return entries[index] if index < len(entries) else None

    @property
    def is_closed(self) -> bool:
        """Whether its program has closed it; commands in flight still end."""
        return self.program.queues.get(self.id) is not self

    @property
    def is_quiet(self) -> bool:
        """Whether each command that has begun has ended."""
        return self.num_started == 0

    def begin(self, entry: Entry, state: CommandState) -> None:
        """Begin the next command: it is ``STARTED``, or ``FINISHED`` at once."""
        assert self.next_entry is entry
        entry.move(state)
        self.num_started += 1

    def pop_front(self) -> Entry:
        entry = self.entries.popleft()
        self.num_started -= 1
        return entry

    def remove(self, entry: Entry) -> None:
        """Take out an entry that ends without having begun, or before its work is done."""
        if entry.state is not _QUEUED:
            self.num_started -= 1
        if self.entries[-1] is entry:  # of a queue that is closed, each is the last one in turn
            self.entries.pop()
        else:
            self.entries.remove(entry)


class Entry:
    """A command's place in its queue, from issue to end. ``id`` and ``program`` are its command's.

    ``pages`` and ``embeds``  what it names and therefore pins ·
    ``freed``  what it deallocates: the things to which its ids referred when it was issued ·
    ``place``  the step of its program's graph that it serves ·
    ``num_blockers``  commands named by ``after`` that have not ended ·
    ``dependents``  commands that wait for this one ·
    ``service_tokens``, ``service_s``  tokens that the engine has computed for it, and the time of
    the messages that carried it ·
    ``path_tokens``, ``path_s``  its program's critical path when it could be scheduled first ·
    ``num_in_flight``  messages in flight that carry it ·
    ``first_message``, ``last_message``  the numbers of those that have carried it, as far as they
    follow one another, -1 if none has; ``messages`` has the runs before, the first was sent at
    ``sent_s`` ·
    ``idle_since_s``  when its program's last call had ended, if it had none when this was issued ·
    ``num_losses``  engines that were lost while it was in flight there ·
    ``error``  set when it has to fail as soon as no message in flight carries it ·
    ``is_answered``  its end was reported already (its program is gone, or a lease is ready) ·
    ``on_end``  for commands of control itself: called at its end, instead of an answer ·
    ``reply``  what will be delivered once it is at the front ·
    ``rank``  its place in the order, once it could be scheduled, among those of its ``rank_class``;
    ``policy_key`` is the policy's present key for it, ``rank_number`` is unique, ``placed_in`` is
    the backlog that keeps its place, ``view`` what the policy sees, ``stage`` its stage under a
    policy with stages.
    """

    __slots__ = (
        "arrival_s",
        "command",
        "dependents",
        "embeds",
        "error",
        "first_message",
        "freed",
        "id",
        "idle_since_s",
        "is_answered",
        "is_cancelled",
        "last_message",
        "messages",
        "num_blockers",
        "num_generated_tokens",
        "num_in_flight",
        "num_losses",
        "num_preemptions",
        "num_prefilled_tokens",
        "num_tokens_next",
        "on_end",
        "pages",
        "path_s",
        "path_tokens",
        "place",
        "placed_in",
        "policy_key",
        "program",
        "queue",
        "rank",
        "rank_class",
        "rank_number",
        "ready_s",
        "reply",
        "run",
        "sent_s",
        "service_s",
        "service_tokens",
        "stage",
        "state",
        "view",
        "waiting_s",
    )

    def __init__(self, command: Command, queue: CommandQueue, now_s: float) -> None:
        self.id, self.command = command.id, command
        self.queue, self.program, self.place = queue, queue.program, queue.place
        self.state = _QUEUED
        self.arrival_s = self.ready_s = now_s
        self.pages: tuple[Page, ...] = ()
        self.embeds: tuple[HeldEmbed, ...] = ()
        self.freed: tuple[Page | HeldEmbed, ...] = ()
        self.num_blockers = 0
        self.dependents: tuple[Entry, ...] = ()
        self.service_tokens = self.path_tokens = 0
        self.service_s = self.waiting_s = self.path_s = 0.0
        self.num_prefilled_tokens = self.num_generated_tokens = self.num_preemptions = 0
        self.idle_since_s: float | None = None
        self.sent_s: float | None = None
        self.messages: list[tuple[int, int]] = []
        self.first_message = self.last_message = -1
        self.num_tokens_next = 1
        self.is_cancelled = self.is_answered = False
        self.on_end: Callable[[Entry], None] | None = None
        self.num_in_flight = self.num_losses = 0
        self.run: object | None = None
        self.reply: ReplyValue = None
        self.error: ErrorRecord | None = None
        self.rank: tuple[float, ...] | None = None
        self.policy_key: tuple[float, ...] = ()
        self.rank_class = self.rank_number = 0
        self.stage = 0.0
        self.placed_in: object | None = None
        self.view: ReadyCommand | None = None

    @property
    def seniority(self) -> Seniority:
        """The smaller, the more senior; it never changes. Programs are ordered by age, a program's
        commands by their issue."""
        return (self.program.serial, self.arrival_s, self.id)

    @property
    def is_wanted(self) -> bool:
        """Whether its reply is still waited for: it has not failed, been cancelled or answered."""
        return self.error is None and not self.is_cancelled and not self.is_answered

    def move(self, to: CommandState) -> None:
        """Change ``state``. The check finds an impossible history where it happens."""
        assert to in TRANSITIONS[self.state], f"a command cannot go from {self.state} to {to}"
        self.state = to
