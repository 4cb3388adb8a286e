"""A process that holds one grammar: ``python -m quire.engine.sampling.grammar_process``.

The first one has a vocabulary and no grammar, and is forked for each grammar. Owns the limits: the
processor time of each library call and the memory of a fork are bounded. If either is exceeded, the
kernel ends the process without affecting others. Ends when its socket, which is standard input,
closes.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from quire.core.decoding import GrammarSpec
from quire.core.errors import GrammarError
from quire.engine.sampling.grammar import (
    GrammarCompiler,
    GrammarMatcher,
    Vocabulary,
)
from quire.engine.sampling.grammar_limits import GrammarLimits
from quire.engine.sampling.grammar_link import (
    Advance,
    Close,
    Compile,
    Fork,
    GrammarAdvanced,
    GrammarFailed,
    Link,
    Masks,
    Open,
    Request,
    Try,
)
from quire.engine.tokenizer import load_tokenizer


class GrammarHost:
    """Answers one link until it closes."""

    def __init__(self, link: Link, compiler: GrammarCompiler, limits: GrammarLimits) -> None:
        self._link = link
        self._compiler = compiler
        self._limits = limits
        self._compiled: GrammarMatcher | GrammarFailed = GrammarFailed("no grammar was given")
        self._sequences: dict[int, GrammarMatcher | GrammarFailed] = {}
        """The matcher of each sequence, or the ``GrammarFailed`` that explains why there is
        none."""

    def serve(self) -> None:
        while (asked := self._link.request()) is not None:
            request, descriptors = asked
            if isinstance(request, Fork):
                self._fork(descriptors[0])
            else:
                self._answer(request)

    def _fork(self, descriptor: int) -> None:
        try:
            is_parent = os.fork() > 0
        except OSError:  # no further process: the requester sees its link close
            is_parent = True
        if is_parent:
            os.close(descriptor)
            return
        self._link.close()
        confine(self._limits.memory_bytes)
        link = Link(socket.socket(fileno=descriptor))
        GrammarHost(link, self._compiler, self._limits).serve()
        os._exit(0)

    def _answer(self, request: Request) -> None:
        match request:
            case Compile(grammar=grammar):
                self._compile(grammar)
            case Open(sequence=sequence, tokens=tokens):
                self._sequences[sequence] = self._begun()
                self._advance([sequence], [tokens], self._limits.replay_s)
            case Advance(sequences=sequences, tokens=tokens):
                self._advance(sequences, [[token] for token in tokens], self._limits.step_s)
            case Close(sequence=sequence):
                del self._sequences[sequence]
            case Try(num_tokens=num_tokens):
                self._sequences[0] = self._begun()
                self._link.send(GrammarAdvanced([self._tried(num_tokens)]))

    def _compile(self, grammar: GrammarSpec) -> None:
        try:
            with spending(self._limits.compile_s):
                self._compiled = self._compiler.compile(grammar)
        except GrammarError as exc:
            self._compiled = GrammarFailed(exc.message)

    def _begun(self) -> GrammarMatcher | GrammarFailed:
        compiled = self._compiled
        return compiled if isinstance(compiled, GrammarFailed) else compiled.fork()

    def _advance(
        self, sequences: Sequence[int], tokens: Sequence[Sequence[int]], limit_s: float
    ) -> None:
        """``limit_s``: for the tokens of each sequence together."""
        consumed = [self._consumed(*one, limit_s) for one in zip(sequences, tokens, strict=True)]
        self._link.send(GrammarAdvanced(consumed))
        self._link.send(Masks(list(map(self._mask, sequences))))

    def _consumed(
        self, sequence: int, tokens: Sequence[int], limit_s: float
    ) -> bool | GrammarFailed:
        matcher = self._sequences[sequence]
        if isinstance(matcher, GrammarFailed):
            return matcher
        try:
            with spending(limit_s):
                for token in tokens:
                    matcher.consume(token)
        except GrammarError as exc:
            failed = self._sequences[sequence] = GrammarFailed(exc.message)
            return failed
        return matcher.finished

    def _mask(self, sequence: int) -> bytes | GrammarFailed:
        matcher = self._sequences[sequence]
        if isinstance(matcher, GrammarFailed):
            return matcher
        try:
            with spending(self._limits.step_s):
                return matcher.mask()
        except GrammarError as exc:
            failed = self._sequences[sequence] = GrammarFailed(exc.message)
            return failed

    def _tried(self, num_tokens: int) -> bool | GrammarFailed:
        finished: bool | GrammarFailed = False
        for _ in range(num_tokens):
            mask = self._mask(0)
            if isinstance(mask, GrammarFailed):
                return mask
            token = _last_allowed(mask)
            if token is None or finished:
                break
            finished = self._consumed(0, [token], self._limits.step_s)
        return finished


@contextmanager
def spending(limit_s: float) -> Iterator[None]:
    """Ends this process when the body takes more processor time: SIGPROF has no handler."""
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def confine(memory_bytes: int) -> None:
    """Limit the growth of address space, and disable core files and crash messages."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    os.close(silence)


def _last_allowed(mask: bytes) -> int | None:
    """The highest allowed id: usually letters and open classes rather than closing brackets, so
    that a trial gets further."""
    for index in range(len(mask) - 1, -1, -1):
        if mask[index]:
            return index * 8 + mask[index].bit_length() - 1
    return None


def main() -> None:
    """Arguments: the limits, and for a model's vocabulary its directory and number of ids."""
    compile_s, step_s, replay_s, memory_bytes, *model = sys.argv[1:]
    times = (float(compile_s), float(step_s), float(replay_s))
    limits = GrammarLimits(*times, int(memory_bytes))
    vocabulary = Vocabulary(load_tokenizer(model[0]), int(model[1])) if model else Vocabulary()
    compiler = GrammarCompiler(vocabulary)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the parent may have set it to be ignored
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the exit status of forks is not collected
    gc.freeze()
    GrammarHost(Link(socket.socket(fileno=0)), compiler, limits).serve()


if __name__ == "__main__":
    main()
