"""The progress of one ``Encode`` command: which of its sequences wait.

Sequences are taken one by one, in order, for any batch with room. Those of a lost batch are taken
first again and count the loss.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from quire.control.programs.program import Entry
from quire.core.batch import I32
from quire.core.encoding import Encode


class EncodePart:
    """Sequences ``start`` to ``stop`` of one command, waiting or in a batch. ``num_losses``: how
    often their encoder was lost while they were in a batch."""

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
        """The part's section of the command's ``tokens`` or ``types``."""
        return values[self.run.starts[self.start] : self.run.starts[self.stop]]


class EncodeRun:
    """The progress of one command. ``starts``: the index of each sequence's first token, and the
    end of the last. ``num_left``: sequences without a result row."""

    def __init__(self, entry: Entry, command: Encode) -> None:
        self.entry = entry
        self.command = command
        self.starts: list[int] = [0, *np.cumsum(command.lengths).tolist()]
        self.num_sequences = len(self.starts) - 1
        self.num_left = self.num_sequences
        self.num_waiting_tokens = self.starts[-1]
        self._waiting: deque[EncodePart] = deque([EncodePart(self, 0, self.num_sequences)])

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def next_length(self) -> int:
        """The number of tokens of the next sequence."""
        first = self._waiting[0].start
        return self.starts[first + 1] - self.starts[first]

    def take(self) -> EncodePart:
        """Take the next sequence."""
        waiting = self._waiting[0]
        taken = EncodePart(self, waiting.start, waiting.start + 1, waiting.num_losses)
        waiting.start += 1
        if waiting.start == waiting.stop:
            self._waiting.popleft()
        self.num_waiting_tokens -= taken.num_tokens
        return taken

    def put_back(self, part: EncodePart) -> None:
        """Let ``part`` wait again, because its encoder was lost."""
        part.num_losses += 1
        self.num_waiting_tokens += part.num_tokens
        self._waiting.appendleft(part)
