"""Runs grammars outside of the engine's process: see ``grammar_process``.

Owns the processes of one vocabulary: the template process, which the first grammar starts, and
forks of it with one grammar each. Sequences with the same grammar share its processes, up to a few
in each; recently used grammars stay compiled. Does not know the grammar library.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from quire.core.decoding import GrammarSpec
from quire.core.errors import CapacityError, GrammarError, QuireError
from quire.engine.sampling.grammar_limits import GrammarLimits
from quire.engine.sampling.grammar_link import (
    Compile,
    Fork,
    GrammarAdvanced,
    GrammarFailed,
    Link,
    Try,
)
from quire.engine.sampling.grammar_matchers import (
    ConfinedMatcher,
    HostProcess,
    too_expensive_to_try,
)

MAX_SEQUENCES = 8
"""Sequences in one process. More would wait for one another, and all end when one exceeds a
limit."""

MAX_IDLE = 16
"""Processes that keep a grammar compiled for future sequences; about 10 MB each."""

_PROCESS = "quire.engine.sampling.grammar_process"


class FirstProcess:
    """The process with the vocabulary, from which all others are forked. Thread-safe.

    ``source`` and ``vocab_size``: the model's directory and number of ids, else a token for each
    byte. The process ends when this object is garbage collected.
    """

    def __init__(self, limits: GrammarLimits, source: str | None, vocab_size: int) -> None:
        figures = (limits.compile_s, limits.step_s, limits.replay_s, limits.memory_bytes)
        model = () if source is None else (source, vocab_size)
        self._command = (sys.executable, "-P", "-m", _PROCESS, *map(str, (*figures, *model)))
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self._end: Callable[[], object] | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The process id, or None if it is not running."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it in advance, so that the first fork need not wait. Idempotent.

        Raises:
            CapacityError: see ``fork``.
        """
        with self._lock:
            if self._link is None:
                self._begin()

    def fork(self) -> Link:
        """A link to a new process without a grammar. Returns before the process runs.

        Raises:
            CapacityError: the system cannot create another process or socket.
        """
        with self._lock:
            if self._link is not None:
                with suppress(OSError):  # the process has ended: start another
                    return _fork(self._link)
                self._stop()
            link = self._begin()
            try:
                return _fork(link)
            except OSError as exc:
                raise _no_process(exc) from exc

    def close(self) -> None:
        """Stop the process. Idempotent."""
        with self._lock:
            self._stop()

    def _begin(self) -> Link:
        with ExitStack() as undoing:
            try:
                ours, theirs = map(undoing.enter_context, socket.socketpair())
                self._process = subprocess.Popen(
                    self._command,
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,  # a terminal's Ctrl-C must not end it
                )
            except OSError as exc:
                raise _no_process(exc) from exc
            self._link = Link(ours)  # which takes its descriptor
        self._end = weakref.finalize(self, _end_process, self._process, self._link)
        return self._link

    def _stop(self) -> None:
        if self._end is not None:
            self._end()
        self._link = self._end = self._process = None


class GrammarHosts:
    """The processes that compile and match grammars. Must be closed. ``try_out`` is thread-safe,
    the other methods are for one thread; arguments as for ``FirstProcess``."""

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
        """The id of the first process, or None if it is not running."""
        return self._first.pid

    def start(self) -> None:
        """Start the first process in advance, so that the first grammar need not wait for it."""
        self._first.start()

    def open(self, grammar: GrammarSpec, tokens: Sequence[int] = ()) -> ConfinedMatcher:
        """A matcher for the output after ``tokens``. Returns while the grammar is being compiled;
        the matcher raises its errors."""
        self._forget_ended()
        host = self._with_room(grammar)
        if host is None:
            host = self._start(grammar)
            self._hosts[host] = grammar
        self._hosts.move_to_end(host)
        return ConfinedMatcher(host, tokens)

    def advance(self, matchers: Sequence[ConfinedMatcher], tokens: Sequence[int]) -> None:
        """Advance each matcher by its token; the processes work in parallel when this returns."""
        by_host: dict[HostProcess, list[int]] = defaultdict(list)
        for place, matcher in enumerate(matchers):
            by_host[matcher.host].append(place)
        for host, places in by_host.items():
            host.advance([matchers[i] for i in places], [tokens[i] for i in places])

    def try_out(self, grammar: GrammarSpec, num_tokens: int) -> None:
        """Compile ``grammar``, and take up to ``num_tokens`` steps through it. Blocks.

        Raises:
            GrammarError: it is invalid or exceeds the limits.
            CapacityError: the system cannot create another process.
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
        if isinstance(finished, GrammarFailed):
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
        with suppress(OSError):  # the receiver notices that it has ended
            link.send(Compile(grammar))
        return HostProcess(link, self._limits, self._part)

    def _part(self, ended: HostProcess) -> None:
        """Move each sequence of ``ended`` to a process of its own; the one that ended it will do so
        again. Where no process can be started, the sequence fails."""
        grammar = self._hosts.pop(ended)
        for matcher in ended.matchers:
            try:
                matcher.host = self._start(grammar)
            except QuireError as exc:
                matcher.error = exc
                continue
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


def _no_process(cause: OSError) -> CapacityError:
    return CapacityError(f"no process for the grammar can be started ({cause}): try again later")


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
