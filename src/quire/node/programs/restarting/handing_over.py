"""The record of a restartable program that moves to another node, and the reasons why one cannot.

The record of a program is everything that it received. The other node restarts the program, replays
the record, and lets it continue. The second run sends the messages to clients again, under the same
numbers. Owns the format of the record. Must not know how it is sent, nor what runs a program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.core.commands import ExportPages, ImportPages
from quire.core.errors import ErrorRecord, InvalidArgument, ProtocolMismatch
from quire.core.ids import CommandId, ThreadId, TokenSlotId
from quire.core.quotas import Quotas
from quire.core.wire import Codec
from quire.node.programs.records import ProgramLaunch
from quire.node.programs.restarting.recorded_answers import (
    HandedAnswer,
    handed_answers,
    taken_answers,
    why_they_stay,
)
from quire.node.programs.restarting.restarts import Restarts
from quire.programs.inferlet import Inferlet
from quire.programs.library import LIBRARY
from quire.programs.runtime.arrivals import RecordedInput
from quire.programs.runtime.replay_log import IssuedCommand, RecordedReply, ReplayLog
from quire.programs.sandbox.program import GuestProgram


class HandedProgram(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A program and its record. ``code``: the code of a guest, or of a program that a client has
    sent to run outside the sandbox (``is_native``); empty for a program of the library, which has
    the same ``name`` at every node. ``received``: its clients' messages, ``inputs``: when
    each of them has reached the program; ``frames``: how many messages of each connection have been
    taken. ``calls`` and ``requests``: the answers of services and of other hosts.
    ``num_launched``: how many children it has launched; ``children``: those whose results or
    messages it may still read."""

    id: str
    name: str
    code: bytes
    args: tuple[str, ...]
    named: Mapping[str, str]
    client_id: str | None
    priority: int
    seed: int
    issued: dict[CommandId, IssuedCommand]
    heard: list[RecordedReply]
    readings: list[float]
    slots: dict[TokenSlotId, int]
    num_restarts: int
    received: list[str]
    is_input_closed: bool
    calls: list[HandedAnswer]
    requests: list[HandedAnswer]
    quotas: Quotas | None
    parent_thread: ThreadId | None
    children: list[HandedChild] = []
    num_launched: int = 0
    frames: dict[str, int] = {}
    inputs: list[RecordedInput] = []
    is_native: bool = False

    def launch(self, launch: ProgramLaunch) -> ProgramLaunch:
        """``launch`` with the arguments, ids, priority and seed of this program."""
        return msgspec.structs.replace(
            launch,
            args=self.args,
            named=self.named,
            client_id=self.client_id,
            priority=self.priority,
            seed=self.seed,
            parent_thread=self.parent_thread,
        )

    def restarts(self) -> Restarts:
        """The record as the receiving node replays it."""
        log = ReplayLog()
        log.issued, log.heard = self.issued, self.heard
        log.in_order = list(self.issued.values())
        log.readings, log.slots = self.readings, self.slots
        log.calls, log.requests = taken_answers(self.calls), taken_answers(self.requests)
        log.inputs = self.inputs
        log.num_restarts = self.num_restarts
        restarts = Restarts(log)
        frames = dict(self.frames)
        restarts.take_over(self.received, frames, is_input_closed=self.is_input_closed)
        restarts.child_state.num_launched = self.num_launched
        return restarts

    def family(self) -> Iterator[HandedProgram]:
        """This program and all descendants that still run."""
        yield self
        for child in self.children:
            if child.program is not None:
                yield from child.program.family()


class EndedChild(msgspec.Struct, frozen=True):
    """The remaining data of a child that has ended, which its parent may still read. ``messages``:
    those that the parent has not read."""

    result: Any
    error: ErrorRecord | None
    messages: list[str]
    logs: list[dict[str, Any]]


class HandedChild(msgspec.Struct, frozen=True):
    """A child that runs (``program``) or has ``ended``. ``num_read``: how many of its messages the
    parent has received, including those that the parent has put back (``unread``)."""

    id: str
    name: str
    num_read: int
    unread: list[str]
    program: HandedProgram | None
    ended: EndedChild | None


