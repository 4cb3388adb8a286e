"""The figures of speculation: its gain and its cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpeculationFigures:
    """Primitives that began before they were known to be needed: ``num_begun``, of which
    ``num_kept`` were used and ``num_dropped`` were not. ``num_dropped_tokens``: the tokens that
    models wrote in dropped ones; the tokens of the query count them too."""

    num_begun: int = 0
    num_kept: int = 0
    num_dropped: int = 0
    num_dropped_tokens: int = 0

    def __add__(self, other: SpeculationFigures) -> SpeculationFigures:
        return SpeculationFigures(
            self.num_begun + other.num_begun,
            self.num_kept + other.num_kept,
            self.num_dropped + other.num_dropped,
            self.num_dropped_tokens + other.num_dropped_tokens,
        )
