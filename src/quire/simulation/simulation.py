"""``Simulation``: executes what happens next, in the order of virtual time.

Owns the agenda (calls due at given times) and the choice of the next step: a call of the agenda,
the end of a message, or the controller's timer, whichever is first. A program is any code that puts
calls on the agenda and listens to answers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from quire.simulation.shell import VirtualShell


class Simulation:
    """Drives ``shell`` from one point in time to the next."""

    def __init__(self, shell: VirtualShell) -> None:
        self.shell = shell
        self.num_events = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    @property
    def now_s(self) -> float:
        return self.shell.now_s

    def at(self, time_s: float, call: Callable[[], None]) -> None:
        """Schedule ``call`` for ``time_s``; calls with the same time run in the order of
        scheduling."""
        heapq.heappush(self._agenda, (max(time_s, self.now_s), next(self._numbers), call))

    def after(self, duration_s: float, call: Callable[[], None]) -> None:
        self.at(self.now_s + duration_s, call)

    def step(self, until_s: float = float("inf")) -> bool:
        """Execute the next step unless it is due after ``until_s``; False if there is none. Of
        steps with the same time, calls come first, then ends of messages, then the timer."""
        shell = self.shell
        call_s = self._agenda[0][0] if self._agenda else float("inf")
        end = shell.next_end()
        end_s = float("inf") if end is None else end[0]
        timer_s = float("inf") if shell.timer_s is None else shell.timer_s
        first_s = min(call_s, end_s, timer_s)
        if first_s > until_s or first_s == float("inf"):
            return False
        self.num_events += 1
        if call_s == first_s:
            shell.clock.advance_to(call_s)
            heapq.heappop(self._agenda)[2]()
        elif end is not None and end_s == first_s:
            shell.finish_message(end[1])
            while shell.go_on_with_transfers(end[1]):
                pass
        else:
            shell.fire_timer()
        return True

    def run(self, until_s: float = float("inf")) -> None:
        """Run until nothing is left to do, or until ``until_s``; the clock is then at
        ``until_s``."""
        while self.step(until_s):
            pass
        if until_s != float("inf"):
            self.shell.clock.advance_to(until_s)
