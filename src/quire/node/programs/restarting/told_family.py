"""The records of a program and of its descendants, sent in parts as one record; and the parts put
together again at another node.

Each part is taken in one turn of the edge's loop, where messages pass between a program and its
children: so in every part, what one of them has received the other one has sent. Owns the form of a
part, and which records belong together. Must not know what is in a record, nor who keeps the parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from quire.core.errors import InvalidArgument, ProtocolMismatch
from quire.core.record_parts import ToldPart
from quire.core.wire import Codec
from quire.node.programs.restarting.handing_over import HandedChild, HandedProgram
from quire.node.programs.restarting.recorded_answers import HandedAnswer
from quire.node.programs.restarting.told_record import RecordPart, ToldChild, ToldRecord
from quire.programs.runtime.replay_log import ReplayLog

_MIN_DROPPED_BYTES = 1 << 20
"""The least number of bytes of ended descendants for which the record is sent anew without them."""


class _FamilyPart(msgspec.Struct, frozen=True):
    """One part. ``members``: what was added to each record, by the id of its program."""

    root: str
    members: dict[str, list[bytes]]


_CODEC: Codec[RecordPart] = Codec(RecordPart)


class ToldFamily:
    """The records of the program of ``root`` and of its descendants. ``root`` has no parent with
    which its record is sent. Belongs to the edge's loop."""

    def __init__(self, root: ToldRecord) -> None:
        self.id = root.id
        self._root = root
        self.stays = root.stays
        """Why no other node could continue these programs; None: one can."""
        self._num_bytes: dict[str, int] = {}
        """The number of bytes that were sent of each record, by its program's id."""
        self._num_dropped_bytes = 0
        self.is_first = True

    def anew(self) -> None:
        """Begin with the first part again: no reader has any part."""
        self.is_first = True
        self._num_bytes.clear()
        self._num_dropped_bytes = 0
        for record in self._records():
            record.anew()

    def part(self) -> ToldPart | None:
        """Return the next part, or one with the reason why no more are sent; None: nothing was
        added."""
        records = self._records()
        before, self.stays = self.stays, self._why(records)
        if self.stays is None and (before is not None or self._is_mostly_dropped(records)):
            self.anew()
        members = {} if self.stays is not None else self._members(records)
        ids = [record.id for record in records]
        if self.stays is not None:
            return ToldPart(self.id, b"", is_first=True, stays=self.stays, members=ids)
        if not members:
            return None
        for id, frames in members.items():
            self._num_bytes[id] = self._num_bytes.get(id, 0) + sum(map(len, frames))
        is_first, self.is_first = self.is_first, False
        part = msgspec.msgpack.encode(_FamilyPart(self.id, members))
        return ToldPart(self.id, part, is_first, members=ids)

    def _records(self) -> list[ToldRecord]:
        """The records of the programs that run, each before those of its children."""
        found = [self._root]
        for record in found:  # grows meanwhile
            found += record.children()
        return found

    def _members(self, records: Sequence[ToldRecord]) -> dict[str, list[bytes]]:
        """Return what was added to each record; set ``stays`` if one of the programs has to
        stay."""
        members = {}
        for record in records:
            part = record.part()
            if part is not None:
                try:
                    members[record.id] = list(map(bytes, _CODEC.encode(part)))
                except (TypeError, ValueError, OverflowError):
                    record.stays = "what it was told cannot be told to another node"
        self.stays = self._why(records)
        return members

    def _why(self, records: Sequence[ToldRecord]) -> str | None:
        for record in records:
            if record.stays is not None:
                if record is self._root:
                    return record.stays
                return f"its child {record.name!r} ({record.id}) has to stay: {record.stays}"
        return None

    def _is_mostly_dropped(self, records: Sequence[ToldRecord]) -> bool:
        going = {record.id for record in records}
        for id in [id for id in self._num_bytes if id not in going]:
            self._num_dropped_bytes += self._num_bytes.pop(id)
        return self._num_dropped_bytes > max(_MIN_DROPPED_BYTES, sum(self._num_bytes.values()))


