"""What becomes of answers that leave their engine: by choice (a move), or because it is lost.

Owns the words for it, and what is told to a watcher. Must not know series, nor engines.
"""

from __future__ import annotations

from typing import Literal, Protocol

Cause = Literal["move", "loss"]
Outcome = Literal["done", "stayed", "failed", "aborted"]
"""``done``: the answer goes on at another engine; ``stayed``: it ended where it was, or could not
leave; ``failed``: it left and no engine goes on with it, so its client receives an error;
``aborted``: its client left while it was between two engines."""


class ContinuationWatcher(Protocol):
    """Hears of the answers of a router."""

    def move_began(self) -> None:
        """An answer begins to move: its pages are sent. ``continued`` follows once."""
        ...

    def continued(self, cause: Cause, outcome: Outcome, pause_s: float | None) -> None:
        """An answer goes on, or does not. ``pause_s``: from the cut of its stream, or the notice of
        the loss, to the first event of the next stream; None unless it is ``done``."""
        ...


class Unwatched:
    """Implements ``ContinuationWatcher``: tells nobody."""

    def move_began(self) -> None:
        """Do nothing."""

    def continued(self, cause: Cause, outcome: Outcome, pause_s: float | None) -> None:
        """Do nothing."""
