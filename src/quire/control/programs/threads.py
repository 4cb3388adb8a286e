"""The threads of one program: what each has had of engines.

Owns how many are remembered. A client names threads as it likes, so those that no queue serves are
forgotten, first those that began first.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.ids import ThreadId
from quire.core.policy import ServiceFigures

MAX_IDLE_THREADS = 1024
"""Of one program: threads without a queue that are remembered; up to twice as many are kept until
the next look. One that comes again after it was forgotten begins anew."""


class Threads:
    """``num_begun``: threads so far, the forgotten ones too."""

    __slots__ = ("_begun_s", "_figures", "num_begun")

    def __init__(self, begun_s: float) -> None:
        """The program began at ``begun_s``, as does a thread that nobody has begun."""
        self.num_begun = 0
        self._begun_s = begun_s
        self._figures: dict[ThreadId, ServiceFigures] = {}

    def begin(self, thread: ThreadId, parent: ThreadId | None, now_s: float) -> None:
        """A queue serves ``thread``, which begins with its first one. ``parent``: the thread that
        it was forked from, where the queue's issuer knows."""
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
        """Forget those that are too many. ``served`` are those of its queues, read only then."""
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
