"""Decides which decodes may have a sequence: the running set, chosen anew for each message.

A *seat* is the right to one of the engine's sequences. A decode is computed, from its prompt on,
only while it has one; without a seat it holds no sequence and pins nothing. Owns which decodes have
a seat, which ask for one, and which makes way for which (docs/decisions/048-who-runs.md). It closes
no sequence and does not know memory: the planner calls it before each message.

Between tenants the one with the fewest seats for its weight gets the next; a seat moves only if the
receiver then still has fewer than the giver had. Within a tenant only a strictly smaller level
(priority, then the policy's) displaces. Neither can be undone by the same rule, so nothing swings.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from quire.control.engines.decode_run import DecodeRun
from quire.control.programs.program import Entry, Program
from quire.control.scheduler.order.fair_order import LineKey, RankedEntries, new_line
from quire.control.scheduler.order.fairness import FairShare
from quire.control.scheduler.order.ranking import class_of, level_of
from quire.core.commands import Decode
from quire.core.ids import ProgramId

MIN_TOKENS = 16
HISTORY_PER_TOKEN = 64
"""A decode that was opened keeps its seat until it has sampled at least ``MIN_TOKENS``, and one
token for so many tokens of its history, which is sent and read again when it goes on."""

_Place = tuple[int, float, int, int]
"""Class, seats for the weight, when a seat was given last, the line's number."""


class SeatLine:
    """The decodes of one tenant (of one class): those with a seat, and those that ask for one."""

    __slots__ = (
        "asking",
        "asking_place",
        "giving_place",
        "key",
        "seated",
        "serial",
        "turn",
        "weight",
    )

    def __init__(self, key: LineKey, serial: int, weight: float, *, staged: bool) -> None:
        self.key = key
        self.serial = serial
        self.weight = weight
        self.turn = 0
        self.seated = RankedEntries(key, serial)
        self.asking = new_line(key, serial, staged=staged)
        self.giving_place: _Place | None = None
        self.asking_place: _Place | None = None

    @property
    def share(self) -> float:
        return len(self.seated.entries) / self.weight

    @property
    def next_share(self) -> float:
        return (len(self.seated.entries) + 1) / self.weight


