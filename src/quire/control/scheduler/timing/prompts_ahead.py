"""Decides when the next message of prompts is sent behind the one that runs.

Between two messages of prompts an engine would wait for control to read the first one's results and
to plan the next. A message that is planned early misses what comes later: a request that should go
first, or pages that a prompt in flight is about to put into the prefix index. So the next message
is planned shortly before the running one should end, only if waiting prompts already fill it, and
never behind a prompt with the same beginning as one of those that wait. Owns that decision; the
planner chooses what is in the message.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.control.engines.decode_run import DecodeRun
from quire.control.engines.in_flight import InFlight
from quire.control.engines.state import EngineState
from quire.control.programs.program import Entry
from quire.control.scheduler.timing.chunk_time import ChunkTime
from quire.control.scheduler.timing.step_time import DecodeStepTime
from quire.core.commands import Decode

_SHARE = 0.6
"""The share of the running message's time that must have passed: its length is an estimate."""


class PromptsAhead:
    """Decides for one engine. ``began`` notes that the message in front has begun to run."""

    def __init__(
        self, engine: EngineState, chunk_time: ChunkTime, step_time: DecodeStepTime, is_on: bool
    ) -> None:
        self._engine = engine
        self._chunk_time = chunk_time
        self._step_time = step_time
        self._is_on = is_on
        self._began_s = 0.0
        self._is_held_up = False

    def began(self, now_s: float) -> None:
        self._began_s = now_s

    def held_up(self, is_held_up: bool) -> None:
        """Note whether a command found no memory ahead: then only a whole plan, which may take it
        from others, goes on."""
        self._is_held_up = is_held_up

    def due_s(self) -> float | None:
        """The time at which prompts may go behind the one message in flight; None: not at all."""
        (message,) = self._engine.in_flight
        if not self._is_on or self._is_held_up or not self._can_follow(message):
            return None
        expected_s = self._chunk_time.expected_s(message, self._step_time.step_s)
        return None if expected_s is None else self._began_s + _SHARE * expected_s

    def are_wanted(self, waiting: Sequence[Entry], prompt_limit: int | None) -> bool:
        """Whether a message of ``waiting`` misses nothing that comes later. ``prompt_limit``: the
        most prompt tokens in it."""
        (message,) = self._engine.in_flight
        size = self._engine.page_size
        fills = self._fill_a_message(waiting, message, prompt_limit)
        return fills and not _begin_alike(waiting, message, size)

    def _can_follow(self, message: InFlight) -> bool:
        """Whether every open decode is in ``message``, so that all can be in the next one."""
        if not message.parts or message.restores or message.has_image:
            return False
        serving = {run.entry for run in message.runs}
        return all(entry in serving for entry in self._engine.running)

    def _fill_a_message(
        self, waiting: Sequence[Entry], message: InFlight, prompt_limit: int | None
    ) -> bool:
        room = self._engine.info.pool.max_batch_tokens - len(message.runs)
        if prompt_limit is not None:
            room = min(room, prompt_limit)
        if not all(isinstance(entry.command, Decode) for entry in waiting):
            return False
        return sum(_num_left(entry) for entry in waiting) >= room


def _num_left(entry: Entry) -> int:
    run = entry.run
    if isinstance(run, DecodeRun):
        return run.num_to_run
    return len(entry.command.tokens) if isinstance(entry.command, Decode) else 0


def _begin_alike(waiting: Sequence[Entry], message: InFlight, page_size: int) -> bool:
    """Whether a prompt that waits has the first page of one in flight."""
    computed = {_beginning(part.entry, page_size) for part in message.parts}
    fresh = [entry for entry in waiting if entry.run is None]
    return any(_beginning(entry, page_size) in computed for entry in fresh)


def _beginning(entry: Entry, page_size: int) -> tuple[int, ...]:
    return tuple(entry.command.tokens[:page_size]) if isinstance(entry.command, Decode) else ()
