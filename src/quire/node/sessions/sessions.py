"""Sessions: programs whose calls arrive one by one from outside (Autellix's view of a client).

Lives on the edge's loop. Owns which call belongs to which session, and when a session ends:
explicitly, or after it has been idle for some time. The session itself is in ``handle``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from quire.core.errors import (
    AlreadyExists,
    InvalidArgument,
    NeverWithinQuota,
    QuotaExceeded,
    UnknownHandle,
)
from quire.core.events import IDLE_FOR
from quire.core.ids import ProgramId, TenantId
from quire.node.control.control_thread import ControlThread
from quire.node.control.preparation import Preparation
from quire.node.sessions.calls import SessionCall, WorkCall
from quire.node.sessions.conversations import ConversationIndex, ConversationTurn
from quire.node.sessions.ended import EndedSessions
from quire.node.sessions.expiry import SessionExpiry
from quire.node.sessions.handle import SessionHandle, SessionStart
from quire.node.tracing.parents import TraceParents
from quire.programs.runtime.event_port import Models

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """``ttl_s``: an idle session ends after this time; ``max_ttl_s``: the most that a client may
    choose instead, which the edge checks. ``max_sessions``: beyond it, the longest
    idle session of the tenant with the most sessions ends early. A tenant is refused a new session
    when all of its own, and all of tenants with more, are busy."""

    ttl_s: float = 600.0
    max_ttl_s: float = 86_400.0
    max_sessions: int = 16_384


class SessionTable:
    """Open sessions by tenant and client id, idle ones in the order in which they became idle."""

    def __init__(
        self,
        control: ControlThread,
        models: Models,
        numbers: Iterator[ProgramId],
        admit: Callable[[], None],
        limits: SessionLimits | None = None,
        *,
        preparation: Preparation,
        parents: TraceParents,
    ) -> None:
        self._parents = parents
        self._preparation = preparation
        self._control = control
        self._models = models
        self._numbers = numbers
        self.limits = limits or SessionLimits()
        self._named: dict[tuple[TenantId, str], SessionHandle] = {}
        self._by_id: dict[str, SessionHandle] = {}
        self._open: OrderedDict[ProgramId, tuple[SessionHandle, float]] = OrderedDict()
        self._num_open: Counter[TenantId] = Counter()
        self._ending: set[SessionHandle] = set()
        self._expiry = SessionExpiry()
        self._sweep: asyncio.TimerHandle | None = None
        self.admit = admit
        self.conversations = ConversationIndex()
        self.ended = EndedSessions()

    def __len__(self) -> int:
        return len(self._open) + len(self._ending)

    def open(self, start: SessionStart, turns: Sequence[ConversationTurn] = ()) -> SessionHandle:
        """The session that ``start`` names, else the one that ``turns`` continue, else a new one.

        Raises:
            QuotaExceeded: too many sessions are busy at once.
        """
        found = self._find(start, turns)
        if found is None:
            return self._add(start)
        found.note_parent(start)
        self.touch(found)
        return found

    def create(self, start: SessionStart) -> tuple[SessionHandle, bool]:
        """The session that ``start`` names, and whether it is new. It is in the process table.

        Raises:
            AlreadyExists: the session is open with other properties.
            InvalidArgument: a time is no number of seconds.
            NeverWithinQuota: its idle time is longer than a client may choose.
            QuotaExceeded: too many sessions are busy at once.
        """
        if start.deadline_s is not None and not 0 <= start.deadline_s < inf:
            raise InvalidArgument(
                f"deadline_s is {start.deadline_s}: choose a number of seconds", param="deadline_s"
            )
        if start.idle_ttl_s is not None and not 0 < start.idle_ttl_s < inf:
            raise InvalidArgument(
                f"idle_ttl_s is {start.idle_ttl_s}: choose a number of seconds above 0",
                param="idle_ttl_s",
            )
        idle_ttl_s, max_ttl_s = start.idle_ttl_s, self.limits.max_ttl_s
        if idle_ttl_s is not None and idle_ttl_s > max_ttl_s:
            raise NeverWithinQuota(
                f"idle_ttl_s is {idle_ttl_s:g}, and at most {max_ttl_s:g} is allowed: choose less, "
                "or raise --max-session-ttl of the server",
                param="idle_ttl_s",
            )
        found = self._find(start, ())
        if found is None:
            session = self._add(start)
            session.enter()
            return session, True
        different = found.start.difference(start)
        if different is not None:
            raise AlreadyExists(
                f"session {start.client_id!r} is open with another {different}: ask for the one "
                "that it has, end it first, or choose another id",
                param=different,
            )
        self.touch(found)
        return found, False

    def find(self, tenant: TenantId, name: str) -> SessionHandle:
        """The session with this client id or public id.

        Raises:
            UnknownHandle: the tenant has no such session open.
        """
        session = self._known(tenant, name)
        if session is None:
            raise UnknownHandle(
                f"no session {name[:256]!r} is open: it was never created, has ended, or was idle "
                "for too long; create it again"
            )
        return session

    def all(self, tenant: TenantId) -> list[SessionHandle]:
        """The open sessions of ``tenant``, the newest first."""
        found = [session for session, _ in self._open.values() if session.tenant == tenant]
        return sorted(found, key=lambda session: session.program, reverse=True)

    def _add(self, start: SessionStart) -> SessionHandle:
        if len(self) >= self.limits.max_sessions:
            self._make_room(start.tenant)
        session = SessionHandle(
            next(self._numbers),
            start,
            self._control,
            self._models,
            self,
            self._preparation.of(start.tenant),
            self._parents,
        )
        if start.client_id is not None:
            self._named[start.tenant, start.client_id] = session
        self._by_id[session.id] = session
        self._num_open[start.tenant] += 1
        self._watch(session)
        if start.parent_name is not None and start.parent is None:
            logger.warning(
                "session %s (%s): its parent %r is not known here, and is ignored",
                session.id,
                start.client_id,
                start.parent_name,
            )
        return session

    def program_of(self, tenant: TenantId, name: str) -> ProgramId | None:
        """The number of the session with this client id or public id, or ``None``."""
        session = self._known(tenant, name)
        return None if session is None else session.program

    def public_id(self, program: ProgramId) -> str | None:
        entry = self._open.get(program)
        if entry is not None:
            return entry[0].id
        return next((one.id for one in self._ending if one.program == program), None)

    def calls(self) -> list[SessionCall[Any] | WorkCall[Any]]:
        """The running calls of all sessions."""
        sessions = [session for session, _ in self._open.values()] + list(self._ending)
        return [call for session in sessions for call in session.calls]

    async def wait_idle(self) -> None:
        """Return when no call is running."""
        while calls := self.calls():
            await calls[0].wait_closed()

    def close(self) -> None:
        """Cancel running calls and end every session."""
        for call in self.calls():
            call.cancel("the node is stopping")
        for session, _ in list(self._open.values()):
            session.end("the node is stopping")
        if self._sweep is not None:
            self._sweep.cancel()

    def _find(self, start: SessionStart, turns: Sequence[ConversationTurn]) -> SessionHandle | None:
        if start.client_id is not None:
            return self._known(start.tenant, start.client_id)
        program = self.conversations.find(start.tenant, turns)
        entry = None if program is None else self._open.get(program)
        return None if entry is None else entry[0]

    def _known(self, tenant: TenantId, name: str) -> SessionHandle | None:
        session = self._named.get((tenant, name)) or self._by_id.get(name)
        return session if session is not None and session.tenant == tenant else None

    def _make_room(self, tenant: TenantId) -> None:
        """End an idle session early: one of a tenant with more sessions, else one of ``tenant``."""
        num_own = self._num_open[tenant]
        larger = [other for other, num in self._num_open.most_common() if num > num_own]
        for owner in (*larger, tenant):
            session = self._longest_idle(owner)
            if session is not None:
                session.end("ended early: too many sessions are open")
                return
        raise QuotaExceeded(
            f"{len(self)} sessions are open, {self.limits.max_sessions} are allowed, and all that "
            "could make room have calls under way: retry later, or end sessions that are finished"
        )

    def _longest_idle(self, tenant: TenantId) -> SessionHandle | None:
        for session, _ in self._open.values():
            if session.tenant == tenant and not session.calls:
                return session
        return None

    # -- for sessions ------------------------------------------------------------------------------

    def touch(self, session: SessionHandle) -> None:
        """See ``SessionPlace``; the least recently used sessions come first."""
        self._open[session.program] = (session, self._loop_time())
        self._open.move_to_end(session.program)

    def forget(self, session: SessionHandle) -> None:
        """See ``SessionPlace``."""
        if self._open.pop(session.program, None) is not None:
            self._num_open[session.tenant] -= 1
            if not self._num_open[session.tenant]:
                del self._num_open[session.tenant]
        self._expiry.discard(session.program)
        self._by_id.pop(session.id, None)
        if session.client_id is not None:
            self._named.pop((session.tenant, session.client_id), None)
        self._ending.add(session)

    def closed(self, session: SessionHandle) -> None:
        self._ending.discard(session)
        self.ended.add(session.program, session.tenant, session.id, session.client_id)

    def _loop_time(self) -> float:
        return asyncio.get_running_loop().time()

    def ttl_of(self, session: SessionHandle) -> float:
        own_s = session.start.idle_ttl_s
        return self.limits.ttl_s if own_s is None else own_s

    def _watch(self, session: SessionHandle) -> None:
        self.touch(session)
        self._expiry.set(session.program, self._loop_time() + session.idle_ttl_s)
        self._schedule_sweep()

    def _schedule_sweep(self) -> None:
        next_s = self._expiry.next_s
        if self._sweep is not None and (next_s is None or self._sweep.when() > next_s):
            self._sweep.cancel()
            self._sweep = None
        if self._sweep is None and next_s is not None:
            self._sweep = asyncio.get_running_loop().call_at(next_s, self._end_idle)

    def _end_idle(self) -> None:
        """End sessions that have been idle too long; schedule the next check."""
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep = None
        now_s = self._loop_time()
        for program in list(self._expiry.take_due(now_s)):
            session, used_s = self._open[program]
            ttl_s = session.idle_ttl_s
            if session.calls:
                self._watch(session)
            elif used_s + ttl_s > now_s:
                self._expiry.set(program, used_s + ttl_s)
            else:
                session.end(f"{IDLE_FOR} {ttl_s:g} s")
        self._schedule_sweep()
