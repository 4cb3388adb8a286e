"""Grammars at work outside the process that asks for them: see ``grammar_process``.

Owns the processes of one vocabulary: the first, which the first grammar starts, and those with a
grammar each. Sequences of one grammar share its processes, a few in each; the grammars used last
stay compiled. Knows nothing of the library.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress

from quire.core.decoding import GrammarSpec
from quire.core.errors import GrammarError
from quire.engine.sampling.grammar_limits import GrammarLimits
from quire.engine.sampling.grammar_link import Compile, Failed, Fork, GrammarAdvanced, Link, Try
from quire.engine.sampling.grammar_matchers import (
    ConfinedMatcher,
    HostProcess,
    too_expensive_to_try,
)

MAX_SEQUENCES = 8
"""In one process: more would take turns for long, and end together when one ends it."""

MAX_IDLE = 16
"""Processes that keep a grammar compiled for sequences to come; some 10 MB each."""

_PROCESS = "quire.engine.sampling.grammar_process"


class FirstProcess:
    """The process with the vocabulary, from which all others are forked. For any thread.

    ``source`` and ``vocab_size``: the model's directory and number of ids, else a token for each
    byte. One that is forgotten ends its process.
    """

    def __init__(self, limits: GrammarLimits, source: str | None, vocab_size: int) -> None:
        figures = (limits.compile_s, limits.step_s, limits.memory_bytes)
        model = () if source is None else (source, vocab_size)
        self._command = (sys.executable, "-P", "-m", _PROCESS, *map(str, (*figures, *model)))
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self._end: Callable[[], object] | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """While there is one."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Now, so that the first fork has not to wait. Idempotent.

        Raises:
            GrammarError: see ``fork``.
        """
        with self._lock:
            if self._link is None:
                self._begin()

    def fork(self) -> Link:
        """To a process without a grammar. It returns before that process is there.

        Raises:
            GrammarError: the system gives no further process or socket.
        """
        with self._lock:
            if self._link is not None:
                with suppress(OSError):  # something ended it: another takes its place
                    return _fork(self._link)
                self._stop()
            link = self._begin()
            try:
                return _fork(link)
            except OSError as exc:
                raise _no_process(exc) from exc

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            self._stop()

    def _begin(self) -> Link:
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,  # a terminal's Ctrl-C is not for it
                )
        except OSError as exc:
            raise _no_process(exc) from exc
        self._link = Link(ours)
        self._end = weakref.finalize(self, _end_process, self._process, self._link)
        return self._link

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._link = self._end = self._process = None


class GrammarHosts:
    """``close`` it. ``try_out`` is for any thread, all else for one; arguments as for
    ``FirstProcess``."""

    def __init__(
        self,
        source: str | None = None,
        vocab_size: int = 0,
        limits: GrammarLimits | None = None,
    ) -> None:
        self._limits = limits or GrammarLimits()
        self._first = FirstProcess(self._limits, source, vocab_size)
        self._hosts: OrderedDict[HostProcess, GrammarSpec] = OrderedDict()
        self._alone: dict[HostProcess, GrammarSpec] = {}

    @property
    def pid(self) -> int | None:
        """Of the first process, while there is one."""
        return self._first.pid

    def start(self) -> None:
        """Start the first process now, so that the first grammar has not to wait for it."""
        self._first.start()

    def open(self, grammar: GrammarSpec, tokens: Sequence[int] = ()) -> ConfinedMatcher:
        """A matcher behind ``tokens``. It returns while the grammar is being compiled: what is
        wrong with it is raised by the matcher."""
        self._forget_ended()
        host = self._with_room(grammar)
        if host is None:
            host = self._start(grammar)
            self._hosts[host] = grammar
        self._hosts.move_to_end(host)
        return ConfinedMatcher(host, tokens)

    def advance(self, matchers: Sequence[ConfinedMatcher], tokens: Sequence[int]) -> None:
        """Each goes on with its token; all are at work when this returns."""
        by_host: dict[HostProcess, list[int]] = defaultdict(list)
        for place, matcher in enumerate(matchers):
            by_host[matcher.host].append(place)
        for host, places in by_host.items():
            host.advance([matchers[i] for i in places], [tokens[i] for i in places])

    def try_out(self, grammar: GrammarSpec, num_tokens: int) -> None:
        """Compile ``grammar``, and take up to ``num_tokens`` steps through it. Blocks.

        Raises:
            GrammarError: it cannot be used within the limits, or at all.
        """
        link = self._first.fork()
        try:
            link.send(Compile(grammar))
            link.send(Try(num_tokens))
            answer = link.answer()
        except (EOFError, OSError) as exc:
            raise too_expensive_to_try(self._limits) from exc
        finally:
            link.close()
        assert isinstance(answer, GrammarAdvanced)
        (finished,) = answer.finished
        if isinstance(finished, Failed):
            raise GrammarError(finished.message)

    def close(self) -> None:
        """End all processes. Idempotent."""
        for host in (*self._hosts, *self._alone):
            host.close()
        self._hosts.clear()
        self._alone.clear()
        self._first.close()

    def _with_room(self, grammar: GrammarSpec) -> HostProcess | None:
        if grammar in self._alone.values():
            return None
        return next(
            (
                host
                for host, has in self._hosts.items()
                if has == grammar and len(host.matchers) < MAX_SEQUENCES
            ),
            None,
        )

    def _start(self, grammar: GrammarSpec) -> HostProcess:
        link = self._first.fork()
        with suppress(OSError):  # its end is seen by who hears
            link.send(Compile(grammar))
        return HostProcess(link, self._limits, self._part)

    def _part(self, ended: HostProcess) -> None:
        """Each sequence of ``ended`` goes on alone: the one that ended it does so again."""
        grammar = self._hosts.pop(ended)
        for matcher in ended.matchers:
            matcher.host = self._start(grammar)
            self._alone[matcher.host] = grammar
            matcher.host.open(matcher)

    def _forget_ended(self) -> None:
        for host in [host for host in self._alone if host.ended or not host.matchers]:
            host.close()
            del self._alone[host]
        for host in [host for host in self._hosts if host.ended]:
            del self._hosts[host]
        idle = [host for host in self._hosts if not host.matchers]
        for host in idle[: max(0, len(idle) - MAX_IDLE)]:
            host.close()
            del self._hosts[host]


def _no_process(cause: OSError) -> GrammarError:
    return GrammarError(f"no process for the grammar can be started ({cause}): try again later")


def _fork(parent: Link) -> Link:
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            parent.send(Fork(), [theirs.fileno()])
        except OSError:
            ours.close()
            raise
    return Link(ours)


def _end_process(process: subprocess.Popen[bytes], link: Link) -> None:
    process.kill()
    link.close()
    process.wait()
