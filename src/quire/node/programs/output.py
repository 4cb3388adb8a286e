"""The output of one program for its clients: messages at the pace of their readers, and log lines.

Owns both logs over all incarnations of the program, and the message that waits for slow readers.
Belongs to the edge's loop. Must not know why a program is restarted, moves or ends.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from quire.core.errors import QuireError
from quire.node.programs.message_log import MessageLog
from quire.node.programs.records import LOG_LEVELS, LogLevel, ProgramLimits, ProgramLogLine
from quire.node.programs.restarting.restarts import Restarts
from quire.programs.runtime.running import RunningProgram
from quire.programs.shown_values import problem_with

_MAX_AT_ONCE = 256
"""The most messages that wait together for a router to have the program's record."""

Keep = Callable[[], Awaitable[None]]
"""Waits until a router has the record that has led to the program's messages."""


class ProgramOutput:
    """The messages and log of one program. ``on_stored`` is called when a message that had to wait
    is in the log, ``on_failure`` when the program has not repeated its messages after a restart;
    the latter calls ``stop``. ``keeping`` returns what the messages wait for now; None: nothing."""

    def __init__(
        self,
        limits: ProgramLimits,
        on_stored: Callable[[RunningProgram], None],
        on_failure: Callable[[QuireError], None],
        keeping: Callable[[], Keep | None] = lambda: None,
    ) -> None:
        self.messages = MessageLog(limits.messages)
        self._lines: deque[ProgramLogLine] = deque(maxlen=limits.max_log_lines)
        self._on_stored = on_stored
        self._on_failure = on_failure
        self._keeping = keeping
        self._is_stopped = False
        self._storing: asyncio.Task[None] | None = None
        """Stores messages that wait: a router does not have the program's record yet, or the log is
        full and its readers are slow."""

    @property
    def num_bytes(self) -> int:
        """The bytes of both logs."""
        return self.messages.num_bytes + sum(line.num_bytes for line in self._lines)

    # -- messages ----------------------------------------------------------------------------------

    def take(self, running: RunningProgram, restarts: Restarts | None) -> bool:
        """Take what the program has sent since the last time. False: a message waits, and
        ``on_stored`` follows."""
        if self._storing is not None:
            return False
        while (message := running.take()) is not None:
            if not self._is_new(message, restarts):
                continue
            keep = self._keeping()
            if keep is not None:
                together = self._with_next(message, running, restarts)
                self._storing = asyncio.create_task(self._store(running, together, restarts, keep))
                return False
            if not self.messages.offer(message):
                self._storing = asyncio.create_task(self._store(running, [message], restarts))
                return False
            _note_sent(message, restarts)
        return True

    def _with_next(
        self, message: str, running: RunningProgram, restarts: Restarts | None
    ) -> list[str]:
        together = [message]
        while len(together) < _MAX_AT_ONCE and (following := running.take()) is not None:
            if self._is_new(following, restarts):
                together.append(following)
        return together

    def _is_new(self, message: str, restarts: Restarts | None) -> bool:
        """Whether clients should receive the message: not if the program repeats it after a
        restart, nor after its end."""
        if self._is_stopped:
            return False
        try:
            return restarts is None or restarts.is_new(message)
        except QuireError as exc:
            self._on_failure(exc)
            return False

    async def _store(
        self,
        running: RunningProgram,
        messages: list[str],
        restarts: Restarts | None,
        keep: Keep | None = None,
    ) -> None:
        """Add ``messages`` to the log at the pace of the clients, then continue."""
        if keep is not None:
            await keep()
        for message in messages:
            await self.messages.put(message)
            _note_sent(message, restarts)
        self._storing = None
        self._on_stored(running)

    def store_end(self, running: RunningProgram, keep: Keep) -> None:
        """Let the end of the program wait as its messages do. ``on_stored`` follows."""
        self._storing = asyncio.create_task(self._store(running, [], None, keep))

    def drop_waiting(self) -> None:
        """Drop the messages that wait: the next incarnation sends them again."""
        if self._storing is not None:
            self._storing.cancel()
            self._storing = None

    def stop(self) -> None:
        """Drop every further message that the program sends."""
        self._is_stopped = True
        self.drop_waiting()

    # -- lines of log ------------------------------------------------------------------------------

    def lines(self) -> Sequence[ProgramLogLine]:
        """The lines of log, oldest first."""
        return tuple(self._lines)

    def note(self, level: LogLevel, text: str, fields: Mapping[str, Any] | None = None) -> None:
        self._lines.append(ProgramLogLine(time.time(), level, text, _shown_fields(fields or {})))

    def note_left(self, running: RunningProgram) -> None:
        """Log what ``running`` has left undone at its end."""
        for error in running.unobserved_failures:
            self.note(
                "warning", f"an exception that was never awaited: {error.code}: {error.message}"
            )
        for task in running.leaked_tasks:
            self.note("warning", f"a task was still running at the end: {task}")

    def printed(
        self, level: str, text: str, fields: Mapping[str, Any], restarts: Restarts | None
    ) -> None:
        """Log an entry or output of the program, without the lines that it repeats after a
        restart."""
        for line in text.splitlines() or [""]:
            if restarts is not None and restarts.prints_again():
                continue
            self.note(LOG_LEVELS.get(level, "info"), line, fields)


def _note_sent(message: str, restarts: Restarts | None) -> None:
    if restarts is not None:
        restarts.note_sent(message)


def _shown_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``fields`` with the reason in the place of each that readers could not read."""
    if problem_with(dict(fields)) is None:
        return fields
    shown: dict[str, Any] = {}
    for name, value in fields.items():
        if (problem := problem_with({name: None})) is not None:
            shown["not shown"] = problem
        elif (problem := problem_with(value)) is not None:
            shown[name] = f"not shown: {problem}"
        else:
            shown[name] = value
    return shown
