"""The record of a running program, sent in parts to a reader that keeps a copy.

A part has what was added to the record since the last one. Replies and errors of commands are sent
once, as what the program has received (``heard``). Owns the form of a part and how much of a record
has been sent. Must not know who keeps the parts, nor how they are put together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import msgspec

from quire.core.commands import ExportPages, ImportPages
from quire.node.programs.records import ProgramLaunch
from quire.node.programs.restarting.handing_over import (
    EndedChild,
    HandedProgram,
    Origin,
    handed,
    why_it_stays,
)
from quire.node.programs.restarting.recorded_answers import (
    HandedAnswer,
    handed_answers,
    why_they_stay,
)
from quire.node.programs.restarting.restarts import Restarts
from quire.programs.runtime.arrivals import RecordedInput
from quire.programs.runtime.replay_log import (
    IssuedCommand,
    RecordedQuestion,
    RecordedReply,
    ReplayLog,
)
from quire.programs.services.children import ChildHandle, ChildState


class ToldChild(msgspec.Struct, frozen=True):
    """A child as its parent has it now: see ``HandedChild``. ``ended``: what is left of it, once it
    has ended or was asked to end."""

    name: str
    num_read: int
    unread: list[str]
    ended: EndedChild | None = None


class RecordPart(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One part of a record. ``begin``: the program with an empty record, in the first part.
    ``calls`` and ``requests``: by their place; one that was sent without its answer comes again
    with it. ``children``: those that have changed; ``forgotten``: the ids of those that the program
    can ask for no more."""

    begin: HandedProgram | None
    issued: list[IssuedCommand]
    heard: list[RecordedReply]
    readings: list[float]
    received: list[str]
    is_input_closed: bool
    frames: dict[str, int]
    calls: dict[int, HandedAnswer]
    requests: dict[int, HandedAnswer]
    num_restarts: int
    children: dict[str, ToldChild] = {}
    forgotten: list[str] = []
    num_launched: int = 0
    inputs: list[RecordedInput] = []


class KeptChild(ChildHandle, Protocol):
    """A child of a restartable program on this node, as its parent's record needs it. ``told``: the
    record of one that runs; ``is_over``: it has ended, or was asked to end."""

    @property
    def is_over(self) -> bool: ...

    @property
    def num_read(self) -> int: ...

    @property
    def told(self) -> ToldRecord | None: ...

    def left(self) -> EndedChild:
        """Return what its parent may still ask for."""
        ...


class _Questions:
    """The questions of one kind that have been sent: their number, and in ``open`` the places of
    those whose answer had not reached the program then, with whether there was an answer."""

    def __init__(self) -> None:
        self.num_told = 0
        self.open: dict[int, bool] = {}

    def news(self, asked: Sequence[RecordedQuestion]) -> dict[int, RecordedQuestion]:
        places = [
            place
            for place, was_answered in sorted(self.open.items())
            if asked[place].rank is not None or asked[place].answered != was_answered
        ]
        places += range(self.num_told, len(asked))
        found = {place: asked[place] for place in places}
        self.num_told = max(self.num_told, *(place + 1 for place in places), 0)
        for place, one in found.items():
            if one.rank is None:
                self.open[place] = one.answered
            else:
                self.open.pop(place, None)
        return found


class _ChildNews:
    """What has been sent of a program's children."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, list[str], bool, bool]] = {}

    def changed(self, state: ChildState) -> dict[str, ToldChild]:
        found = {}
        for child in _children(state):
            unread = list(state.unread.get(child.id, ()))
            now = (child.num_read, unread, child.is_over, child.ended)
            before = self._told.get(child.id)
            if now == before:
                continue
            has_left = child.is_over and (before is None or before[2:] != now[2:])
            self._told[child.id] = now
            ended = child.left() if has_left else None
            found[child.id] = ToldChild(child.name, child.num_read, unread, ended)
        return found

    def forgotten(self, state: ChildState) -> list[str]:
        if len(self._told) == len(state.children):
            return []
        gone = [id for id in self._told if id not in state.children]
        for id in gone:
            del self._told[id]
        return gone


@dataclass(frozen=True, slots=True)
class _Sent:
    """How much of a record has been sent."""

    is_begun: bool = False
    num_issued: int = 0
    num_heard: int = 0
    num_readings: int = 0
    num_received: int = 0
    num_inputs: int = 0
    is_input_closed: bool = False
    num_restarts: int = 0
    num_launched: int = 0

    def with_part(self, part: RecordPart) -> _Sent:
        """Return how much has been sent once ``part`` has been, too."""
        return _Sent(
            is_begun=True,
            num_issued=self.num_issued + len(part.issued),
            num_heard=self.num_heard + len(part.heard),
            num_readings=self.num_readings + len(part.readings),
            num_received=self.num_received + len(part.received),
            num_inputs=self.num_inputs + len(part.inputs),
            is_input_closed=part.is_input_closed,
            num_restarts=part.num_restarts,
            num_launched=part.num_launched,
        )


@dataclass(frozen=True, slots=True)
class _New:
    """What was added to a program's log; questions by their place."""

    heard: list[RecordedReply]
    calls: dict[int, RecordedQuestion]
    requests: dict[int, RecordedQuestion]
    inputs: list[RecordedInput]


