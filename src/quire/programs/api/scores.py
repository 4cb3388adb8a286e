"""Trait Scores: a forward that also returns attention scores. Served by the engine."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from quire.core import commands as c
from quire.core.traits import Trait
from quire.programs.api.forward import Embeds, Pages, issue_forward
from quire.programs.api.handles import Queue
from quire.programs.api.queued import TraitFunctions, queued
from quire.programs.api.reply import Reply


@dataclass(frozen=True, slots=True)
class AttentionScores:
    """The attention mass that the new tokens of one forward gave, for each layer.

    The mass of a slot is the sum over the new tokens of its attention probability, averaged over
    the query heads: the masses of a layer add up to the number of new tokens (less the share of
    attention sinks).

    ``pages`` [layer][page of ikv]; ``slots`` [layer][page of ikv][slot], None unless requested;
    ``inputs`` [layer][new token]. A slot that was hidden, or empty before the forward, has 0: slots
    that the forward itself wrote are counted in ``inputs``, even if ``ikv`` names their page.
    """

    pages: list[list[float]]
    inputs: list[list[float]]
    slots: list[list[list[float]]] | None = None

    @property
    def num_layers(self) -> int:
        return len(self.pages)

    def by_page(self) -> list[float]:
        """The mass of each page of ``ikv``, averaged over the layers."""
        return [sum(masses) / self.num_layers for masses in zip(*self.pages, strict=True)]

    def by_slot(self) -> list[list[float]]:
        """The mass ``[page][slot]`` of ``ikv``, averaged over the layers; needs ``slots``."""
        assert self.slots is not None, "ask for slots=True"
        return [
            [sum(masses) / self.num_layers for masses in zip(*page, strict=True)]
            for page in zip(*self.slots, strict=True)
        ]


class ScoresFunctions(TraitFunctions):
    trait = Trait.SCORES

    @queued
    def forward_with_scores(
        self,
        queue: Queue,
        ikv: Pages,
        iemb: Embeds,
        okv: Pages | Embeds = (),
        oemb: Embeds = (),
        mask: Sequence[Sequence[bool]] | None = None,
        *,
        slots: bool = False,
    ) -> Reply[AttentionScores]:
        """Like `forward`; also returns the attention mass that the new tokens gave to each page of
        ``ikv`` and to one another, for each layer.

        ``pages[layer][page]``, ``inputs[layer][new token]`` and, with ``slots``,
        ``slots[layer][page][slot]`` are sums over the new tokens of attention probabilities,
        averaged over the query heads. To score by the last tokens of a prompt only (SnapKV), run
        these in a forward of their own; to accumulate over time (H2O), add up. K, V and hidden
        states are those of `forward`; scoring costs a second pass over the keys for the new tokens.

        Raises:
            InvalidArgument: the model does not have this trait, or as for `forward`.
            UnknownHandle: a handle that this program does not hold.
        """
        return issue_forward(
            self._issuer,
            queue,
            (ikv, iemb, okv, oemb),
            mask,
            queue.state.model.adapter,
            scores="slots" if slots else "pages",
            convert=_unpacked,
        )


def _unpacked(reply: object) -> AttentionScores:
    scores = cast(c.AttentionScores, reply)
    num_pages, size = scores.num_pages, scores.page_size
    slots = None
    if scores.slots:
        slots = [
            [row[start : start + size] for start in range(0, num_pages * size, size)]
            for row in _rows(scores.slots, scores.num_layers, num_pages * size)
        ]
    return AttentionScores(
        pages=_rows(scores.pages, scores.num_layers, num_pages),
        inputs=_rows(scores.inputs, scores.num_layers, scores.num_inputs),
        slots=slots,
    )


def _rows(packed: bytes, num_rows: int, width: int) -> list[list[float]]:
    values = struct.unpack(f"<{num_rows * width}f", packed)
    return [list(values[row * width : (row + 1) * width]) for row in range(num_rows)]