_CODEC: Codec[HandedProgram] = Codec(HandedProgram)


def packed(handed: HandedProgram) -> bytes:
    return msgspec.msgpack.encode(list(map(bytes, _CODEC.encode(handed))))


def unpacked(body: bytes) -> HandedProgram:
    """Decode a program; raise ``InvalidArgument`` if no node has handed over ``body``."""
    try:
        return _CODEC.decode(msgspec.msgpack.decode(body, type=list[bytes]))
    except (msgspec.DecodeError, ProtocolMismatch) as exc:
        raise InvalidArgument(f"this is no program of another node of this release: {exc}") from exc


Programs = Mapping[str, Inferlet | GuestProgram]
"""The code of a family's programs, by id."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a launched program's code comes from. ``quotas``: those given at its launch, beside
    those of the program and of its tenant."""

    program: Inferlet | GuestProgram
    quotas: Quotas | None = None

    def code(self) -> bytes | None:
        """The code as in ``HandedProgram``; None: only this node has it."""
        program = self.program
        if isinstance(program, GuestProgram):
            return program.code
        if program.text is not None:
            return program.text.encode("utf-8", "surrogatepass")
        return b"" if LIBRARY.get(program.name) is program else None


def why_it_stays(
    origin: Origin, launch: ProgramLaunch, restarts: Restarts | None, *, is_alone: bool
) -> str | None:
    """Why the program cannot move to another node; None: it can. ``is_alone``: its parent does not
    move with it."""
    if restarts is None:
        return "it is not restartable: declare it with @inferlet(restartable=True)"
    if origin.code() is None:
        return (
            "its code is in this node's process alone: let the client send its source, with "
            "'quire run FILE --url URL', or push it"
        )
    if launch.parent is not None and is_alone:
        return f"another program has launched it ({launch.parent}), and that one stays"
    if restarts.is_full:
        return "it was told more than is recorded"
    log = restarts.log
    if (why := why_they_stay(log.calls, log.requests)) is not None:
        return why
    if any(isinstance(one.asked, ExportPages | ImportPages) for one in log.issued.values()):
        return "it has exported or imported pages by name, and names are a node's own"
    return None


def movable(
    id: str,
    launch: ProgramLaunch,
    origin: Origin | None,
    restarts: Restarts | None,
    *,
    is_here: bool,
    is_alone: bool = True,
) -> Restarts:
    """The record of the program ``id``. ``is_alone``: see ``why_it_stays``.

    Raises:
        InvalidArgument: the program cannot move; the message says why.
    """
    why = None if is_here else "it ends here"
    if why is None and origin is not None:
        why = why_it_stays(origin, launch, restarts, is_alone=is_alone)
    if why is not None or restarts is None:
        raise InvalidArgument(f"program {id} cannot move to another node: {why}")
    return restarts


def handed(
    id: str, name: str, origin: Origin, launch: ProgramLaunch, restarts: Restarts
) -> HandedProgram:
    """The program as another node receives it. The program must have stopped."""
    log, code = restarts.log, origin.code()
    assert code is not None, "why_it_stays comes first"
    return HandedProgram(
        id=id,
        name=name,
        code=code,
        args=launch.args,
        named=dict(launch.named),
        client_id=launch.client_id,
        priority=launch.priority,
        seed=launch.seed,
        issued=log.issued,
        heard=log.heard,
        readings=log.readings,
        slots=log.slots,
        num_restarts=log.num_restarts,
        received=restarts.received,
        is_input_closed=restarts.is_input_closed,
        calls=handed_answers(log.calls),
        requests=handed_answers(log.requests),
        quotas=origin.quotas,
        parent_thread=launch.parent_thread,
        num_launched=restarts.child_state.num_launched,
        frames=restarts.frames,
        inputs=log.inputs,
        is_native=bool(code) and isinstance(origin.program, Inferlet),
    )
