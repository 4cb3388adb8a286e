"""Sequences whose grammars run in other processes, and those processes as seen from the engine.

Owns the assignment of sequences to processes, and the recovery of the others when one sequence ends
its process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from quire.core.errors import GrammarError, QuireError
from quire.engine.sampling.grammar_limits import GrammarLimits
from quire.engine.sampling.grammar_link import (
    Advance,
    Close,
    GrammarAdvanced,
    GrammarFailed,
    Link,
    Open,
)

MAX_DUE = 8
"""The most requests to one process whose answers are not read. An unread answer waits in the
socket, and a process that cannot write its answer reads no further request: who waited for it with
a request would wait for ever."""

_MANY_TOKENS = 1024
"""A request with so many is sent when nothing else is due: it may be larger than the socket's
buffer."""


class ConfinedMatcher:
    """The state of one sequence's constraint. Must be closed.

    After each token, call ``settle``, then ``mask``; the process works in between, in parallel with
    others. ``settle`` and ``mask`` raise ``GrammarError`` once the grammar cannot be followed, or
    ``CapacityError`` where its process had to be replaced and could not be.
    """

    __slots__ = ("allowed", "error", "finished", "host", "num_asked", "tokens")

    def __init__(self, host: HostProcess, tokens: Sequence[int]) -> None:
        self.host = host
        self.tokens = list(tokens)
        self.num_asked = 0
        self.finished: bool | None = None
        self.allowed: bytes | None = None
        self.error: QuireError | None = None
        host.open(self)

    def settle(self) -> bool:
        """Whether nothing can follow the output so far."""
        while self.finished is None and self.error is None:
            self.host.hear()
        if self.error is not None:
            raise self.error
        assert self.finished is not None
        return self.finished

    def mask(self) -> bytes:
        """The tokens that may come next as a bit mask, token 0 in the lowest bit."""
        while self.allowed is None and self.error is None:
            self.host.hear()
        if self.error is not None:
            raise self.error
        assert self.allowed is not None
        return self.allowed

    def note(self, answer: bool | bytes) -> None:
        """Store the process's answer about the output so far."""
        if isinstance(answer, bytes):
            self.allowed = answer
        else:
            self.finished = answer

    def close(self) -> None:
        """Release it. Idempotent."""
        self.host.drop(self)


class HostProcess:
    """A process with one grammar and the sequences that follow it.

    ``on_end`` is called when it has ended with sequences of which it is unknown which one has ended
    it, or that have not: each moves to a process of its own.
    """

    def __init__(
        self, link: Link, limits: GrammarLimits, on_end: Callable[[HostProcess], None]
    ) -> None:
        self._link = link
        self._limits = limits
        self._on_end = on_end
        self._next = 0
        self._numbers: dict[ConfinedMatcher, int] = {}
        self._due: deque[list[tuple[ConfinedMatcher, int]]] = deque()
        """For each pending request: its matchers, each with the number of its request."""
        self._compiled = False
        self.ended = False

    @property
    def matchers(self) -> list[ConfinedMatcher]:
        return list(self._numbers)

    def open(self, matcher: ConfinedMatcher) -> None:
        number = self._numbers[matcher] = self._next
        self._next += 1
        self._ask(Open(number, matcher.tokens), [matcher])

    def advance(self, matchers: Sequence[ConfinedMatcher], tokens: Sequence[int]) -> None:
        """Advance ``matchers``, all in this process, each by its token."""
        for matcher, token in zip(matchers, tokens, strict=True):
            matcher.tokens.append(token)
        numbers = [self._numbers[matcher] for matcher in matchers]
        self._ask(Advance(numbers, list(tokens)), matchers)

    def drop(self, matcher: ConfinedMatcher) -> None:
        number = self._numbers.pop(matcher, None)
        if number is not None:
            with suppress(OSError):  # the process has ended, and the sequence with it
                self._link.send(Close(number))

    def hear(self) -> None:
        """Wait for the next answer, and store it in its matchers."""
        try:
            answer = self._link.answer()
        except EOFError:
            self._end()
            return
        self._compiled = True
        values: Sequence[bool | bytes | GrammarFailed]
        values = answer.finished if isinstance(answer, GrammarAdvanced) else answer.allowed
        for (matcher, number), value in zip(self._due[0], values, strict=True):
            if isinstance(value, GrammarFailed):
                matcher.error = GrammarError(value.message)
            elif number == matcher.num_asked:  # otherwise the answer is outdated
                matcher.note(value)
        if not isinstance(answer, GrammarAdvanced):
            self._due.popleft()

    def close(self) -> None:
        """End the process, even if it has sequences. Idempotent."""
        self.ended = True
        self._link.close()

    def _ask(self, request: Open | Advance, matchers: Sequence[ConfinedMatcher]) -> None:
        most = 0 if len(request.tokens) > _MANY_TOKENS else MAX_DUE - 1
        while len(self._due) > most and not self.ended:
            self.hear()
        if self.ended:  # its sequences have moved, or have their errors
            return
        for matcher in matchers:
            matcher.finished = matcher.allowed = None
            matcher.num_asked += 1
        with suppress(OSError):  # it has ended, which the next read reports
            self._link.send(request)
        self._due.append([(matcher, matcher.num_asked) for matcher in matchers])

    def _end(self) -> None:
        self.close()
        asking = {matcher for matcher, _ in self._due[0]} if self._due else set()
        if self._compiled and (len(self._numbers) > 1 or not asking & self._numbers.keys()):
            self._on_end(self)
            return
        for matcher in self._numbers:
            matcher.error = too_expensive(self._limits, compiling=not self._compiled)


def too_expensive(limits: GrammarLimits, *, compiling: bool) -> GrammarError:
    """The error for a grammar whose process the kernel has ended."""
    memory = f"{limits.memory_bytes >> 20} MiB of memory"
    if compiling:
        return GrammarError(
            f"the grammar takes more than {limits.compile_s:g} s of processor time or {memory} to "
            f"compile, or {limits.replay_s:g} s for what was generated before: make it simpler"
        )
    return GrammarError(
        f"the grammar takes more than {1000 * limits.step_s:g} ms of processor time for one token, "
        f"{limits.replay_s:g} s for what was generated before, or {memory}: make it less ambiguous"
    )


def too_expensive_to_try(limits: GrammarLimits) -> GrammarError:
    """Like ``too_expensive``, for a grammar that was compiled and tried in one request."""
    return GrammarError(
        f"the grammar takes more than {limits.compile_s:g} s of processor time to compile, "
        f"{1000 * limits.step_s:g} ms for one token, or {limits.memory_bytes >> 20} MiB of memory: "
        "make it simpler"
    )
