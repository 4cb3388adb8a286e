"""Ranks: the order of commands within a tenant, by priority and then by the policy.

Owns the view of a command that a policy gets, what the policy is notified of, and each command's
rank, which stays as it is until a notification concerns the command. ``order`` and ``seats`` know
where ranked commands are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from math import floor, isfinite

from quire.control.event_time import EventTime
from quire.control.programs.program import Entry
from quire.control.programs.states import ENDS
from quire.control.scheduler.order.buckets import Rank, in_rounds
from quire.core.ids import ProgramId
from quire.core.policy import Policy, ReadyCommand, StagedPolicy


def priority_of(entry: Entry) -> int:
    """The priority of ``entry``; entries with a higher one run first."""
    return entry.program.priority + entry.queue.priority


def rank_of(entry: Entry) -> Rank:
    """The rank of an entry that has arrived."""
    assert entry.rank is not None
    return entry.rank


def class_of(entry: Entry) -> int:
    """The class of ``entry``; the smaller goes first, whatever the tenants' shares are."""
    return entry.rank_class


def level_of(entry: Entry) -> tuple[float, float]:
    """Priority and the policy's level: only a strictly smaller one displaces a running command."""
    rank = rank_of(entry)
    return rank[0], rank[1]


def memory_level_of(entry: Entry) -> tuple[float, float]:
    """Priority and the whole part of the policy's level: only a strictly smaller one takes memory
    from a family that is let in."""
    priority, level = level_of(entry)
    return priority, floor(level) if isfinite(level) else level


