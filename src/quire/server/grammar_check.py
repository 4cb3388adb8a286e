"""Compiles grammars, regexes and schemas outside the engine before a request may carry them.

Owns a few reused worker processes with a memory limit, and kills the one that exceeds the time
limit. A bad grammar is a ``GrammarError`` for its request and touches nobody else: the engine only
ever compiles what has already been compiled here.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from quire.core.decoding import GrammarSpec
from quire.core.errors import GrammarError
from quire.server.endless_schema import endless_reference

logger = logging.getLogger(__name__)

MAX_SOURCE_BYTES = 256 << 10
_WORKER = Path(__file__).with_name("grammar_worker.py")
_MAX_KNOWN = 1024
_NOTHING_FITS = "NoExtensionBias"
"""llguidance's name for a grammar that lets nothing follow."""

_NOT_ENFORCED = "Unimplemented keys"
"""How it begins to say that a schema has keywords which it knows and cannot enforce."""


class _WorkerDied(Exception):
    """It gave no answer: the grammar was too much for it, or something ended it."""


class GrammarChecker:
    """Answers "does this grammar compile within the limits?" for many requests at a time.

    ``timeout_s`` bounds one compilation, ``max_memory_bytes`` the address space of a worker,
    ``num_workers`` how many compile at once; further ones wait their turn. Grammars that passed are
    remembered by digest, so that a repeated schema costs no visit.
    """

    def __init__(
        self, *, timeout_s: float = 3.0, max_memory_bytes: int = 1 << 30, num_workers: int = 2
    ) -> None:
        self._timeout_s = timeout_s
        self._max_memory_bytes = max_memory_bytes
        self._slots = asyncio.Semaphore(num_workers)
        self._idle: list[Process] = []
        self._passed: OrderedDict[bytes, None] = OrderedDict()
        self._closed = False

    async def check(self, grammar: GrammarSpec, *, param: str) -> None:
        """Return if ``grammar`` compiles. ``param`` is the request's field, for the message.

        Raises:
            GrammarError: it does not, or not within the time and memory limits.
        """
        digest = hashlib.sha256(f"{grammar.kind}\0{grammar.source}".encode()).digest()
        if digest in self._passed:
            self._passed.move_to_end(digest)
            return
        if len(grammar.source.encode()) > MAX_SOURCE_BYTES:
            raise GrammarError(
                f"{param}: the {grammar.kind} is longer than {MAX_SOURCE_BYTES} bytes", param=param
            )
        async with self._slots:
            error = await self._compile(grammar)
        if error is not None:
            raise GrammarError(
                f"{param}: the {grammar.kind} does not compile: {_explained(error, grammar)}",
                param=param,
            )
        self._passed[digest] = None
        while len(self._passed) > _MAX_KNOWN:
            self._passed.popitem(last=False)

    async def _compile(self, grammar: GrammarSpec) -> str | None:
        """The compiler's message, or None if it compiled."""
        if self._idle:
            with suppress(_WorkerDied):  # perhaps while nobody looked: a fresh one tells
                return await self._ask(self._idle.pop(), grammar)
        try:
            return await self._ask(await self._start(), grammar)
        except _WorkerDied:
            limit_mib = self._max_memory_bytes >> 20
            return f"it needs more than {limit_mib} MiB of memory to compile: make it simpler"

    async def _start(self) -> Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            str(_WORKER),
            str(self._max_memory_bytes),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
        )

    async def _ask(self, worker: Process, grammar: GrammarSpec) -> str | None:
        """The worker's answer; one that has not answered in time is killed.

        Raises:
            _WorkerDied: it gave none.
        """
        finished = False
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await _answer(worker, grammar)
            finished = True
        except TimeoutError:
            return f"it takes longer than {self._timeout_s:g} s to compile: make it simpler"
        finally:
            if finished and not self._closed:
                self._idle.append(worker)
            else:
                await _kill(worker)
        error: str | None = json.loads(answer)["error"]
        return error

    async def close(self) -> None:
        """Kill the workers. Idempotent."""
        self._closed = True
        while self._idle:
            await _kill(self._idle.pop())


def _explained(error: str, grammar: GrammarSpec) -> str:
    """The compiler's message, or what it means where the compiler has only a name for it."""
    if (reference := endless_reference(grammar)) is not None:
        return f"the schema refers to itself without end ({reference})"
    if error.startswith(_NOTHING_FITS):
        return "no text can match it"
    if error.startswith(_NOT_ENFORCED):
        return f"{error}: answers cannot be held to them, leave them out"
    return error


async def _answer(worker: Process, grammar: GrammarSpec) -> bytes:
    assert worker.stdin is not None
    assert worker.stdout is not None
    question = {"kind": grammar.kind, "source": grammar.source}
    try:
        worker.stdin.write(json.dumps(question).encode() + b"\n")
        await worker.stdin.drain()
        if line := await worker.stdout.readline():
            return line
    except ConnectionError:
        pass
    logger.warning("a grammar worker died before it answered for a %s", grammar.kind)
    raise _WorkerDied


async def _kill(worker: Process) -> None:
    if worker.returncode is None:
        worker.kill()
    await worker.wait()


__all__ = ["MAX_SOURCE_BYTES", "GrammarChecker"]