def _moment_of(log: ReplayLog) -> tuple[int, object, int]:
    """Return what changes with everything that the program hears or asks."""
    arrivals = log.arrivals
    return len(log.heard), arrivals, arrivals.num_ranked


def _children(state: ChildState) -> list[KeptChild]:
    return [cast(KeptChild, child) for child in state.children.values()]


class ToldRecord:
    """The record of the program ``id``. Belongs to the edge's loop; the program's own loop adds to
    the record meanwhile."""

    def __init__(
        self,
        id: str,
        name: str,
        launch: ProgramLaunch,
        origin: Origin,
        restarts: Restarts | None,
        *,
        is_alone: bool = True,
    ) -> None:
        """``is_alone``: the record of its parent is not sent with it."""
        self.id = id
        self.name = name
        self._launch = launch
        self._origin = origin
        self._restarts = restarts
        self.stays = why_it_stays(origin, launch, restarts, is_alone=is_alone)
        """Why no other node could continue the program; None: one can."""
        self.anew()

    def anew(self) -> None:
        """Begin with the first part again: no reader has any part."""
        self._sent = _Sent()
        self._calls, self._requests, self._children = _Questions(), _Questions(), _ChildNews()
        self._frames: dict[str, int] = {}

    @property
    def is_first(self) -> bool:
        """Whether the next part is the first one."""
        return not self._sent.is_begun

    def children(self) -> Iterator[ToldRecord]:
        """Yield the records of the children that run."""
        if self._restarts is not None:
            for child in _children(self._restarts.child_state):
                if (told := child.told) is not None:
                    yield told

    def part(self) -> RecordPart | None:
        """The next part; None: nothing was added, or ``stays`` has the reason why no part is
        sent."""
        if self.stays is None and self._restarts is not None:
            part = self._next(self._restarts)
            if self.stays is None:
                return part
        return None

    def _next(self, restarts: Restarts) -> RecordPart | None:
        log, children, sent = restarts.log, restarts.child_state, self._sent
        new = self._new_of(log)
        part = RecordPart(
            begin=self._begin() if self.is_first else None,
            issued=[IssuedCommand(one.queue, one.asked, one.sent) for one in self._issued(log)],
            heard=new.heard,
            readings=log.readings[sent.num_readings :],
            received=restarts.received[sent.num_received :],
            is_input_closed=restarts.is_input_closed,
            frames=self._new_frames(restarts.frames),
            calls=self._told(new.calls),
            requests=self._told(new.requests, of_hosts=True),
            num_restarts=log.num_restarts,
            children=self._children.changed(children),
            forgotten=self._children.forgotten(children),
            num_launched=children.num_launched,
            inputs=new.inputs,
        )
        if restarts.is_full:
            self.stays = "it was told more than is recorded"
        self._sent = sent.with_part(part)
        is_changed = part.calls or part.requests or part.frames or part.children or part.forgotten
        return part if is_changed or self._sent != sent else None

    def _new_of(self, log: ReplayLog) -> _New:
        """Return what is new in ``log``, all as of one moment. The program goes on meanwhile: what
        it has heard must not lack its command, and what it has asked follows from what it has heard
        and from the answers before."""
        calls, requests = dict[int, RecordedQuestion](), dict[int, RecordedQuestion]()
        while True:
            moment = _moment_of(log)
            heard = log.heard[self._sent.num_heard :]
            calls |= self._calls.news(log.calls)
            requests |= self._requests.news(log.requests)
            inputs = [one for one in log.inputs[self._sent.num_inputs :] if one.rank is not None]
            if _moment_of(log) == moment:
                return _New(heard, calls, requests, inputs)

    def _new_frames(self, frames: dict[str, int]) -> dict[str, int]:
        before, self._frames = self._frames, dict(frames)
        return {name: num for name, num in frames.items() if before.get(name) != num}

    def _begin(self) -> HandedProgram:
        empty = Restarts(ReplayLog())
        return handed(self.id, self.name, self._origin, self._launch, empty)

    def _issued(self, log: ReplayLog) -> list[IssuedCommand]:
        issued = log.in_order[self._sent.num_issued :]
        if any(isinstance(one.asked, ExportPages | ImportPages) for one in issued):
            self.stays = "it has exported or imported pages by name, and names are a node's own"
        return issued

    def _told(
        self, asked: dict[int, RecordedQuestion], *, of_hosts: bool = False
    ) -> dict[int, HandedAnswer]:
        found = list(asked.values())
        why = why_they_stay([], found) if of_hosts else why_they_stay(found, [])
        if why is not None:
            self.stays = why
            return {}
        return dict(zip(asked, handed_answers(found), strict=True))
