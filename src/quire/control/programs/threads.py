"""The threads of one program and the service that each has had.

Owns how many are remembered. A client names threads as it likes, so those that no queue serves are
forgotten, oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.ids import ThreadId
from quire.core.policy import ServiceFigures

MAX_IDLE_THREADS = 1024
"""The number of threads without a queue that are remembered of one program; up to twice as many are
kept until the next clean-up. One that comes again after it was forgotten begins anew."""


class Threads:
    """The threads of one program. ``num_begun``: their number so far, forgotten ones included."""

    __slots__ = ("_begun_s", "_figures", "num_begun")

    def __init__(self, begun_s: float) -> None:
        """``begun_s``: when the program began, and with it each thread that no queue has begun."""
        self.num_begun = 0
        self._begun_s = begun_s
        self._figures: dict[ThreadId, ServiceFigures] = {}

    def begin(self, thread: ThreadId, parent: ThreadId | None, now_s: float) -> None:
        """Note that a queue serves ``thread``, which begins with its first queue. ``parent``: the
        thread that it was forked from, if the issuer of the queue knows it."""
        figures = self._figures.get(thread)
        if figures is None:
            figures = self._add(thread, now_s)
        if figures.parent is None and parent != thread:
            figures.parent = parent

    def figures(self, thread: ThreadId) -> ServiceFigures:
        figures = self._figures.get(thread)
        if figures is None:
            figures = self._add(thread, self._begun_s)
        return figures

    def forget_idle(self, served: Iterable[ThreadId]) -> None:
        """Forget the oldest idle threads if there are too many. ``served``: the threads of the
        program's queues, read only then."""
        if len(self._figures) <= 2 * MAX_IDLE_THREADS:
            return
        busy = set(served)
        idle = [thread for thread in self._figures if thread not in busy]
        for thread in idle[: max(0, len(idle) - MAX_IDLE_THREADS)]:
            del self._figures[thread]

    def _add(self, thread: ThreadId, begun_s: float) -> ServiceFigures:
        self.num_begun += 1
        figures = self._figures[thread] = ServiceFigures(arrival_s=begun_s)
        return figures
