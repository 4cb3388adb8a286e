"""What the node has to tell the guests of one sandbox process: starts and events, gathered for a
turn of the loop and sent together.

Owns their order, and that what cannot be encoded costs no other guest its messages. Must not know
the process, nor who waits for a guest. Belongs to the link's loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quire.core.errors import InvalidArgument
from quire.node.sandbox import messages as s
from quire.programs.sandbox.messages import GuestEvents, ServiceAnswered, ServiceRefused

_UNENCODABLE = (TypeError, ValueError, OverflowError)
"""What encoding raises for an integer of more than 64 bits, or half of a surrogate pair."""


class GuestOutbox:
    """``say`` sends a message, or raises what encoding it raises; ``give_up`` is called with a
    guest that cannot be told what it needs, and why."""

    def __init__(
        self, say: Callable[[s.ToSandbox], None], give_up: Callable[[int, str], None]
    ) -> None:
        self._say = say
        self._give_up = give_up
        self._starts: list[s.Start] = []
        self._news: dict[int, list[GuestEvents]] = {}

    def start(self, start: s.Start) -> None:
        """Send a start with all starts of this turn of the loop, before its events."""
        self._schedule()
        self._starts.append(start)

    def tell(self, guest: int, event: GuestEvents) -> None:
        """Send ``event`` to the guest, together with its other events of this turn of the loop."""
        news = self._news.get(guest)
        if news is not None:
            news.append(event)
        else:
            self._schedule()
            self._news[guest] = [event]

    def forget(self, guest: int) -> None:
        """Drop the events of a guest that has ended."""
        self._news.pop(guest, None)

    def clear(self) -> None:
        """Drop everything: the process is lost."""
        self._news.clear()
        self._starts.clear()

    def flush(self) -> None:
        """Send everything now. If a part cannot be encoded, all are sent one by one."""
        if self._starts:
            starts, self._starts = self._starts, []
            try:
                self._say(s.Starts(starts=starts))
            except _UNENCODABLE:
                for start in starts:
                    self._start_alone(start)
        if self._news:
            news, self._news = self._news, {}
            try:
                told = [s.GuestNews(guest, events) for guest, events in news.items()]
                self._say(s.Tell(news=told))
            except _UNENCODABLE:
                for guest, events in news.items():
                    self._tell_alone(guest, events)

    # -- inside ------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._news and not self._starts:
            asyncio.get_running_loop().call_soon(self.flush)

    def _start_alone(self, start: s.Start) -> None:
        try:
            self._say(s.Starts(starts=[start]))
        except _UNENCODABLE as exc:
            self._give_up(start.guest, f"its launch cannot be told to its process ({exc})")

    def _tell_alone(self, guest: int, events: list[GuestEvents]) -> None:
        """Send events one by one. A guest whose service gave an answer that cannot be sent gets an
        error in its place; one that lacks another event cannot go on."""
        for event in events:
            try:
                self._say_one(guest, event)
            except _UNENCODABLE as exc:
                if not isinstance(event, ServiceAnswered):
                    self._give_up(guest, f"{type(event).__name__} cannot be told to it ({exc})")
                    return
                wrong = InvalidArgument(
                    f"the answer cannot be told to a sandboxed program ({exc}): it has an integer "
                    "of more than 64 bits or half of a surrogate pair; let its giver send text"
                )
                self._say_one(guest, ServiceRefused(event.number, wrong.record()))

    def _say_one(self, guest: int, event: GuestEvents) -> None:
        self._say(s.Tell(news=[s.GuestNews(guest, [event])]))
