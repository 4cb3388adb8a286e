"""A program from launch to end, as its owner sees it; and the Protocol of what runs it.

Owns the program's state and result. Thread-safe: the owner (a server's loop, a test) and the
runtime (its own thread) both hold the same object. Must not know how the program is executed.
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
from quire.programs.services.mailbox import Mailbox, Sent
from quire.programs.services.waiting import Waiters

Connect = Callable[[ReplySink, asyncio.AbstractEventLoop], ProgramPort]
"""How a runtime gets a program's port: the node puts the program into its process table and returns
the port, whose replies it will deliver to the sink on that loop. Called in ``launch``'s thread."""


LogListener = Callable[[str, str, Mapping[str, Any]], object]
"""``listener(level, text, fields)``."""


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
"""Legal transitions; an end is final."""


_MAX_EARLY_LOG = 256


class GuestSpent:
    """What a sandboxed program has used of its sandbox, told at its end or soon after; of others
    nothing is told. ``memory_bytes``: the most that it had, if the sandbox can tell."""

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
        """Why the program did not finish; ``None`` while it runs and when it finished."""
        return self._error

    async def result(self) -> Any:
        """What ``main`` returned: a string or another JSON value.

        Cancelling the wait leaves the program running.

        Raises:
            ProgramFailed: the program raised; the message has its own traceback.
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
        """It has ended: its result or error is there, and no further message comes."""
        return self._has_outcome

    def outcome(self) -> Any:
        """The result of a program that has ended, or its error, as ``result`` tells them."""
        assert self._has_outcome, "it runs"
        if self._error is not None:
            raise self._error
        return self._result

    def cancel(self, reason: str = "cancelled by its owner") -> None:
        """Ask the program to end; idempotent, in every state. ``result()`` says when it has."""
        if not self._state.ended:
            self._request_cancel(reason)

    def send(self, message: str) -> Sent:
        """Send to the program (its ``receive``); see ``Channel.send`` for back-pressure."""
        return self._mailbox.to_program.send(message)

    async def receive(self) -> str:
        """The program's next message; ``MailboxClosed`` after its last."""
        return await self._mailbox.to_client.receive()

    def messages(self) -> AsyncIterator[str]:
        """The program's messages until it ends."""
        return aiter(self._mailbox.to_client)

    def follow(self, on_news: Callable[[], object]) -> None:
        """Call ``on_news``, in any thread, whenever there is something to ``take`` again, and when
        the program has its outcome: for one reader of many programs, instead of ``receive``."""
        self._mailbox.to_client.listen(on_news)
        with self._lock:
            if not self._has_outcome:
                self._followers = (*self._followers, on_news)
                return
        on_news()

    def take(self) -> str | None:
        """The program's next message; ``None``: there is none now."""
        return self._mailbox.to_client.take()

    def close_input(self) -> None:
        """The client will send no more: the program's ``receive`` ends with ``MailboxClosed``."""
        self._mailbox.to_program.close("the client has closed its side")

    def add_done_callback(self, callback: Callable[[RunningProgram], object]) -> None:
        """Call ``callback(self)`` once when the program has ended, on the runtime's thread; now if
        it has already. It must not raise."""
        with self._lock:
            if not self._has_outcome:
                self._when_done.append(callback)
                return
        callback(self)

    def listen_log(self, listener: LogListener) -> None:
        """Call ``listener`` for what the program logs or prints, on the runtime's thread.

        Only a runtime that runs each program by itself can tell whose prints they are. What came
        before is told at once.
        """
        with self._lock:
            self._on_log = listener
            early, self._early_log = self._early_log, None
        for level, text, fields in early or ():
            listener(level, text, fields)

    def log(self, level: str, text: str, fields: Mapping[str, Any] | None = None) -> None:
        """For the runtime: the program has logged or printed something."""
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
        """For the runtime: the only way a state changes. An end needs a result or an error."""
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
    """Of a program that has ended: its handle is kept, what ran it need not be."""


_PAST = {
    ProgramState.FINISHED: "finished",
    ProgramState.FAILED: "failed",
    ProgramState.CANCELLED: "been cancelled",
    ProgramState.TERMINATED: "been ended by the node",
}


class Runtime(Protocol):
    """What runs programs: the native runtime here, a sandbox elsewhere.

    ``launch`` returns at once; the runtime owns the port from then on and closes it when the
    program has ended, in whatever way. How a runtime itself ends is its own: one with a thread is
    closed by a call that blocks, one on a loop by one that is awaited.
    """

    def launch(
        self,
        inferlet: Inferlet,
        args: Sequence[str],
        connect: Connect,
        named: Mapping[str, str] = NO_NAMES,
    ) -> RunningProgram: ...

    def programs(self) -> list[RunningProgram]:
        """Those that have not ended."""
        ...
