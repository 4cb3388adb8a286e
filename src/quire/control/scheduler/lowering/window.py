"""Vertical batching: which commands of one queue may be in one message (Pie 5.2).

Owns the rule alone. A later command may join when the stages of a message run the two in their
order and neither overwrites what the other uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from quire.control.engines.in_flight import STAGE_ORDER, MessageStage
from quire.control.programs.program import Entry
from quire.core.commands import (
    Command,
    CopyPage,
    Decode,
    EmbedImage,
    EmbedText,
    Forward,
    GetNextDist,
    RepositionPage,
    Sample,
)
from quire.core.lease_commands import OpenLease, SendPages

_STAGES: dict[type[Command], MessageStage] = {
    CopyPage: MessageStage.OPERATIONS,
    RepositionPage: MessageStage.OPERATIONS,
    OpenLease: MessageStage.OPERATIONS,
    SendPages: MessageStage.OPERATIONS,
    EmbedText: MessageStage.EMBEDS,
    EmbedImage: MessageStage.IMAGES,
    Forward: MessageStage.FORWARD,
    Decode: MessageStage.FORWARD,
    GetNextDist: MessageStage.DISTS,
    Sample: MessageStage.SAMPLES,
}
"""The stage of each command that needs a message; control carries out the others by itself."""

_ORDER = {kind: STAGE_ORDER[stage] for kind, stage in _STAGES.items()}

_READS: dict[type[Command], Callable[[Any], Iterable[int]]] = {Forward: attrgetter("inputs")}
_WRITES: dict[type[Command], Callable[[Any], Iterable[int]]] = {
    EmbedText: attrgetter("embeds"),
    EmbedImage: attrgetter("embeds"),
    Forward: attrgetter("outputs"),
    Sample: lambda command: command.token_slots or (),
}
"""What a command reads and writes that another one of its stage may write: embeds; in the last
stage, where embeds are only read, token slots."""


class QueueWindow:
    """The commands of one queue that are in the message so far: the last one's stage, and what
    those of this stage read and write. ``_unread`` are commands whose reads and writes are not
    collected yet: the next command is mostly of another stage, which does not need them."""

    __slots__ = ("_is_closed", "_read", "_stage", "_takes_sends", "_unread", "_written")

    def __init__(self) -> None:
        self._stage = -1
        self._is_closed = False
        self._takes_sends = False
        self._unread: list[Command] = []
        self._read: set[int] = set()
        self._written: set[int] = set()

    def admits(self, entry: Entry) -> bool:
        command = entry.command
        kind = type(command)
        if kind is SendPages and self._takes_sends:
            return True
        if self._is_closed or _ORDER[kind] < self._stage:
            return False
        if _ORDER[kind] > self._stage:
            return True
        self._look_through()
        reads = _READS[kind](command) if kind in _READS else ()
        writes = _WRITES[kind](command) if kind in _WRITES else ()
        return (
            self._written.isdisjoint(reads)
            and self._written.isdisjoint(writes)
            and self._read.isdisjoint(writes)
        )

    def add(self, entry: Entry) -> None:
        command = entry.command
        kind = type(command)
        if _ORDER[kind] > self._stage:
            self._stage = _ORDER[kind]
            self._unread = []
            self._read.clear()
            self._written.clear()
        self._unread.append(command)
        if kind is Decode:
            self.close()
            self._takes_sends = is_prompt(command)

    def _look_through(self) -> None:
        for command in self._unread:
            kind = type(command)
            if kind in _READS:
                self._read.update(_READS[kind](command))
            if kind in _WRITES:
                self._written.update(_WRITES[kind](command))
        self._unread = []

    def close(self) -> None:
        """Admit no further command: the last one is only partly in the message."""
        self._is_closed = True
        self._takes_sends = False


def is_prompt(command: Command) -> bool:
    """Whether ``command`` is a decode that samples nothing. What it computes may be sent by the
    message that computes the last of it: the engine sends each layer when it is computed."""
    return type(command) is Decode and not command.stop.max_tokens
