"""The latest calls and transfers of each program and the latest messages of each engine.

Control adds to the book on its thread, where it is read too. Owns what is kept: within limits the
latest records of each program and of the node. Those of an ended program are kept until ``forget``
is called, those of ended sessions while they are among the latest. Knows no public id and no form
of a trace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from quire.core.events import REFUSED, ProgramStarted
from quire.core.ids import EngineId, ProgramId
from quire.core.tracing import CallRecord, MessageRecord, TransferRecord
from quire.node.tracing.latest import LatestItems, LatestOfAll


@dataclass(frozen=True, slots=True)
class TraceLimits:
    """``max_calls``, ``max_transfers`` and ``max_children`` of each program, ``max_node_calls`` and
    ``max_node_transfers`` of all together, ``max_ended_sessions``, ``max_messages`` of each
    engine."""

    max_calls: int = 256
    max_node_calls: int = 65_536
    max_transfers: int = 256
    max_node_transfers: int = 16_384
    max_children: int = 256
    max_ended_sessions: int = 1024
    max_messages: int = 4096


@dataclass(frozen=True, slots=True)
class ProgramTrace:
    """One program at one moment. ``calls``: the latest of its ``num_calls`` ended calls, in the
    order of their ends; ``transfers``: the latest transfers. ``end_s`` and ``reason`` are None
    while it runs."""

    started: ProgramStarted
    end_s: float | None
    reason: str | None
    calls: tuple[CallRecord, ...]
    num_calls: int
    transfers: tuple[TransferRecord, ...] = ()


class _Kept:
    __slots__ = ("calls", "children", "end_s", "num_calls", "reason", "started", "transfers")

    def __init__(self, started: ProgramStarted) -> None:
        self.started = started
        self.calls: LatestItems[CallRecord] = LatestItems()
        self.transfers: LatestItems[TransferRecord] = LatestItems()
        self.children: list[ProgramId] = []
        self.num_calls = 0
        self.end_s: float | None = None
        self.reason: str | None = None


class TraceBook:
    """A ``TraceListener``. ``forget`` is for any thread: it is one operation on a dictionary for
    each program."""

    def __init__(self, limits: TraceLimits | None = None) -> None:
        self._limits = limits or TraceLimits()
        self._programs: dict[ProgramId, _Kept] = {}
        most = self._limits
        self._calls: LatestOfAll[CallRecord] = LatestOfAll(most.max_calls, most.max_node_calls)
        self._transfers: LatestOfAll[TransferRecord] = LatestOfAll(
            most.max_transfers, most.max_node_transfers
        )
        self._ended_sessions: deque[ProgramId] = deque()
        self._messages: dict[EngineId, deque[MessageRecord]] = {}

    # -- control tells it --------------------------------------------------------------------------

    def program_started(self, started: ProgramStarted) -> None:
        self._programs[started.program] = _Kept(started)
        parent = None if started.parent is None else self._programs.get(started.parent)
        if parent is not None:
            parent.children.append(started.program)
            if len(parent.children) > self._limits.max_children:
                del parent.children[0]

    def program_ended(self, program: ProgramId, end_s: float, reason: str) -> None:
        kept = self._programs.get(program)
        if kept is None:
            return
        kept.end_s, kept.reason = end_s, reason
        if reason == REFUSED:  # it has no record whose removal would forget it
            self.forget([program])
        elif kept.started.form == "session":
            self._ended_sessions.append(program)
            if len(self._ended_sessions) > self._limits.max_ended_sessions:
                self.forget([self._ended_sessions.popleft()])

    def call_ended(self, call: CallRecord) -> None:
        kept = self._programs.get(call.program)
        if kept is None:
            return  # its program has ended and is forgotten
        kept.num_calls += 1
        self._calls.add(kept.calls, call)

    def transfer_ended(self, transfer: TransferRecord) -> None:
        kept = None if transfer.program is None else self._programs.get(transfer.program)
        if kept is not None:
            self._transfers.add(kept.transfers, transfer)

    def message_ended(self, message: MessageRecord) -> None:
        messages = self._messages.get(message.engine)
        if messages is None:
            messages = self._messages[message.engine] = deque(maxlen=self._limits.max_messages)
        messages.append(message)

    # -- who asks ----------------------------------------------------------------------------------

    def forget(self, programs: Iterable[ProgramId]) -> None:
        for program in programs:
            self._programs.pop(program, None)

    def read(self, program: ProgramId) -> ProgramTrace | None:
        """The trace of ``program``; None: it is not known, or forgotten."""
        kept = self._programs.get(program)
        if kept is None:
            return None
        return ProgramTrace(
            kept.started,
            kept.end_s,
            kept.reason,
            tuple(kept.calls.records),
            kept.num_calls,
            tuple(kept.transfers.records),
        )

    def family(self, roots: Sequence[ProgramId], max_programs: int) -> list[ProgramId]:
        """``roots`` and the programs below them, level by level, as far as they are known."""
        found = dict.fromkeys(roots)
        level = list(roots)
        while level and len(found) < max_programs:
            kept = [self._programs.get(program) for program in level]
            level = [child for one in kept if one for child in one.children if child not in found]
            found |= dict.fromkeys(level)
        return list(found)[:max_programs]

    def messages(self) -> Mapping[EngineId, Sequence[MessageRecord]]:
        """The latest messages of each engine."""
        return {engine: tuple(messages) for engine, messages in self._messages.items()}
