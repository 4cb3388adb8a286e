"""One session: its calls, the pages that it keeps between them, and its end.

Lives on the edge's loop. Each call has its own number range and queues (``ports.IssuerPort``), so
that ending one call frees exactly its own resources. ``sessions`` owns the table of sessions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

from quire.core.batch import F32
from quire.core.errors import ErrorRecord, ProgramCancelled, QuireError
from quire.core.events import EventAt
from quire.core.ids import ProgramId, TenantId, ThreadId
from quire.core.interfaces import ReplySink, ServedModel
from quire.core.quotas import Quotas
from quire.engine.encoders.text import EncodedText
from quire.node.control.control_thread import ControlThread
from quire.node.control.program_start import ProgramStart
from quire.node.encoders.asking import OnBehalf
from quire.node.encoders.service import EncoderService
from quire.node.loops import call_on
from quire.node.public_ids import public_id
from quire.node.sessions.calls import BuiltIn, SessionCall, WorkCall
from quire.node.sessions.conversations import ConversationIndex, ConversationTurn
from quire.node.sessions.kept_pages import KeptPages
from quire.node.sessions.ports import IssuerPort, IssuerSinks
from quire.node.tracing.parents import TraceParents
from quire.programs.runtime.event_port import EventPort, Models, Prepare
from quire.programs.services.encoding import CallOrder

logger = logging.getLogger(__name__)

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SessionStart:
    """The properties of a new session; ``client_id`` is the client's name for it.

    ``parent_name``: the client's name for its parent; ``parent`` is None if there is no such
    program. ``kind``: the name of its class of sessions. ``deadline_s``: how long after its start
    it should be done. ``idle_ttl_s``: None for the node's. ``metadata``: the client's own.
    ``one_call``: the session ends with its call, because no later call can join it.
    ``traceparent``: that of the client's request that opens it.
    """

    tenant: TenantId
    client_id: str | None = None
    parent: ProgramId | None = None
    parent_name: str | None = None
    kind: str = ""
    priority: int = 0
    deadline_s: float | None = None
    idle_ttl_s: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    quotas: Quotas = Quotas()
    one_call: bool = False
    traceparent: str | None = None

    def difference(self, other: SessionStart) -> str | None:
        """The first property that a client chooses and that differs in ``other``, or ``None``."""
        chosen = ("parent", "kind", "priority", "deadline_s", "idle_ttl_s", "metadata")
        return next((one for one in chosen if getattr(self, one) != getattr(other, one)), None)


class SessionPlace(Protocol):
    """The owner of open sessions; outlives them."""

    conversations: ConversationIndex

    def admit(self) -> None:
        """Raise ``Draining`` if no further call may start."""
        ...

    def touch(self, session: SessionHandle) -> None:
        """Note that the session was just used."""
        ...

    def ttl_of(self, session: SessionHandle) -> float:
        """The idle time after which the session ends."""
        ...

    def forget(self, session: SessionHandle) -> None:
        """Note that the session takes no further call; running calls go on."""
        ...

    def closed(self, session: SessionHandle) -> None:
        """Note that the session has ended."""
        ...


class SessionHandle:
    """One session. ``call`` starts a built-in program in it."""

    def __init__(
        self,
        program: ProgramId,
        start: SessionStart,
        control: ControlThread,
        models: Models,
        table: SessionPlace,
        prepare: Prepare,
        parents: TraceParents,
    ) -> None:
        self._parents = parents
        self.id = public_id()
        self.program = program
        self.tenant = start.tenant
        self.client_id = start.client_id
        self.start = start
        self.created_s = time.time()
        self.num_calls = 0
        self._control = control
        self._table = table
        self._loop = asyncio.get_running_loop()
        self._port = EventPort(
            program,
            start.quotas,
            models,
            self._post,
            clock=control.clock,
            post_now=self._post_now,
            prepare=prepare,
        )
        self._sinks = IssuerSinks(self._on_terminated)
        self._started = False
        self._entry: EventAt | None = None
        self._num_issuers = 0
        self._calls: set[SessionCall[Any] | WorkCall[Any]] = set()
        self._kept: set[KeptPages] = set()
        self._ending: str | None = None
        self._has_told_parent = False

    @property
    def calls(self) -> frozenset[SessionCall[Any] | WorkCall[Any]]:
        """The running calls."""
        return frozenset(self._calls)

    @property
    def idle_ttl_s(self) -> float:
        """The idle time after which the session ends by itself."""
        return self._table.ttl_of(self)

    @property
    def over(self) -> bool:
        """Whether the session takes no further call."""
        return self._ending is not None

    def call(
        self,
        program: BuiltIn[R, T],
        request: R,
        *,
        thread: str | None = None,
        parent_thread: str | None = None,
        name: str = "",
        traceparent: str | None = None,
    ) -> SessionCall[T]:
        """Run ``program(api, request)`` as one call; iterate the returned object for its items.

        ``thread`` is the client's name for a line of calls within the session (Autellix 4.1),
        ``parent_thread`` for the one that it was forked from. ``traceparent``: that of the request.

        Raises:
            Draining: the node takes no new work.
            ProgramCancelled: the session has ended; open it again.
        """
        self._admit()
        index = self._next_issuer()
        self._parents.note(self.program, traceparent, index)

        def connect(sink: ReplySink, loop: asyncio.AbstractEventLoop) -> IssuerPort:
            self._ensure_started(loop)
            self._sinks.add(index, sink, loop)
            forked_from = None if parent_thread is None else _thread_id(parent_thread)
            return IssuerPort(self._port, index, _thread_id(thread), forked_from)

        def on_closed(closed: SessionCall[T]) -> None:
            self._calls.discard(closed)
            self._sinks.remove(index)
            self._parents.ended(self.program, index)
            self._after_call()

        try:
            call = SessionCall(name or program.__name__, program, request, connect, on_closed)
        except QuireError:
            self._sinks.remove(index)
            self._parents.ended(self.program, index)
            self._after_call()
            raise
        self._add(call)
        return call

    def encode(
        self,
        encoder: EncoderService,
        sequences: Sequence[EncodedText],
        *,
        thread: str | None = None,
    ) -> WorkCall[F32]:
        """Rows of ``sequences``, as a call of this session; see ``EncoderService.encode``.

        Raises:
            Draining, ProgramCancelled: as ``call``.
        """
        self._admit()
        self._ensure_started(self._loop)
        self._enter()
        whose = OnBehalf(self.program, CallOrder(_thread_id(thread)))

        def on_closed(closed: WorkCall[F32]) -> None:
            self._calls.discard(closed)
            self._after_call()

        call = WorkCall(encoder.encode(whose, sequences), on_closed)
        self._add(call)
        return call

    def _add(self, call: SessionCall[Any] | WorkCall[Any]) -> None:
        self._calls.add(call)
        self.num_calls += 1
        self._table.touch(self)

    def _admit(self) -> None:
        self._table.admit()
        if self._ending is not None:
            raise ProgramCancelled(f"session {self.id} has ended ({self._ending}): open it again")

    def note_parent(self, asked: SessionStart) -> None:
        """Log once that a later request names another parent than this session has: a program
        cannot move to another family, and might become its own ancestor."""
        name, own = asked.parent_name, self.start
        has_other_id = own.parent is not None and asked.parent == own.parent
        if name in (None, own.parent_name) or has_other_id or self._has_told_parent:
            return
        self._has_told_parent = True
        logger.warning(
            "session %s (%s): a later request names the parent %r, which is ignored: it was opened "
            "%s",
            self.id,
            self.client_id,
            name,
            f"below {own.parent_name!r}" if own.parent_name is not None else "without a parent",
        )

    def remember(self, turns: Sequence[ConversationTurn], answer: ConversationTurn) -> None:
        """Note that a call has answered ``turns`` with ``answer``: a later prompt that begins with
        both joins this session."""
        self._table.conversations.remember(self.tenant, turns, answer, self.program)

    def keep(self, model: ServedModel, tokens: Sequence[int]) -> KeptPages | None:
        """Keep the pages of ``tokens``, which a call has just computed, until they are released or
        the session ends.

        ``None``: there are no full pages, or the session has ended, or its tenant's programs have a
        quota of pages, which is reserved for calls.
        """
        is_short = len(tokens) <= model.info.pool.page_size
        if self._ending is not None or self.start.quotas.max_pages is not None or is_short:
            return None
        index = self._next_issuer()
        self._ensure_started(self._loop)

        def on_released(kept: KeptPages) -> None:
            self._kept.discard(kept)
            self._sinks.remove(index)

        port = IssuerPort(self._port, index, _thread_id(None))
        kept = KeptPages(port, model, tokens, on_released)
        self._sinks.add(index, kept, self._loop)
        self._kept.add(kept)
        return kept

    def _next_issuer(self) -> int:
        index, self._num_issuers = self._num_issuers, self._num_issuers + 1
        return index

    def enter(self) -> None:
        """Enter the session into the process table now, before its first call."""
        self._ensure_started(self._loop)
        self._enter()

    def cancel(self, reason: str) -> None:
        """End now: cancel the running calls. Idempotent."""
        self.end(reason)
        for call in self.calls:
            call.cancel(reason)

    def end(self, reason: str = "finished") -> None:
        """Take no further call, and end when the running ones have ended. Idempotent."""
        if self._ending is None:
            self._ending = reason
            self._table.forget(self)
            self._after_call()

    def _after_call(self) -> None:
        if self._calls:
            return
        if self._ending is None and self.start.one_call:
            self.end()
        elif self._ending is None:
            self._table.touch(self)
        else:
            self._close()

    def _close(self) -> None:
        assert self._ending is not None
        for kept in list(self._kept):
            kept.release()
        if self._started:
            self._port.close(self._ending)
        self._table.closed(self)

    def _ensure_started(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._started:
            return
        opened = self.start
        self._parents.note(self.program, opened.traceparent)
        start = ProgramStart(
            tenant=opened.tenant,
            form="session",
            name=opened.client_id or self.id,
            kind=opened.kind,
            client_id=opened.client_id,
            parent=opened.parent,
            priority=opened.priority,
            deadline_s=opened.deadline_s,
            quotas=opened.quotas,
        )
        self._control.add_program(self.program, loop, self._sinks)
        self._started = True
        self._entry = start.event_of(self.program)
        self._loop.call_soon(self._enter)

    def _enter(self) -> None:
        """Enter the session into the process table: together with a call's first command, so that
        control is woken once for both, or else by itself."""
        entry, self._entry = self._entry, None
        if entry is not None:
            self._control.post_gathered(entry)

    def _post(self, event_at: EventAt) -> None:
        self._enter()
        self._control.post_gathered(event_at)

    def _post_now(self, event_at: EventAt) -> None:
        self._enter()
        self._control.post(event_at)

    def _on_terminated(self, error: ErrorRecord) -> None:
        """End the session, which control has ended; its calls have been notified. Runs on the
        programs' loop."""
        call_on(self._loop, self.end, error.message)


def _thread_id(name: str | None) -> ThreadId:
    """The number of a thread's name, without a table of names: clients may invent any number of
    them."""
    if name is None:
        return ThreadId(0)
    return ThreadId(
        int.from_bytes(
            blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6).digest(), "big"
        )
    )
