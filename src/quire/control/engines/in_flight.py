"""What control remembers of a message until its result arrives: the command of each item.

Owns no memory and decides nothing. ``builder`` knows the layout of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.score_sum import ScoredPart
from quire.control.memory.content import Content
from quire.control.memory.pages import Page
from quire.control.programs.program import Entry
from quire.control.statistics import MessageStatistics


class MessageStage(StrEnum):
    """The part of the message that contains an item; the values are those of
    ``RowFailure.stage``."""

    OPERATIONS = "operations"
    EMBEDS = "embeds"
    IMAGES = "images"
    FORWARD = "forward"
    DISTS = "dists"
    SAMPLES = "samples"


STAGE_ORDER = {
    MessageStage.OPERATIONS: 0,
    MessageStage.EMBEDS: 1,
    MessageStage.IMAGES: 1,
    MessageStage.FORWARD: 2,
    MessageStage.DISTS: 3,
    MessageStage.SAMPLES: 3,
}


@dataclass(slots=True)
class CommandItems:
    """The items ``start:stop`` of ``stage`` that belong to one command.

    For a forward row: ``token_start``: index of its first token in the message; ``first_token``:
    index of the same token in the command; ``undo``: the fill of each written page before the row.
    ``is_final``: whether this is the command's last part. ``scored``: set if attention scores of
    the row are requested.
    """

    entry: Entry
    stage: MessageStage
    start: int
    stop: int
    token_start: int = 0
    num_tokens: int = 0
    first_token: int = 0
    undo: Sequence[tuple[Page, int]] = ()
    is_final: bool = True
    scored: ScoredPart | None = None


@dataclass(frozen=True, slots=True)
class RestoredRow:
    """A forward row that recomputes lost ``contents`` of ``num_tokens`` tokens, for
    ``requester``."""

    row: int
    contents: list[Content]
    num_tokens: int
    requester: Entry


class InFlight:
    """A dispatched message.

    ``filled``: contents that are full and canonical once it has run. ``restores``: forward rows
    that recompute lost contents. ``runs``: in the order of the result; the first ``num_opened``
    were opened in this message. ``steps``: the largest number of steps of each run in it.
    ``openings``: the commands whose leases it opens.
    ``serial``: that of its ``Batch``, which begins anew when the engine is lost; ``number``: counts
    the messages for this engine and goes on; ``sent_s``: when it was sent.
    """

    __slots__ = (
        "filled",
        "num_commands",
        "num_opened",
        "num_steps",
        "num_tokens",
        "number",
        "openings",
        "parts",
        "pins",
        "restores",
        "runs",
        "sent_s",
        "serial",
        "steps",
    )

    def __init__(
        self,
        serial: int,
        num_steps: int,
        parts: list[CommandItems],
        runs: list[DecodeRun],
        steps: list[int],
        num_opened: int,
        pins: list[Content],
        filled: list[Content],
        restores: list[RestoredRow],
        openings: list[Entry],
        num_tokens: int,
        num_commands: int,
        number: int,
        sent_s: float,
    ) -> None:
        self.serial = serial
        self.num_steps = num_steps
        self.parts = parts
        self.runs = runs
        self.steps = steps
        self.num_opened = num_opened
        self.pins = pins
        self.filled = filled
        self.restores = restores
        self.openings = openings
        self.num_tokens = num_tokens
        self.num_commands = num_commands
        self.number = number
        self.sent_s = sent_s

    @property
    def is_empty(self) -> bool:
        """Whether it contains nothing but operations."""
        return not (self.parts or self.runs or self.restores)

    def came_back(self) -> None:
        """Note on its commands that it is not in flight any more."""
        for part in self.parts:
            part.entry.num_in_flight -= 1
        steps, num_opened = self.steps, self.num_opened
        for index, run in enumerate(self.runs):
            run.num_outstanding -= steps[index]
            if index >= num_opened:
                run.entry.num_in_flight -= 1

    @property
    def num_advanced(self) -> int:
        """The number of sequences that were open before."""
        return len(self.runs) - self.num_opened

    @property
    def has_image(self) -> bool:
        return any(part.stage is MessageStage.IMAGES for part in self.parts)


def message_statistics(message: InFlight) -> MessageStatistics:
    chunks = [part for part in message.parts if part.stage is MessageStage.FORWARD]
    return MessageStatistics(
        num_decodes=len(message.runs),
        num_chunks=len(chunks) + len(message.restores),
        num_tokens=message.num_tokens,
        num_steps=message.num_steps,
    )