class Seats:
    """The seats of one engine, ``capacity`` in all. ``staged``: whether asking decodes go by
    stages. ``num_asked``: how often a seat was asked for. ``most_tokens``: the most tokens that
    decodes with a seat may take, prompts and answers together."""

    def __init__(self, capacity: int, share: FairShare, *, staged: bool = False) -> None:
        self.capacity = capacity
        self._staged = staged
        self._touched: dict[SeatLine, None] = {}
        self._share = share
        self._lines: dict[LineKey, SeatLine] = {}
        self._by_serial: dict[int, SeatLine] = {}
        self._line_of: dict[Entry, SeatLine] = {}
        self._seated: dict[Entry, None] = {}
        self._num_of: dict[ProgramId, int] = {}
        self._asking: list[_Place] = []
        self._giving: list[_Place] = []
        self._num_lines = 0
        self._num_given = 0
        self.num_asked = 0
        self.most_tokens = 0

    # -- who is where ----------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return self.capacity - len(self._seated)

    @property
    def num_asking(self) -> int:
        return len(self._line_of) - len(self._seated)

    @property
    def seated(self) -> dict[Entry, None]:
        return self._seated

    @property
    def members(self) -> Iterable[Entry]:
        """All decodes that have a seat or ask for one."""
        return self._line_of

    def __contains__(self, entry: object) -> bool:
        """Whether ``entry`` has a seat or asks for one."""
        return entry in self._line_of

    def has_seat(self, entry: Entry) -> bool:
        return entry in self._seated

    def ask(self, entry: Entry) -> None:
        """Let ``entry`` ask for a seat."""
        line = self._line_for(entry)
        line.asking.add(entry)
        self.num_asked += 1
        self._line_of[entry] = line
        self._replace(line)

    def give(self, entry: Entry) -> None:
        """Give ``entry``, which asks, a seat."""
        line = self._line_of[entry]
        assert self.num_free > 0, "a seat is given twice"
        line.asking.take(entry)
        if self._staged:
            self._touched[line] = None
        line.seated.add(entry)
        self._count(entry, 1)
        self._num_given += 1
        line.turn = self._num_given
        self._replace(line)

    def begin(self) -> None:
        """Begin another message, for which seats are given."""
        for line in self._touched:
            line.asking.begin()
        self._touched.clear()

    def take_back(self, entry: Entry) -> None:
        """Take the seat of ``entry``, which makes way and asks again."""
        line = self._line_of[entry]
        line.seated.remove(entry)
        self._count(entry, -1)
        line.asking.add(entry)
        self._replace(line)

    def discard(self, entry: Entry) -> None:
        """Remove ``entry``, which needs no seat any more."""
        line = self._line_of.pop(entry, None)
        if line is None:
            return
        if entry in self._seated:
            self._count(entry, -1)
            line.seated.remove(entry)
        else:
            line.asking.remove(entry)
        self._replace(line)

    def _count(self, entry: Entry, change: int) -> None:
        """Count the seat that ``entry`` has got (``change`` 1) or given up (-1)."""
        if change > 0:
            self._seated[entry] = None
        else:
            del self._seated[entry]
        self.most_tokens += change * most_tokens(entry)
        program = entry.program.id
        self._num_of[program] = self._num_of.get(program, 0) + change
        if not self._num_of[program]:
            del self._num_of[program]

    def num_of(self, program: Program) -> int:
        """How many seats ``program`` has."""
        return self._num_of.get(program.id, 0)

    def first_of(self, program: Program) -> Entry | None:
        """The first issued decode of ``program`` that asks for a seat."""
        for entry in program.entries.values():
            if entry in self._line_of and entry not in self._seated:
                return entry
        return None

    def _line_for(self, entry: Entry) -> SeatLine:
        tenant = entry.program.tenant
        key = (class_of(entry), tenant)
        line = self._lines.get(key)
        if line is None:
            weight = self._share.weight(tenant)
            line = SeatLine(key, self._num_lines, weight, staged=self._staged)
            self._num_lines += 1
            self._lines[key] = self._by_serial[line.serial] = line
        return line

    def _replace(self, line: SeatLine) -> None:
        """Put ``line`` at its present place; drop it when nothing is left in it."""
        if line.asking_place is not None:
            del self._asking[bisect_left(self._asking, line.asking_place)]
            line.asking_place = None
        if line.giving_place is not None:
            del self._giving[bisect_left(self._giving, line.giving_place)]
            line.giving_place = None
        if len(line.asking):
            line.asking_place = (line.key[0], line.next_share, line.turn, line.serial)
            insort(self._asking, line.asking_place)
        if line.seated.entries:
            line.giving_place = (line.key[0], line.share, line.turn, line.serial)
            insort(self._giving, line.giving_place)
        elif not len(line.asking):
            del self._lines[line.key], self._by_serial[line.serial]

    # -- which is next, which makes way ----------------------------------------------------------

    def candidate(self) -> Entry | None:
        """The decode that gets the next free seat."""
        if not self._asking:
            return None
        return self._by_serial[self._asking[0][3]].asking.first()

    def exchange(self) -> tuple[Entry, Entry] | None:
        """The next pair (asking, seated) of which the first displaces the second as soon as no
        message in flight carries the latter; None if there is none. For times when no seat is free
        or memory has no room."""
        if not self._asking:
            return None
        line = self._by_serial[self._asking[0][3]]
        entry = line.asking.first()
        victim = self._victim_elsewhere(line)
        if victim is not None and entry is not None:
            return entry, victim
        for place in self._giving:
            line = self._by_serial[place[3]]
            asking = line.asking.first()
            victim = None if asking is None else self._victim_within(line, asking)
            if asking is not None and victim is not None:
                return asking, victim
        return None

    def _victim_elsewhere(self, line: SeatLine) -> Entry | None:
        """The decode that the tenant with the most seats for its weight gives up for the first of
        ``line``."""
        for place in reversed(self._giving):
            giver = self._by_serial[place[3]]
            is_lower = giver.key[0] > line.key[0]
            is_richer = giver.key[0] == line.key[0] and giver.share > line.next_share
            if giver is line or not (is_lower or is_richer):
                return None
            for entry in reversed(giver.seated.entries):
                if may_yield(entry):
                    return entry
        return None

    def _victim_within(self, line: SeatLine, asking: Entry) -> Entry | None:
        """The decode that ``asking``, the first of ``line`` that asks, displaces in it."""
        level = level_of(asking)
        for entry in reversed(line.seated.entries):
            if level_of(entry) <= level:
                return None
            if may_yield(entry):
                return entry
        return None

    def tenants(self) -> Iterator[LineKey]:
        """The keys of the lines that have seats."""
        for place in self._giving:
            yield self._by_serial[place[3]].key

    def check_invariants(self) -> None:
        assert self.num_free >= 0, "more decodes have a seat than there are sequences"
        assert self._asking == sorted(self._asking)
        assert self._giving == sorted(self._giving)
        for line in self._lines.values():
            assert self._by_serial[line.serial] is line
            assert (line.asking_place in self._asking) == bool(len(line.asking))
            assert (line.giving_place in self._giving) == bool(line.seated.entries)
            line.asking.check_invariants()
            line.seated.check_invariants()
            assert all(entry in self._seated for entry in line.seated.entries)
            assert not any(entry in self._seated for entry in line.asking.entries)
            for entry in (*line.seated.entries, *line.asking.entries):
                assert self._line_of[entry] is line
        num_asking = sum(len(line.asking) for line in self._lines.values())
        assert num_asking == self.num_asking
        assert sum(len(line.seated.entries) for line in self._lines.values()) == len(self._seated)
        assert sum(self._num_of.values()) == len(self._seated)
        assert self.most_tokens == sum(most_tokens(entry) for entry in self._seated)
        assert len(self._asking) <= len(self._lines)
        assert len(self._giving) <= len(self._lines)


def most_tokens(entry: Entry) -> int:
    """The number of tokens of a decode's prompt and of the longest answer that it may give."""
    command = entry.command
    return len(command.tokens) + command.stop.max_tokens if isinstance(command, Decode) else 0


def may_yield(entry: Entry) -> bool:
    """Whether ``entry`` has sampled enough since it was opened to pay for reopening it."""
    run = entry.run
    if not isinstance(run, DecodeRun) or not run.is_open:
        return True
    num_sampled = run.num_tokens - run.num_opened_with
    return num_sampled >= MIN_TOKENS + run.num_tokens // HISTORY_PER_TOKEN
