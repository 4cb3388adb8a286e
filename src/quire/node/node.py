"""The node: one object that an edge (HTTP, a test, a notebook) starts, uses and stops.

Owns the public interface of a node; ``parts`` has its parts, ``life`` their start and end,
``reports`` the figures that they report, ``for_routers`` what a router asks of them. Every method
belongs to the event loop that called ``start``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from quire.control import ProcessRow
from quire.core.config import EngineConfig, NodeConfig
from quire.core.decoding import GrammarSpec
from quire.core.encoding import EncoderKind
from quire.core.errors import UnknownHandle
from quire.core.ids import ProgramId, TenantId
from quire.core.interfaces import EngineTransport, ServedModel
from quire.core.policy import DispatchPolicy
from quire.core.quotas import Quotas
from quire.node.encoders.service import EncoderService
from quire.node.encoders.transport import EncoderTransports
from quire.node.for_routers import ForRouters
from quire.node.life import NodeLife
from quire.node.metrics import NodeChanges, NodeStatistics, ProcessRecord
from quire.node.models import ModelFiles, read_model_files
from quire.node.notices import NodeNotices
from quire.node.parts import NodeParts, Surroundings
from quire.node.programs.handle import ProgramHandle
from quire.node.programs.records import ProgramLaunch, ProgramRecord
from quire.node.programs.uploads import UploadRecord
from quire.node.public_ids import RandomNames
from quire.node.reports import NodeReports
from quire.node.sandbox.link import SANDBOX_COMMAND
from quire.node.sessions.conversations import ConversationTurn
from quire.node.sessions.handle import SessionHandle, SessionStart
from quire.node.sessions.sessions import SessionLimits
from quire.node.supervision.engine_loading import OnProgress
from quire.node.supervision.health import NodeHealth
from quire.node.supervision.supervisor import RestartLimits
from quire.programs.arguments import NO_NAMES
from quire.programs.inferlet import Inferlet
from quire.programs.runtime.host import check_any_model
from quire.programs.runtime.native import NativeConfig
from quire.programs.sandbox.program import GuestProgram
from quire.programs.services.children import Family
from quire.programs.workflow.durable import QueryPlace


class Node:
    """``transport_factory`` and ``model_files`` replace the real engines and the files of their
    models (for tests and embedding). ``native`` configures the loops of native programs,
    ``sandbox_command`` starts a sandbox process. ``debug``: check control's invariants whenever it
    is idle. ``dispatch`` decides when batch messages are sent, by default as soon as possible;
    another one is for measurements and excludes ``config.record``, because the event log does not
    contain it.

    Raises:
        ConfigError: no such policy, or an impossible figure.
        ModelNotFound: the shipped model is requested and missing.
    """

    def __init__(
        self,
        config: NodeConfig,
        *,
        transport_factory: Callable[[EngineConfig], EngineTransport] | None = None,
        model_files: Callable[[EngineConfig], ModelFiles] = read_model_files,
        session_limits: SessionLimits | None = None,
        restart_limits: RestartLimits | None = None,
        native: NativeConfig | None = None,
        sandbox_command: Sequence[str] = SANDBOX_COMMAND,
        encoder_transports: EncoderTransports = EncoderTransports(),  # noqa: B008 - frozen
        dispatch: DispatchPolicy | None = None,
        debug: bool = False,
    ) -> None:
        around = Surroundings(
            transport_factory=transport_factory,
            model_files=model_files,
            session_limits=session_limits,
            restart_limits=restart_limits,
            native=native or NativeConfig(),
            sandbox_command=sandbox_command,
            encoder_transports=encoder_transports,
            dispatch=dispatch,
            debug=debug,
        )
        notices = NodeNotices()
        self._parts = NodeParts(config, around, notices)
        self._life = NodeLife(config, self._parts, notices)
        self.uploads = self._parts.uploads
        self.traces = self._parts.traces
        self.for_routers = ForRouters(self._parts)
        self._names = RandomNames()
        self._reports = NodeReports(self._parts, self._life, notices, config.scheduler.policy)

    # -- life --------------------------------------------------------------------------------------

    async def start(self, progress: OnProgress | None = None, *, wait_ready: bool = True) -> None:
        """Start everything. ``progress(text, fraction)`` reports the loading of models.

        Without ``wait_ready`` it returns while models are loading; see ``health``.

        Raises:
            QuireError: the event log cannot be written, or (``wait_ready``) an engine cannot be
                started; nothing is left running then.
        """
        await self._life.start(progress, wait_ready=wait_ready)

    async def stop(self, drain_timeout_s: float = 0.0) -> None:
        """Refuse new work, let running work finish for ``drain_timeout_s``, then cancel the rest
        and end everything. Idempotent; of several calls the earliest limit applies."""
        await self._life.stop(drain_timeout_s)

    def is_over(self) -> bool:
        """Whether the node has stopped for good."""
        return self._life.is_over

    # -- what is there -----------------------------------------------------------------------------

    def health(self) -> NodeHealth:
        return self._reports.health()

    async def wait_health(self, accept: Callable[[NodeHealth], bool]) -> NodeHealth:
        """Wait until ``accept(health())`` is true; checked after each change of an engine's or
        control's state."""
        return await self._reports.wait_health(accept)

    def models(self) -> Sequence[ServedModel]:
        """The loaded models, the default one first."""
        return self._parts.fleet.models.models()

    def model(self, name: str | None = None) -> ServedModel:
        """The model called ``name``; the default one for ``None``.

        Raises:
            ModelNotFound: no such model; the message names those that are served.
            EngineLost: it is still being loaded, or its engine has been given up.
        """
        return self._parts.fleet.find_model(name)

    def encoder(self, name: str | None, kind: EncoderKind) -> EncoderService:
        """The embedding model or cross-encoder called ``name``; for ``None`` the first of its kind.

        Raises:
            Draining: the node is stopping.
            ModelNotFound, EngineLost, InvalidArgument: see ``EncoderFleet.find``.
        """
        return self._parts.encoder(name, kind)

    def search_engine(self, tenant: TenantId) -> str:
        """The name of the search engine of ``tenant``: ``fts5`` or ``searxng``.

        Raises:
            TraitMissing: there is no search engine for it.
        """
        return self._parts.services.search_engine(tenant)

    async def forget_query(self, workflow: str, query_id: str, tenant: TenantId) -> None:
        """Delete what is kept of a workflow's query.

        Raises:
            UnknownHandle: nothing is kept of it.
            CapacityError: it is being answered.
            InvalidArgument: the node keeps no queries.
        """
        place = QueryPlace(tenant, workflow, query_id)
        await asyncio.to_thread(self._parts.services.kept_queries.delete, place)

    async def check_grammar(self, grammar: GrammarSpec, tenant: TenantId) -> None:
        """Wait until ``grammar`` is known to be usable. Programs need not call it: the grammars of
        commands are checked when these are issued, and a known grammar costs nothing.

        Raises:
            GrammarError: it cannot be used within the limits of time and memory.
            CapacityError: the system starts no process now.
            QuotaExceeded: too many grammars of the tenant wait to be checked.
        """
        await self._parts.preparation.grammars.check(tenant, grammar)

    def encoders(self) -> list[EncoderService]:
        """All encoders, loaded or not."""
        return self._parts.encoders.all()

    def processes(self, tenant: TenantId | None = None) -> list[ProcessRecord]:
        """The process table: every program of any form that has not ended, of all tenants or
        one."""
        return self._reports.processes(tenant)

    def process(self, program: ProgramId) -> ProcessRecord | None:
        """One line of the process table; ``None``: the program has left it."""
        return self._reports.process(program)

    def changes(self, since: int, tenant: TenantId | None = None) -> NodeChanges:
        """The changes of the process table since change number ``since`` (0: the whole table).
        Programs that have not changed cost nothing."""
        return self._reports.changes(since, tenant)

    def statistics(self) -> NodeStatistics:
        return self._reports.statistics()

    # -- programs ----------------------------------------------------------------------------------

    async def inspect(self, code: bytes) -> GuestProgram:
        """An untrusted program from its Python source (UTF-8) or WebAssembly module; it can only
        run in the sandbox.

        Raises:
            InvalidArgument: it is not a program, or too large.
            ConfigError: this installation has no sandbox.
        """
        return await self._parts.inspect(code)

    async def upload(self, code: bytes, tenant: TenantId) -> UploadRecord:
        """``inspect`` a program and store it for later launches; see ``uploads``. Idempotent.

        Raises:
            QuotaExceeded: the tenant has uploaded too many.
            TraitMissing: no model that is served here has the traits that it needs.
        """
        program = await self.inspect(code)
        check_any_model(program.name, program.manifest.traits, self.models())
        return await asyncio.to_thread(self.uploads.put, program, tenant)

    def sandbox_pids(self) -> list[int]:
        """The running sandbox processes."""
        return self._parts.sandbox.pids()

    def launch(
        self,
        program: Inferlet | GuestProgram,
        args: Sequence[str] = (),
        *,
        tenant: TenantId,
        client_id: str | None = None,
        priority: int = 0,
        parent: str | None = None,
        quotas: Quotas | None = None,
        seed: int | None = None,
        family: Family | None = None,
        named: Mapping[str, str] = NO_NAMES,
        traceparent: str | None = None,
    ) -> ProgramHandle:
        """Start ``program``: an ``Inferlet`` natively on the users' loop, a ``GuestProgram`` in the
        sandbox. ``parent`` is a public id of the same tenant.

        ``quotas`` may only tighten those of the program and of the tenant. ``seed``: of the
        program's random numbers, chosen if absent. ``family``: of the program that launches it.
        ``args`` are arguments by position, ``named`` by name. ``traceparent``: the client's span
        (W3C Trace Context), which becomes the parent of the program's span.

        Raises:
            InvalidArgument: an argument is missing, unknown, or of the wrong type.
            Draining: the node is stopping.
            TraitMissing: the default model lacks a trait that the program needs.
            QuotaExceeded: too many programs of this tenant are running.
            UnknownHandle: no such parent.
        """
        seed = self._names.seed() if seed is None else seed
        launch = ProgramLaunch(
            tenant,
            tuple(args),
            client_id,
            parent,
            priority,
            seed,
            named,
            traceparent=traceparent,
        )
        return self._parts.launcher.launch(program, launch, quotas, family)

    def program(self, public_id: str, tenant: TenantId) -> ProgramHandle:
        """A launched program, running or recently ended; ``UnknownHandle`` for any other."""
        return self._parts.programs.find(public_id, tenant)

    def programs(self, tenant: TenantId | None = None) -> list[ProgramRecord]:
        """Launched programs in order of launch, including recently ended ones."""
        return [handle.record() for handle in self._parts.programs.all(tenant)]

    def session(
        self,
        tenant: TenantId,
        client_id: str | None = None,
        *,
        turns: Sequence[ConversationTurn] = (),
        parent: str | None = None,
        traceparent: str | None = None,
    ) -> SessionHandle:
        """The session that ``client_id`` names; it is opened if it does not exist.

        Without a ``client_id`` it is the session whose answer ``turns`` continue, else a new one:
        for one call, or (with ``turns``) one that a later prompt may join after ``remember``.

        ``parent`` is the id of a session or launched program; an unknown one is logged and ignored,
        since clients name parents that other nodes have served. ``traceparent``: the span of the
        request, for a session that is for it alone. The session's priority is 0: that of a request
        belongs to its queues.

        Raises:
            Draining: the node is stopping.
            QuotaExceeded: too many sessions are busy.
        """
        self._parts.admission.check()
        is_one_call = client_id is None and not turns
        start = SessionStart(
            tenant=tenant,
            client_id=client_id,
            parent=None if parent is None else self._parent(parent, tenant),
            parent_name=parent,
            quotas=self._parts.admission.tenant(tenant).quotas,
            one_call=is_one_call,
            traceparent=traceparent if is_one_call else None,
        )
        return self._parts.sessions.open(start, turns)

    def create_session(
        self,
        tenant: TenantId,
        client_id: str,
        *,
        parent: str | None = None,
        kind: str = "",
        priority: int = 0,
        deadline_s: float | None = None,
        idle_ttl_s: float | None = None,
        metadata: Mapping[str, str] = NO_NAMES,
        traceparent: str | None = None,
    ) -> tuple[SessionHandle, bool]:
        """Open the session that ``session`` finds by this ``client_id``; return it and whether it
        is new. A session that is open with the same properties is returned. It is in the process
        table before its first call. ``kind``: the name of the class of sessions that it belongs to.
        ``deadline_s`` counts from now; ``idle_ttl_s`` replaces the configured time.

        Raises:
            AlreadyExists: the session is open with other properties.
            Draining: the node is stopping.
            InvalidArgument: a time is no number of seconds.
            NeverWithinQuota: ``idle_ttl_s`` is longer than a client may choose.
            QuotaExceeded: too many sessions are busy.
            UnknownHandle: no such parent.
        """
        self._parts.admission.check()
        start = SessionStart(
            tenant=tenant,
            client_id=client_id,
            parent=None if parent is None else self._parts.launcher.parent(parent, tenant),
            parent_name=parent,
            kind=kind,
            priority=priority,
            deadline_s=deadline_s,
            idle_ttl_s=idle_ttl_s,
            metadata=metadata,
            traceparent=traceparent,
            quotas=self._parts.admission.tenant(tenant).quotas,
        )
        return self._parts.sessions.create(start)

    def find_session(self, tenant: TenantId, name: str) -> SessionHandle:
        """The open session with this client id or public id; ``UnknownHandle`` for any other."""
        return self._parts.sessions.find(tenant, name)

    def sessions(self, tenant: TenantId) -> list[SessionHandle]:
        """The open sessions of ``tenant``, the newest first."""
        return self._parts.sessions.all(tenant)

    def session_rows(self, sessions: Sequence[SessionHandle]) -> list[ProcessRow | None]:
        """The line of each in the process table; ``None``: its first call has yet to begin."""
        programs = [session.program for session in sessions]
        return self._parts.control.call(
            lambda controller: [controller.process(program) for program in programs]
        )

    def public_id(self, program: ProgramId) -> str | None:
        """The public id of a program that is kept or a session that is open."""
        return self._reports.public_id(program)

    # -- inside ------------------------------------------------------------------------------------

    def _parent(self, name: str, tenant: TenantId) -> ProgramId | None:
        try:
            return self._parts.launcher.parent(name, tenant)
        except UnknownHandle:
            return None
