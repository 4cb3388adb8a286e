"""What control remembers of a message until its result arrives: whose each item of it is.

Owns no memory and decides nothing. How a message is laid out is known to ``batch_builder``.
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


class Stage(StrEnum):
    """Which part of the message an item stands in; the values are those of ``RowFailure.stage``."""

    OPERATIONS = "operations"
    EMBEDS = "embeds"
    IMAGES = "images"
    FORWARD = "forward"
    DISTS = "dists"
    SAMPLES = "samples"


STAGE_ORDER = {
    Stage.OPERATIONS: 0,
    Stage.EMBEDS: 1,
    Stage.IMAGES: 1,
    Stage.FORWARD: 2,
    Stage.DISTS: 3,
    Stage.SAMPLES: 3,
}


@dataclass(slots=True)
class Part:
    """What one command has in a message: items ``start:stop`` of ``stage``.

    Of a forward row: ``token_start`` is its first token in the message, ``first_token`` in the
    command, ``undo`` the fill of each page it writes before it did. ``is_final``: the command's
    last part. ``scored``: its row is asked for attention scores.
    """

    entry: Entry
    stage: Stage
    start: int
    stop: int
    token_start: int = 0
    num_tokens: int = 0
    first_token: int = 0
    undo: Sequence[tuple[Page, int]] = ()
    is_final: bool = True
    scored: ScoredPart | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """A forward row that computes lost ``contents`` again, ``num_tokens`` of them, for
    ``requester``."""

    row: int
    contents: list[Content]
    num_tokens: int
    requester: Entry


@dataclass(slots=True)
class InFlight:
    """A dispatched message. ``filled``: contents that are full and canonical once it has run.

    ``restores``: forward rows that compute lost contents again.

    ``runs``: in the order of the result; the first ``num_opened`` were opened in this message.
    ``steps`` and ``epochs``: how far each may go in it, and the epoch under which it does.
    """

    step: int
    num_steps: int
    parts: list[Part]
    runs: list[DecodeRun]
    steps: list[int]
    epochs: list[int]
    num_opened: int
    pins: list[Content]
    filled: list[Content]
    restores: list[Restored]
    num_tokens: int

    @property
    def is_empty(self) -> bool:
        """Nothing but operations stands in it."""
        return not (self.parts or self.runs or self.restores)

    @property
    def num_advanced(self) -> int:
        """Sequences that were open before."""
        return len(self.runs) - self.num_opened

    @property
    def has_image(self) -> bool:
        return any(part.stage is Stage.IMAGES for part in self.parts)
