"""Compiles and tries every grammar in a process with limits, before control receives the command,
so that every grammar that reaches an engine is known to be usable.

Owns the processes, the turns that tenants take, and the known results. Control receives the command
unchanged, or refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec

from quire.core.commands import Command, Decode
from quire.core.decoding import GrammarSpec
from quire.core.errors import (
    Draining,
    EngineFault,
    ErrorRecord,
    GrammarError,
    QuireError,
    from_record,
)
from quire.core.ids import TenantId
from quire.engine.sampling.grammar_hosts import GrammarHosts
from quire.engine.sampling.grammar_limits import GrammarLimits
from quire.node.grammars.turns import TenantTurns, work_off
from quire.node.grammars.words import in_our_words
from quire.node.loops import call_on

logger = logging.getLogger(__name__)

NUM_WORKERS = 2
"""Grammars that are checked at the same time, at most one of each tenant."""

MAX_WAITING = 256
"""Grammars of one tenant that may wait."""

NUM_TRIAL_TOKENS = 32
"""Tokens for which a grammar is tried: some compile quickly and explode in their first steps."""

LIMITS = GrammarLimits(compile_s=0.25, step_s=0.05)
"""Half of an engine's limits, whose vocabulary is larger: a grammar that passes here passes
there."""

_MAX_KNOWN = 1024


@dataclass(frozen=True, slots=True)
class GrammarCheck:
    """The result of a check. ``refusal``: why the grammar cannot be used."""

    refusal: ErrorRecord | None = None


_GOOD = GrammarCheck()

Done = Callable[[GrammarCheck], None]


class GrammarTrial(Protocol):
    """``GrammarHosts``, or a stand-in of tests. The ``GrammarError`` for a grammar whose process
    has ended without an answer has the ``EOFError`` or ``OSError`` as its cause."""

    def try_out(self, grammar: GrammarSpec, num_tokens: int) -> None: ...
    def close(self) -> None: ...


class GrammarChecker:
    """Checks grammars, for any thread; ``close`` blocks until the processes have ended."""

    def __init__(self, trial: GrammarTrial | None = None) -> None:
        self._trial = trial or GrammarHosts(limits=LIMITS)
        self._turns: TenantTurns[GrammarSpec] = TenantTurns(
            max(1, NUM_WORKERS - 1), MAX_WAITING, "grammars"
        )
        self._asking: dict[tuple[TenantId, bytes], list[Done]] = {}
        """Who waits for each grammar of a tenant: it is checked once for all of them."""
        self._known: OrderedDict[bytes, GrammarCheck] = OrderedDict()
        self._died: OrderedDict[bytes, None] = OrderedDict()
        """Grammars whose process has ended without an answer once."""
        self._pool = ThreadPoolExecutor(NUM_WORKERS, thread_name_prefix="quire-grammars")
        self._lock = threading.Lock()
        self._closed = False

    async def check(self, tenant: TenantId, grammar: GrammarSpec) -> None:
        """Check ``grammar`` and return when it is known to be usable.

        Raises:
            GrammarError: it cannot be used within the limits of time and memory.
            CapacityError: the system starts no process now.
            QuotaExceeded: too many grammars of the tenant wait already.
        """
        known = self.known(grammar)
        if known is None:
            loop = asyncio.get_running_loop()
            found: asyncio.Future[GrammarCheck] = loop.create_future()
            self.begin(tenant, grammar, lambda known: _tell(loop, _set, found, known))
            known = await found
        if known.refusal is not None:
            raise from_record(known.refusal)

    def checked(
        self, tenant: TenantId, commands: list[Command], done: Callable[[list[Command]], None]
    ) -> bool:
        """Check the grammars of ``commands``. True: ``done`` is called later, on the calling loop,
        with ``commands`` in which those with unusable grammars are refused. False: all grammars are
        known to be usable, and ``done`` is not called."""
        grammars = [one.grammar for one in commands if isinstance(one, Decode) and one.grammar]
        if all(self.known(grammar) == _GOOD for grammar in grammars):
            return False
        loop = asyncio.get_running_loop()
        _Commands(self, tenant, commands, lambda ready: _tell(loop, done, ready)).next()
        return True

    def known(self, grammar: GrammarSpec) -> GrammarCheck | None:
        """The known result, or ``None``."""
        digest = _digest(grammar)
        with self._lock:
            if (known := self._known.get(digest)) is not None:
                self._known.move_to_end(digest)
            return known

    def begin(self, tenant: TenantId, grammar: GrammarSpec, done: Done) -> None:
        """Begin a check; ``done`` is called with the result on a thread of this checker's pool.

        Raises:
            QuotaExceeded: too many grammars of the tenant wait already.
            Draining: it is closed.
        """
        place = tenant, _digest(grammar)
        with self._lock:
            if self._closed:
                raise _stopping()
            if (asking := self._asking.get(place)) is not None:
                asking.append(done)
                return
            self._turns.add(tenant, grammar)
            self._asking[place] = [done]
            self._pool.submit(self._work)

    def close(self) -> None:
        """Refuse waiting grammars and end the processes. Idempotent."""
        with self._lock:
            self._closed = True
        self._trial.close()  # close does not wait for the first process to start
        self._pool.shutdown()
        self._trial.close()

    def _work(self) -> None:
        work_off(self._turns, self._lock, self._check)

    def _check(self, tenant: TenantId, grammar: GrammarSpec) -> None:
        found = self._outcome(grammar)
        with self._lock:
            asking = self._asking.pop((tenant, _digest(grammar)))
        for done in asking:
            done(found)

    def _outcome(self, grammar: GrammarSpec) -> GrammarCheck:
        if self._closed:
            return GrammarCheck(_stopping().record())
        if (found := self.known(grammar)) is not None:  # since another tenant has asked for it
            return found
        known = _GOOD
        try:
            self._trial.try_out(grammar, NUM_TRIAL_TOKENS)
        except GrammarError as exc:
            known = GrammarCheck(in_our_words(exc, grammar).record())
            if isinstance(exc.__cause__, EOFError | OSError) and self._is_first_death(grammar):
                return known
        except QuireError as exc:  # not the grammar's fault: the next request tries it again
            return GrammarCheck(exc.record())
        except Exception as exc:  # a bug of ours; whoever waits for the result must have one
            logger.exception("a grammar could not be checked")
            fault = EngineFault(f"the grammar could not be checked ({exc!r}): see the node's log")
            return GrammarCheck(fault.record())
        with self._lock:
            self._known[_digest(grammar)] = known
            while len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return known

    def _is_first_death(self, grammar: GrammarSpec) -> bool:
        """Whether the process of ``grammar`` has ended for the first time. The limits may have
        ended it, or a system that is short of memory: the next request tries it again, and the
        second end is held against it."""
        digest = _digest(grammar)
        with self._lock:
            if digest in self._died:
                return False
            self._died[digest] = None
            while len(self._died) > _MAX_KNOWN:
                self._died.popitem(last=False)
            return True


class _Commands:
    """The commands of one call; their grammars are checked one after the other."""

    def __init__(
        self,
        checker: GrammarChecker,
        tenant: TenantId,
        commands: list[Command],
        done: Callable[[list[Command]], None],
    ) -> None:
        self._checker = checker
        self._tenant = tenant
        self._waiting = iter(commands)
        self._ready: list[Command] = []
        self._done = done

    def next(self) -> None:
        """Continue with the next command whose grammar is not known."""
        for command in self._waiting:
            if not isinstance(command, Decode) or command.grammar is None:
                self._ready.append(command)
                continue
            known = self._checker.known(command.grammar)
            if known is None:
                try:
                    self._checker.begin(
                        self._tenant, command.grammar, partial(self._checked, command)
                    )
                except QuireError as exc:
                    known = GrammarCheck(exc.record())
                else:
                    return
            self._add(command, known)
        self._done(self._ready)

    def _checked(self, command: Decode, known: GrammarCheck) -> None:
        self._add(command, known)
        self.next()

    def _add(self, command: Decode, known: GrammarCheck) -> None:
        if known.refusal is not None:
            command = msgspec.structs.replace(command, grammar=None, refusal=known.refusal)
        self._ready.append(command)


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[..., None], *values: Any) -> None:
    call_on(loop, callback, *values)  # a closed loop has no waiters


def _set(future: asyncio.Future[GrammarCheck], known: GrammarCheck) -> None:
    if not future.done():  # otherwise its request was cancelled
        future.set_result(known)


def _digest(grammar: GrammarSpec) -> bytes:
    text = f"{grammar.kind}\0{grammar.source}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _stopping() -> Draining:
    return Draining("the node is stopping and checks no further grammar")
