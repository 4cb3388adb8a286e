"""The time in control: the time of the event that is being handled.

Owns the one value that everything in control reads. Must not know a clock: events bring their time.
"""

from __future__ import annotations


class EventTime:
    """``now_s`` is set by the controller alone, once for each event; it never goes back."""

    __slots__ = ("now_s",)

    def __init__(self) -> None:
        self.now_s = 0.0