class _Member:
    """One record, as far as it has been put together."""

    def __init__(self, begin: HandedProgram) -> None:
        self.begin = begin
        self.log = ReplayLog()
        self.received: list[str] = []
        self.is_input_closed = False
        self.frames: dict[str, int] = {}
        self.calls: dict[int, HandedAnswer] = {}
        self.requests: dict[int, HandedAnswer] = {}
        self.children: dict[str, ToldChild] = {}
        self.left: dict[str, ToldChild] = {}
        """The children that have ended, each as it was sent at its end."""
        self.num_launched = 0

    def take(self, part: RecordPart) -> None:
        log = self.log
        for issued in part.issued:
            log.begun(issued)
        for one in part.heard:
            log.note(one.turn, one.command, one.reply, one.error, one.last, one.num_acts)
        log.readings += part.readings
        log.inputs += part.inputs
        self.received += part.received
        self.is_input_closed, log.num_restarts = part.is_input_closed, part.num_restarts
        self.calls |= part.calls
        self.requests |= part.requests
        self.frames |= part.frames
        self.children |= part.children
        self.left |= {id: child for id, child in part.children.items() if child.ended is not None}
        for id in part.forgotten:
            self.children.pop(id, None)
            self.left.pop(id, None)
        self.num_launched = part.num_launched

    def program(self, members: dict[str, _Member]) -> HandedProgram:
        log = self.log
        return msgspec.structs.replace(
            self.begin,
            issued=log.issued,
            heard=log.heard,
            readings=log.readings,
            inputs=log.inputs,
            slots=log.slots,
            num_restarts=log.num_restarts + 1,
            received=self.received,
            is_input_closed=self.is_input_closed,
            frames=self.frames,
            calls=_in_order(self.calls),
            requests=_in_order(self.requests),
            num_launched=self.num_launched,
            children=[self._child(id, child, members) for id, child in self.children.items()],
        )

    def _child(self, id: str, child: ToldChild, members: dict[str, _Member]) -> HandedChild:
        left = self.left.get(id)
        if left is None:
            if id not in members:
                raise _not_whole()
            program = members[id].program(members)
            return HandedChild(id, child.name, child.num_read, child.unread, program, None)
        assert left.ended is not None
        unread = left.ended.messages[child.num_read - left.num_read :]
        ended = msgspec.structs.replace(left.ended, messages=unread)
        return HandedChild(id, child.name, 0, child.unread, None, ended)


def program_of(parts: Sequence[bytes]) -> HandedProgram:
    """Return the program whose record was sent in ``parts``, with its descendants. The loss of
    their node counts as a restart.

    Raises:
        InvalidArgument: they are no record of this release, or not from its beginning.
    """
    members, root = dict[str, _Member](), ""
    for packed in parts:
        family = _unpacked(packed, _FamilyPart)
        if root not in ("", family.root):
            raise _not_whole()
        root = family.root
        for id, frames in family.members.items():
            try:
                part = _CODEC.decode(frames)
            except ProtocolMismatch as exc:
                raise _unreadable(exc) from exc
            if (part.begin is None) is (id not in members):
                raise _not_whole()
            if part.begin is not None:
                members[id] = _Member(part.begin)
            members[id].take(part)
    if not parts:
        raise InvalidArgument("there are no parts of a program's record")
    if root not in members:
        raise _not_whole()
    return members[root].program(members)


def _unpacked(part: bytes, kind: type[_FamilyPart]) -> _FamilyPart:
    try:
        return msgspec.msgpack.decode(part, type=kind)
    except msgspec.DecodeError as exc:
        raise _unreadable(exc) from exc


def _unreadable(exc: Exception) -> InvalidArgument:
    return InvalidArgument(f"this is no part of a program's record of this release: {exc}")


def _not_whole() -> InvalidArgument:
    return InvalidArgument("these parts of a program's record are not those from its first")


def _in_order(answers: dict[int, Any]) -> list[Any]:
    return [answers[place] for place in sorted(answers)]
