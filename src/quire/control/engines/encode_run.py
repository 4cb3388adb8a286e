"""What control remembers of an ``Encode`` while it is carried out: which sequences wait.

Sequences go one by one, in their order, to whatever batch has room. Those of a batch that was lost
come first again, and remember that.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from quire.control.programs.program import Entry
from quire.core.batch import I32
from quire.core.encoding import Encode


class Part:
    """Sequences ``start`` to ``stop`` of one command: waiting, or in a batch. ``num_losses``: how
    often an encoder was lost under them."""

    __slots__ = ("num_losses", "run", "start", "stop")

    def __init__(self, run: EncodeRun, start: int, stop: int, num_losses: int = 0) -> None:
        self.run = run
        self.start = start
        self.stop = stop
        self.num_losses = num_losses

    @property
    def num_tokens(self) -> int:
        return self.run.starts[self.stop] - self.run.starts[self.start]

    def cut(self, values: I32) -> I32:
        """Its own of the command's ``tokens`` or ``types``."""
        return values[self.run.starts[self.start] : self.run.starts[self.stop]]


class EncodeRun:
    """``starts``: where each sequence begins among the tokens, and their end. ``num_left``:
    sequences without a row."""

    def __init__(self, entry: Entry, command: Encode) -> None:
        self.entry = entry
        self.command = command
        self.starts: list[int] = [0, *np.cumsum(command.lengths).tolist()]
        self.num_sequences = len(self.starts) - 1
        self.num_left = self.num_sequences
        self.num_waiting_tokens = self.starts[-1]
        self._waiting: deque[Part] = deque([Part(self, 0, self.num_sequences)])

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def next_length(self) -> int:
        """Of the sequence that goes next."""
        first = self._waiting[0].start
        return self.starts[first + 1] - self.starts[first]

    def take(self) -> Part:
        """The sequence that goes next."""
        waiting = self._waiting[0]
        taken = Part(self, waiting.start, waiting.start + 1, waiting.num_losses)
        waiting.start += 1
        if waiting.start == waiting.stop:
            self._waiting.popleft()
        self.num_waiting_tokens -= taken.num_tokens
        return taken

    def put_back(self, part: Part) -> None:
        """The encoder was lost under ``part``."""
        part.num_losses += 1
        self.num_waiting_tokens += part.num_tokens
        self._waiting.appendleft(part)
