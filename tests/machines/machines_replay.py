"""A controller that remembers what went in and what came out."""

from __future__ import annotations

from collections.abc import Callable

from quire.control import Controller
from quire.core.actions import Action
from quire.core.events import Event
from quire.core.wire import Codec


class RecordedControl:
    """The controller, with everything that went in and came out: the same events must give the
    same actions again, or a recorded run could not be replayed."""

    def __init__(self, new: Callable[[], Controller]) -> None:
        self._new = new
        self._codec: Codec[list[Action]] = Codec(list[Action])
        self._log: list[tuple[Event, list[bytes]]] = []
        self.controller = new()

    def handle(self, event: Event) -> list[Action]:
        actions = self.controller.handle(event)
        self._log.append((event, self._frames(actions)))
        return actions

    def check_invariants(self) -> None:
        self.controller.check_invariants()

    def assert_replays(self) -> None:
        again = self._new()
        for index, (event, frames) in enumerate(self._log):
            assert self._frames(again.handle(event)) == frames, f"event {index} of the log differs"

    def _frames(self, actions: list[Action]) -> list[bytes]:
        return [bytes(frame) for frame in self._codec.encode(actions)]
