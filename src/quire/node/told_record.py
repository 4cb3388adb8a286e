"""The record of a running program, sent in parts to a reader that keeps a copy; and the parts put
together again on another node.

A part has what was added to the record since the last one. Replies and errors of commands are sent
once, as what the program has received (``heard``). Owns the form of a part and how much of a record
has been sent. Must not know who keeps the parts.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quire.core.commands import ExportPages, ImportPages
from quire.core.errors import InvalidArgument, ProtocolMismatch
from quire.core.wire import Codec
from quire.node.handing_over import HandedProgram, Origin, handed, why_it_stays
from quire.node.program_records import ProgramLaunch
from quire.node.recorded_answers import HandedAnswer, handed_answers, why_they_stay
from quire.node.restarts import Restarts
from quire.programs.runtime.replay_log import (
    IssuedCommand,
    RecordedQuestion,
    RecordedReply,
    ReplayLog,
)

_HAS_CHILDREN = "it has launched programs of its own"


class RecordPart(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One part of a record. ``begin``: the program with an empty record, in the first part.
    ``calls`` and ``requests``: by their place; one that was sent without its answer comes again
    with it."""

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


_CODEC: Codec[RecordPart] = Codec(RecordPart)


class _Questions:
    """The questions of one kind that have been sent: their number, and in ``open`` the places of
    those that had no answer then."""

    def __init__(self) -> None:
        self.num_told = 0
        self.open: set[int] = set()

    def news(self, asked: Sequence[RecordedQuestion]) -> dict[int, RecordedQuestion]:
        places = [*(place for place in sorted(self.open) if asked[place].answered)]
        places += range(self.num_told, len(asked))
        found = {place: asked[place] for place in places}
        self.num_told = max(self.num_told, *(place + 1 for place in places), 0)
        self.open.difference_update(places)
        self.open.update(place for place, one in found.items() if not one.answered)
        return found


class ToldRecord:
    """The record of the program ``id``. Belongs to the edge's loop; the program's own loop adds to
    the record meanwhile."""

    def __init__(
        self, id: str, name: str, launch: ProgramLaunch, origin: Origin, restarts: Restarts | None
    ) -> None:
        self.id = id
        self._name = name
        self._launch = launch
        self._origin = origin
        self._restarts = restarts
        self.stays = why_it_stays(origin, launch, restarts, is_alone=True)
        """Why no other node could continue the program; None: one can."""
        self.anew()

    def anew(self) -> None:
        """Begin with the first part again: no reader has any part."""
        self.is_first = True
        """Whether the next part is the first one."""
        self._num_issued = self._num_heard = self._num_readings = self._num_received = 0
        self._calls, self._requests = _Questions(), _Questions()
        self._is_input_closed = False
        self._frames: dict[str, int] = {}
        self._num_restarts = 0

    def part(self) -> bytes | None:
        """The next part; None: nothing was added, or ``stays`` has the reason why no part is
        sent."""
        if self.stays is None and self._restarts is not None:
            part = self._next(self._restarts)
            if self.stays is None:
                return None if part is None else _packed(part)
        return None

    def _next(self, restarts: Restarts) -> RecordPart | None:
        log = restarts.log
        # taken first, because the program goes on: each reply needs its command in ``issued``
        heard = log.heard[self._num_heard :]
        calls, requests = self._calls.news(log.calls), self._requests.news(log.requests)
        part = RecordPart(
            begin=self._begin() if self.is_first else None,
            issued=[IssuedCommand(one.queue, one.asked, one.sent) for one in self._issued(log)],
            heard=heard,
            readings=log.readings[self._num_readings :],
            received=restarts.received[self._num_received :],
            is_input_closed=restarts.is_input_closed,
            frames=self._new_frames(restarts.frames),
            calls=self._told(calls),
            requests=self._told(requests, of_hosts=True),
            num_restarts=log.num_restarts,
        )
        if restarts.is_full:
            self.stays = "it was told more than is recorded"
        if restarts.child_state.num_launched:
            self.stays = _HAS_CHILDREN
        is_empty = (
            not (self.is_first or part.issued or part.heard or part.readings or part.received)
            and not (part.calls or part.requests or part.frames)
            and part.is_input_closed == self._is_input_closed
            and part.num_restarts == self._num_restarts
        )
        self._note(part)
        return None if is_empty else part

    def _note(self, part: RecordPart) -> None:
        self.is_first = False
        self._num_issued += len(part.issued)
        self._num_heard += len(part.heard)
        self._num_readings += len(part.readings)
        self._num_received += len(part.received)
        self._is_input_closed, self._num_restarts = part.is_input_closed, part.num_restarts

    def _new_frames(self, frames: dict[str, int]) -> dict[str, int]:
        before, self._frames = self._frames, dict(frames)
        return {name: num for name, num in frames.items() if before.get(name) != num}

    def _begin(self) -> HandedProgram:
        empty = Restarts(ReplayLog())
        return handed(self.id, self._name, self._origin, self._launch, empty)

    def _issued(self, log: ReplayLog) -> list[IssuedCommand]:
        issued = log.in_order[self._num_issued :]
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


def _packed(part: RecordPart) -> bytes:
    return msgspec.msgpack.encode(list(map(bytes, _CODEC.encode(part))))


def _unpacked(part: bytes) -> RecordPart:
    try:
        return _CODEC.decode(msgspec.msgpack.decode(part, type=list[bytes]))
    except (msgspec.DecodeError, ProtocolMismatch) as exc:
        raise InvalidArgument(
            f"this is no part of a program's record of this release: {exc}"
        ) from exc


def program_of(parts: Sequence[bytes]) -> HandedProgram:
    """The program whose record was sent in ``parts``. Its node was lost, which counts as a
    restart.

    Raises:
        InvalidArgument: they are no record of this release, or not from its beginning.
    """
    log, received, begin = ReplayLog(), list[str](), None
    calls, requests = dict[int, HandedAnswer](), dict[int, HandedAnswer]()
    is_input_closed, frames = False, dict[str, int]()
    for packed in parts:
        part = _unpacked(packed)
        if (part.begin is None) is (begin is None):
            raise InvalidArgument("these parts of a program's record are not those from its first")
        begin = begin or part.begin
        for issued in part.issued:
            log.begun(issued)
        for one in part.heard:
            log.note(one.turn, one.command, one.reply, one.error, one.last)
        log.readings += part.readings
        received += part.received
        is_input_closed, log.num_restarts = part.is_input_closed, part.num_restarts
        calls |= part.calls
        requests |= part.requests
        frames |= part.frames
    if begin is None:
        raise InvalidArgument("there are no parts of a program's record")
    return msgspec.structs.replace(
        begin,
        issued=log.issued,
        heard=log.heard,
        readings=log.readings,
        slots=log.slots,
        num_restarts=log.num_restarts + 1,
        received=received,
        is_input_closed=is_input_closed,
        frames=frames,
        calls=_in_order(calls),
        requests=_in_order(requests),
    )


def _in_order(answers: dict[int, HandedAnswer]) -> list[HandedAnswer]:
    return [answers[place] for place in sorted(answers)]
