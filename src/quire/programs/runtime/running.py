"""A program from launch to end, as its owner sees it, and the Protocol of runtimes.

Owns the program's state and result. Thread-safe: the owner (a server's loop, a test) and the
runtime (its own thread) share the object. Must not know how the program is executed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

from quire.core.errors import ErrorRecord, QuireError
from quire.core.ids import ProgramId
from quire.core.interfaces import ProgramPort, ReplySink
from quire.programs.arguments import NO_NAMES
from quire.programs.inferlet import Inferlet
from quire.programs.services.mailbox import Mailbox, SentMessage
from quire.programs.services.waiting import Waiters

Connect = Callable[[ReplySink, asyncio.AbstractEventLoop], ProgramPort]
"""Creates a program's port: the node enters the program into its process table and returns the
port, whose replies it will deliver to the sink on that loop. Called on the thread of ``launch``."""


LogListener = Callable[[str, str, Mapping[str, Any]], object]
"""The signature is ``listener(level, text, fields)``."""


class ProgramState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"

    @property
    def ended(self) -> bool:
        return self not in (ProgramState.STARTING, ProgramState.RUNNING)


_NEXT: dict[ProgramState, frozenset[ProgramState]] = {
    ProgramState.STARTING: frozenset(ProgramState) - {ProgramState.STARTING, ProgramState.FINISHED},
    ProgramState.RUNNING: frozenset(state for state in ProgramState if state.ended),
}
"""Legal transitions; ended states are final."""


_MAX_EARLY_LOG = 256


class GuestSpent:
    """The resources that a sandboxed program has used, set at its end or soon after; None for other
    programs. ``memory_bytes``: its peak memory, if the sandbox can measure it."""

    def __init__(self) -> None:
        self.cpu_s: float | None = None
        self.memory_bytes: int | None = None


class RunningProgram:
    """Handle of one launched program. Every method may be called from any thread or loop."""

    def __init__(
        self, program: ProgramId, name: str, mailbox: Mailbox, request_cancel: Callable[[str], None]
    ) -> None:
        self.id = program
        self.name = name
        self._mailbox = mailbox
        self._request_cancel = request_cancel
        self._lock = threading.Lock()
        self._state = ProgramState.STARTING
        self._has_outcome = False
        self._result: Any = None
        self._error: QuireError | None = None
        self._waiters = Waiters()
        self._when_done: list[Callable[[RunningProgram], object]] = []
        self._followers: tuple[Callable[[], object], ...] = ()
        self._on_log: LogListener | None = None
        self._early_log: list[tuple[str, str, Mapping[str, Any]]] | None = None
        self.unobserved_failures: tuple[ErrorRecord, ...] = ()
        self.leaked_tasks: tuple[str, ...] = ()
        self.spent = GuestSpent()

    @property
    def state(self) -> ProgramState:
        return self._state

    @property
    def error(self) -> QuireError | None:
        """Why the program did not finish; ``None`` while it runs and if it finished."""
        return self._error

    async def result(self) -> Any:
        """The return value of ``main``: a string or another JSON value.

        Cancelling the wait does not cancel the program.

        Raises:
            ProgramFailed: the program raised; the message includes its traceback.
            ProgramCancelled: its owner cancelled it.
            ProgramTerminated: the node ended it (or the node's own error, such as QuotaExceeded).
        """
        while not self._has_outcome:
            with self._lock:
                if self._has_outcome:
                    break
                future = self._waiters.add()
            await future
        return self.outcome()

    @property
    def has_outcome(self) -> bool:
        """Whether it has ended: its result or error is set, and it sends no further messages."""
        return self._has_outcome

    def outcome(self) -> Any:
        """The result of an ended program; raises its error, as ``result`` does."""
        assert self._has_outcome, "the program has not ended"
        if self._error is not None:
            raise self._error
        return self._result

    def cancel(self, reason: str = "cancelled by its owner") -> None:
        """Ask the program to end. ``result()`` returns when it has. Idempotent, in every state."""
        if not self._state.ended:
            self._request_cancel(reason)

    def send(self, message: str) -> SentMessage:
        """Send a message to the program's ``receive``; see ``Channel.send`` for back-pressure."""
        return self._mailbox.to_program.send(message)

    async def receive(self) -> str:
        """The program's next message; ``MailboxClosed`` after its last."""
        return await self._mailbox.to_client.receive()

    def messages(self) -> AsyncIterator[str]:
        """The program's messages until it ends."""
        return aiter(self._mailbox.to_client)

    def follow(self, on_news: Callable[[], object]) -> None:
        """Call ``on_news``, on any thread, whenever ``take`` has a new message, and when the
        program has its outcome. For one reader of many programs, instead of ``receive``."""
        self._mailbox.to_client.listen(on_news)
        with self._lock:
            if not self._has_outcome:
                self._followers = (*self._followers, on_news)
                return
        on_news()

    def take(self) -> str | None:
        """The program's next message; ``None`` if there is none now."""
        return self._mailbox.to_client.take()

    def close_input(self) -> None:
        """End the client's messages: after the last one the program's ``receive`` raises
        ``MailboxClosed``."""
        self._mailbox.to_program.close("the client has closed its side")

    def add_done_callback(self, callback: Callable[[RunningProgram], object]) -> None:
        """Call ``callback(self)`` once when the program has ended, on the runtime's thread; at once
        if it has already ended. It must not raise."""
        with self._lock:
            if not self._has_outcome:
                self._when_done.append(callback)
                return
        callback(self)

    def listen_log(self, listener: LogListener) -> None:
        """Call ``listener`` for log entries and prints of the program, on the runtime's thread.

        Prints can be attributed only by a runtime that runs each program separately. Earlier
        entries are passed to the listener at once.
        """
        with self._lock:
            self._on_log = listener
            early, self._early_log = self._early_log, None
        for level, text, fields in early or ():
            listener(level, text, fields)

    def log(self, level: str, text: str, fields: Mapping[str, Any] | None = None) -> None:
        """Pass on a text that the program has logged or printed; called by the runtime."""
        with self._lock:
            listener = self._on_log
            if listener is None:
                early = self._early_log = self._early_log or []
                early.append((level, text, fields or {}))
                del early[:-_MAX_EARLY_LOG]
        if listener is not None:
            listener(level, text, fields or {})

    def advance(
        self, state: ProgramState, *, result: Any = None, error: QuireError | None = None
    ) -> None:
        """Change the state; called by the runtime, and the only way to do so. An ended state needs
        a result or an error."""
        with self._lock:
            assert state in _NEXT.get(self._state, ()), f"{self._state} -> {state}"
            assert not state.ended or (error is None) == (state is ProgramState.FINISHED)
            self._state = state
        if not state.ended:
            return
        self._request_cancel = _nothing_to_cancel
        self._mailbox.close(f"the program has {_PAST[state]}")
        with self._lock:
            self._result, self._error, self._has_outcome = result, error, True
            when_done, self._when_done = self._when_done, []
            followers, self._followers = self._followers, ()
            self._waiters.wake()
        for callback in when_done:
            callback(self)
        for on_news in followers:
            on_news()


def _nothing_to_cancel(reason: str) -> None:
    """Do nothing. Used after the end, so that a kept handle does not keep the execution alive."""


_PAST = {
    ProgramState.FINISHED: "finished",
    ProgramState.FAILED: "failed",
    ProgramState.CANCELLED: "been cancelled",
    ProgramState.TERMINATED: "been ended by the node",
}


class Runtime(Protocol):
    """Runs programs: the native runtime, or a sandbox.

    ``launch`` returns at once; the runtime then owns the port and closes it when the program has
    ended in any way. How a runtime is closed is not part of the Protocol: a runtime with a thread
    has a blocking call, one on a loop an awaitable call.
    """

    def launch(
        self,
        inferlet: Inferlet,
        args: Sequence[str],
        connect: Connect,
        named: Mapping[str, str] = NO_NAMES,
    ) -> RunningProgram: ...
