"""Vertical batching: which commands of one queue may stand in one message (Pie 5.2).

Owns the rule alone. A later command may join when the stages of a message run the two in their
order and neither overwrites what the other uses.
"""

from __future__ import annotations

from quire.control.queues import Entry
from quire.control.scheduler.batch_builder import STAGE_ORDER, Stage
from quire.core.commands import (
    Command,
    CopyPage,
    Decode,
    EmbedImage,
    EmbedText,
    Forward,
    GetNextDist,
    Sample,
)
from quire.core.ids import EmbedId, TokenSlotId

EngineCommand = CopyPage | EmbedText | EmbedImage | Forward | Decode | GetNextDist | Sample
"""Commands that need a message; control carries out the others by itself."""

_STAGES: dict[type[Command], Stage] = {
    CopyPage: Stage.OPERATIONS,
    EmbedText: Stage.EMBEDS,
    EmbedImage: Stage.IMAGES,
    Forward: Stage.FORWARD,
    Decode: Stage.FORWARD,
    GetNextDist: Stage.DISTS,
    Sample: Stage.SAMPLES,
}


_ORDER = {kind: STAGE_ORDER[stage] for kind, stage in _STAGES.items()}


class QueueWindow:
    """What the commands of one queue that are in the message so far read and write."""

    __slots__ = ("_embedded", "_inputs", "_is_closed", "_outputs", "_stage", "_token_slots")

    def __init__(self) -> None:
        self._stage = 0
        self._is_closed = False
        self._embedded: set[EmbedId] = set()
        self._inputs: set[EmbedId] = set()
        self._outputs: set[EmbedId] = set()
        self._token_slots: set[TokenSlotId] = set()

    def admits(self, entry: Entry) -> bool:
        command = entry.command
        if self._is_closed or _ORDER[type(command)] < self._stage:
            return False
        if isinstance(command, EmbedText | EmbedImage):
            return self._embedded.isdisjoint(command.embeds)
        if isinstance(command, Forward):
            return (
                self._outputs.isdisjoint(command.inputs)
                and self._outputs.isdisjoint(command.outputs)
                and self._inputs.isdisjoint(command.outputs)
            )
        if isinstance(command, Sample):
            return self._token_slots.isdisjoint(command.token_slots or ())
        return True

    def add(self, entry: Entry) -> None:
        command = entry.command
        self._stage = _ORDER[type(command)]
        if isinstance(command, EmbedText | EmbedImage):
            self._embedded.update(command.embeds)
        elif isinstance(command, Forward):
            self._inputs.update(command.inputs)
            self._outputs.update(command.outputs)
        elif isinstance(command, Sample):
            self._token_slots.update(command.token_slots or ())
        elif isinstance(command, Decode):
            self._is_closed = True

    def close(self) -> None:
        """Nothing may follow: the last command is only partly in the message."""
        self._is_closed = True


__all__ = ["EngineCommand", "QueueWindow"]