class Ranking:
    """Ranks commands under ``policy``; smaller runs first.

    ``across_tenants``: a priority counts before the tenants' shares, not only within a tenant.
    ``changed``: entries whose rank may have changed.
    """

    def __init__(self, policy: Policy, time: EventTime, *, across_tenants: bool = False) -> None:
        self.policy = policy
        self._time = time
        self.changed: dict[Entry, None] = {}
        self._keeps_state = policy.keeps_state
        self._stages = policy if isinstance(policy, StagedPolicy) else None
        self._across_tenants = across_tenants
        self._num_arrived = 0
        self._entries: dict[ReadyCommand, Entry] = {}
        self._num_of: dict[ProgramId, int] = {}
        self._over: set[ProgramId] = set()

    @property
    def is_staged(self) -> bool:
        """Whether commands go by stages (``buckets``)."""
        return self._stages is not None

    def arrive(self, entry: Entry) -> None:
        """Rank ``entry``, which can be scheduled for the first time."""
        self._num_arrived += 1
        entry.rank_number = self._num_arrived
        entry.path_s = entry.program.figures.path_s
        entry.path_tokens = entry.program.figures.path_tokens
        entry.view = _view(entry)
        if self._stages is not None:
            entry.stage = self._stages.stage(entry.view)
        if self._keeps_state:
            program = entry.program.id
            self._entries[entry.view] = entry
            self._num_of[program] = self._num_of.get(program, 0) + 1
            self.policy.on_arrival(entry.view, self._time.now_s)
        entry.policy_key = self.policy.key(entry.view)
        self.set_rank(entry, self.rank_now(entry))

    def set_rank(self, entry: Entry, rank: Rank) -> None:
        """Set the rank of ``entry``. The caller puts it at its new place."""
        entry.rank = rank
        counts = self._across_tenants or entry.queue.is_spare
        entry.rank_class = int(rank[0]) if counts else 0

    def rank_now(self, entry: Entry) -> Rank:
        """The rank that ``entry`` would get now."""
        return (-priority_of(entry), *entry.policy_key, entry.rank_number)

    def note_priority(self, entry: Entry) -> None:
        if entry.view is not None:
            entry.view.priority = priority_of(entry)
            entry.policy_key = self.policy.key(entry.view)
            self.changed[entry] = None

    def served(self, entry: Entry, num_tokens: int, service_s: float) -> None:
        """Note that the engine has computed for ``entry``, and report it to the policy. An entry
        that has ended may have been in a message behind its last one. Its key may change, but
        rarely does. Spare time is not reported: no other program would have had it."""
        view = entry.view
        if not self._keeps_state or view is None or entry.state in ENDS:
            return
        view.ready_s = self._time.now_s
        view.service_tokens = entry.service_tokens
        view.service_s = entry.service_s
        if entry.queue.is_spare:
            return
        self.policy.on_served(view, num_tokens, service_s, self._time.now_s)
        self._ask_again(entry, view)

    def _ask_again(self, entry: Entry, view: ReadyCommand) -> None:
        """Read the policy's key for ``entry`` again after a notification that concerns it."""
        key = self.policy.key(view)
        if key != entry.policy_key:
            entry.policy_key = key
            self.changed[entry] = None

    def ended(self, entry: Entry) -> None:
        self.changed.pop(entry, None)
        if self._keeps_state and entry.view is not None:
            program = entry.program.id
            del self._entries[entry.view]
            self.policy.on_ended(entry.view, self._time.now_s)
            self._num_of[program] -= 1
            if not self._num_of[program]:
                del self._num_of[program]
                if program in self._over:
                    self._over.remove(program)
                    self.policy.on_program_ended(program, self._time.now_s)

    def program_ended(self, program: ProgramId) -> None:
        """Report the end of ``program`` to the policy after the end of its last command, which may
        be in flight."""
        if not self._keeps_state:
            return
        if program in self._num_of:
            self._over.add(program)
        else:
            self.policy.on_program_ended(program, self._time.now_s)

    def note_capacity(self, num_sequences: int) -> None:
        """Report to the policy how many sequences the engines that are up run at once."""
        self.policy.on_capacity(num_sequences)

    def tell_time(self) -> None:
        """Report the time to the policy, once for each event."""
        if self._keeps_state:
            self._note(self.policy.on_time(self._time.now_s))

    def _note(self, commands: Iterable[ReadyCommand]) -> None:
        for command in commands:
            entry = self._entries.get(command)
            if entry is not None:
                self._ask_again(entry, command)

    def order_of(self, entries: Collection[Entry]) -> Callable[[Entry], Rank]:
        """The sort key of these few entries, all of which have arrived, for one message."""
        if self._stages is None or len(entries) < 2:
            return rank_of
        standing = [(rank_of(entry), entry.stage, entry.program.id) for entry in entries]
        order = in_rounds(standing)
        return lambda entry: order[rank_of(entry)]

    def outranks(self, entry: Entry, other: Entry) -> bool:
        """Whether ``other`` gives up memory for ``entry``. Within a tenant the rank decides,
        between two the policy alone, as a priority has no effect there unless it counts across
        tenants."""
        if entry.program.tenant == other.program.tenant:
            return rank_of(entry) < rank_of(other)
        return self.standing(entry) < self.standing(other)

    def standing(self, entry: Entry) -> Rank:
        """The place of ``entry`` among commands of all tenants."""
        return (class_of(entry), *rank_of(entry)[1:])


def _view(entry: Entry) -> ReadyCommand:
    program, queue = entry.program, entry.queue
    return ReadyCommand(
        program=program.id,
        tenant=program.tenant,
        thread=queue.thread,
        queue=queue.id,
        command=entry.id,
        priority=priority_of(entry),
        depth=entry.place.depth,
        invocation=entry.place.invocation,
        remaining_us=entry.place.remaining_us,
        arrival_s=entry.arrival_s,
        ready_s=entry.ready_s,
        service_tokens=entry.service_tokens,
        num_tokens_next=entry.num_tokens_next,
        path_tokens=entry.path_tokens,
        path_s=entry.path_s,
        family=program.family,
        kind=program.kind,
        family_figures=program.family_figures,
        program_figures=program.figures,
        thread_figures=program.threads.figures(queue.thread),
    )
