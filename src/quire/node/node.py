"""The node: one object that an edge (HTTP, a test, a notebook) starts, uses and stops.

Joins the control thread, the engines, the program hosts, sessions and launched programs. Every
method belongs to the event loop that called ``start``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

from quire.core.config import EngineConfig, NodeConfig
from quire.core.encoding import EncoderKind
from quire.core.events import Quotas
from quire.core.ids import ProgramId, TenantId
from quire.core.interfaces import EngineTransport, ServedModel
from quire.core.traits import ENCODER_TRAITS, NODE_TRAITS
from quire.node.admission import Admission
from quire.node.clock import SystemClock
from quire.node.connecting import ProgramConnector
from quire.node.control_factory import make_controller
from quire.node.control_thread import ControlThread, Observer
from quire.node.conversations import Turn
from quire.node.drain import Drain
from quire.node.encoders.fleet import EncoderFleet
from quire.node.encoders.service import EncoderService
from quire.node.encoders.transport import EncoderTransports
from quire.node.engine_loading import OnProgress
from quire.node.engines import EngineBackend, EngineFleet
from quire.node.health import NodeHealth, node_health
from quire.node.hosts import ProgramHosts
from quire.node.latency import LatencyObserver
from quire.node.launching import ProgramLauncher, Runtimes
from quire.node.loops import Bell, call_on
from quire.node.metrics import NodeStatistics, ProcessRecord
from quire.node.models import ModelFiles, read_model_files, resolve_engines
from quire.node.program_records import RandomNames
from quire.node.programs import Launch, ProgramHandle, ProgramRecord, ProgramTable
from quire.node.recorder import EventRecorder
from quire.node.sandbox.link import SANDBOX_COMMAND, LinkSettings, cache_directory
from quire.node.sandbox.runtime import SandboxRuntime
from quire.node.services import NodeServices
from quire.node.sessions import SessionHandle, SessionLimits, SessionStart, SessionTable
from quire.node.supervisor import RestartLimits
from quire.node.transports.choice import choose_transport
from quire.node.uploads import Upload, UploadTable
from quire.programs.inferlet import Inferlet
from quire.programs.runtime.host import check_any_model
from quire.programs.runtime.native import NativeConfig
from quire.programs.runtime.watchdog import BlockedLoop
from quire.programs.sandbox.program import GuestProgram
from quire.programs.services.children import Family


class Node:
    """``transport_factory`` and ``model_files`` replace the real engines and the files of their
    models (tests, embedding). ``native`` sets the loops that programs run on, ``sandbox_command``
    starts a process for those that are not trusted. ``debug``: check control's invariants whenever
    it is idle.

    Raises:
        ConfigError: no such policy, or an impossible figure.
        ModelNotFound: the shipped model is asked for and not there.
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
        debug: bool = False,
    ) -> None:
        self._config = config
        self._admission = Admission(config.tenants)
        backend = EngineBackend(
            choose_transport(config.engine_process, transport_factory), model_files, restart_limits
        )
        self._clock = SystemClock()
        self._numbers = map(ProgramId, itertools.count(1))
        self._started_s = self._clock.now_s()
        self._stopping: asyncio.Task[None] | None = None
        self._drain = Drain()
        self._recorder: EventRecorder | None = None
        self._latencies = LatencyObserver()
        self._observers: list[Observer] = [self._latencies]
        self._control = self._make_control(debug)
        engines = config.engines if transport_factory else resolve_engines(config.engines)
        self._fleet = EngineFleet(
            engines,
            backend,
            self._control,
            clock=self._clock,
            on_progress=self._report,
            on_change=self._on_health_change,
            node_traits=NODE_TRAITS | ENCODER_TRAITS if config.encoders else NODE_TRAITS,
        )
        self._encoders = EncoderFleet(
            config.encoders,
            encoder_transports,
            on_change=self._on_health_change,
            on_progress=self._report,
        )
        self._hosts = ProgramHosts(self._on_blocked, native)
        self._sandbox = SandboxRuntime(
            LinkSettings(config.sandbox, engines, sandbox_command, on_progress=self._report),
            self._clock,
            (native or NativeConfig()).grace_s,
        )
        self.uploads = UploadTable(cache_directory(config.sandbox) / "uploads")
        self._services = NodeServices(self._clock, config, self._encoders, self.encoder)
        self._programs = ProgramTable()
        self._names = RandomNames()
        self._sessions = self._make_sessions(session_limits)
        self._launcher = self._make_launcher()
        self._health_changed = Bell()
        self._progress: OnProgress | None = None
        self._running = False

    def _make_control(self, debug: bool) -> ControlThread:
        return ControlThread(
            make_controller(self._config.scheduler, self._config.tenants),
            clock=self._clock,
            observers=self._observers,
            on_failure=self._on_health_change,
            debug=debug,
        )

    def _make_sessions(self, limits: SessionLimits | None) -> SessionTable:
        return SessionTable(
            self._control,
            self._fleet.models.models,
            self._numbers,
            self._admission.check,
            limits,
        )

    def _make_launcher(self) -> ProgramLauncher:
        return ProgramLauncher(
            self._admission,
            self._programs,
            self._sessions,
            Runtimes(self._hosts.users, self._sandbox),
            ProgramConnector(self._control, self._services, self._fleet.models, self._numbers),
            self.inspect,
            self.uploads,
        )

    # -- life --------------------------------------------------------------------------------------

    async def start(self, progress: OnProgress | None = None, *, wait_ready: bool = True) -> None:
        """Start everything. ``progress(text, fraction)`` reports the loading of models.

        Without ``wait_ready`` it returns while models are being loaded; see ``health``.

        Raises:
            QuireError: the event log cannot be written, or (``wait_ready``) an engine cannot be
                started; nothing is left running then.
        """
        assert not self._running, "a node is started once"
        self._loop = asyncio.get_running_loop()
        self._progress = progress
        if self._config.record_path is not None:
            self._recorder = EventRecorder(self._config.record_path, self._config)
            self._observers.append(self._recorder)
        self._services.start()
        self._running = True
        self._control.start()
        self._hosts.start()
        self._encoders.start()
        try:
            await self._fleet.start(wait_ready=wait_ready)
            if wait_ready:
                await self._encoders.wait_ready()
        except BaseException:
            await self.stop()
            raise

    async def stop(self, drain_timeout_s: float = 0.0) -> None:
        """Refuse new work, let running work finish for ``drain_timeout_s``, then cancel the rest
        and end everything. Idempotent; of several calls the limit that ends first holds."""
        self._admission.close()
        if not self._running:
            return
        self._drain.limit(drain_timeout_s)
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(), name="stop the node")
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        await self._drain.wait(self._wait_idle())
        for handle in self._programs.running():
            handle.terminate("the node is stopping")
        self._sessions.close()
        await self._hosts.close()
        await asyncio.to_thread(self._sandbox.close)
        await self._programs.close()
        await self._services.close()
        await self._encoders.stop()
        await self._fleet.stop()
        self._control.stop()
        if self._recorder is not None:
            self._recorder.close()

    async def _wait_idle(self) -> None:
        await self._sessions.wait_idle()
        await self._programs.wait_idle()
        await self._encoders.wait_idle()

    # -- what is there -----------------------------------------------------------------------------

    def health(self) -> NodeHealth:
        failure = self._control.failure
        return node_health(
            {**self._fleet.health(), **self._encoders.health()},
            draining=self._admission.draining,
            failure=None if failure is None else failure.message,
        )

    async def wait_health(self, accept: Callable[[NodeHealth], bool]) -> NodeHealth:
        """Wait until ``accept(health())``; looks after each change of an engine's or control's
        state."""
        while not accept(health := self.health()):
            await self._health_changed.wait()
        return health

    def models(self) -> Sequence[ServedModel]:
        """Those that are loaded, the default one first."""
        return self._fleet.models.models()

    def model(self, name: str | None = None) -> ServedModel:
        """The model called ``name``; the default one for ``None``.

        Raises:
            ModelNotFound: no such model; the message names those that are served.
            EngineLost: it is still being loaded, or its engine has been given up.
        """
        return self._fleet.find_model(name)

    def encoder(self, name: str | None, kind: EncoderKind) -> EncoderService:
        """The embedding model or cross-encoder called ``name``; for ``None`` the first of its kind.

        Raises:
            Draining: the node is stopping.
            ModelNotFound, EngineLost, InvalidArgument: see ``EncoderFleet.find``.
        """
        self._admission.check()
        return self._encoders.find(name, kind)

    def encoders(self) -> list[EncoderService]:
        """All of them, loaded or not."""
        return self._encoders.all()

    def processes(self, tenant: TenantId | None = None) -> list[ProcessRecord]:
        """The process table: every program of any form that has not ended."""
        rows = self._control.call(lambda controller: controller.processes())
        return [
            ProcessRecord(self._public_id(row.program), row)
            for row in rows
            if tenant is None or row.tenant == tenant
        ]

    def statistics(self) -> NodeStatistics:
        controller, latencies = self._control.call(
            lambda controller: (controller.statistics(), self._latencies.snapshot())
        )
        return NodeStatistics(
            health=self.health(),
            controller=controller,
            latencies=latencies,
            num_programs_running=len(self._programs.running()),
            num_sessions=len(self._sessions),
            num_calls=len(self._sessions.calls()),
            uptime_s=self._clock.now_s() - self._started_s,
            recording_failure=None if self._recorder is None else self._recorder.failure,
        )

    # -- programs ----------------------------------------------------------------------------------

    async def inspect(self, code: bytes) -> GuestProgram:
        """An untrusted program from its Python source (UTF-8) or WebAssembly module, which runs in
        the sandbox alone.

        Raises:
            InvalidArgument: it is no program, or too large.
            ConfigError: this installation has no sandbox.
        """
        self._admission.check()
        return await self._sandbox.inspect(code)

    async def upload(self, code: bytes, tenant: TenantId) -> Upload:
        """``inspect`` it and keep it for later launches; see ``uploads``. Idempotent.

        Raises:
            QuotaExceeded: the tenant has uploaded too many.
            TraitMissing: no model that is served here has the traits that it needs.
        """
        program = await self.inspect(code)
        check_any_model(program.name, program.manifest.traits, self.models())
        return await asyncio.to_thread(self.uploads.put, program, tenant)

    def sandbox_pids(self) -> list[int]:
        """The processes of untrusted programs that run now."""
        return self._sandbox.pids()

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
    ) -> ProgramHandle:
        """Start ``program``: an ``Inferlet`` on the users' loop, a ``GuestProgram`` in the sandbox.
        ``parent`` is a public id of the same tenant.

        ``quotas`` may only tighten those of the program and of the tenant. ``seed``: of the
        program's own randomness, chosen if left out. ``family``: of the program that launches it.

        Raises:
            Draining: the node is stopping.
            TraitMissing: the default model lacks a trait that the program needs.
            QuotaExceeded: too many programs of this tenant are running.
            UnknownHandle: no such parent.
        """
        seed = self._names.seed() if seed is None else seed
        launch = Launch(tenant, tuple(args), client_id, parent, priority, seed)
        return self._launcher.launch(program, launch, quotas, family)

    def program(self, public_id: str, tenant: TenantId) -> ProgramHandle:
        """A launched program, running or recently ended; ``UnknownHandle`` for any other."""
        return self._programs.find(public_id, tenant)

    def programs(self, tenant: TenantId | None = None) -> list[ProgramRecord]:
        """Launched programs in order of launch, recently ended ones included."""
        return [handle.record() for handle in self._programs.all(tenant)]

    def session(
        self,
        tenant: TenantId,
        client_id: str | None = None,
        *,
        turns: Sequence[Turn] = (),
        parent: str | None = None,
        priority: int = 0,
    ) -> SessionHandle:
        """The session that ``client_id`` names, opened if need be.

        Without a ``client_id`` it is the session whose answer ``turns`` continue, else a new one:
        of one call, or (with ``turns``) one that a later prompt may join after ``remember``.
        ``parent`` is a client id or public id; one that is not known here is left out, since
        clients name parents that other nodes have served.

        Raises:
            Draining: the node is stopping.
            QuotaExceeded: too many sessions are busy.
        """
        self._admission.check()
        start = SessionStart(
            tenant=tenant,
            client_id=client_id,
            parent=None if parent is None else self._sessions.program_of(tenant, parent),
            priority=priority,
            quotas=self._admission.tenant(tenant).quotas,
            one_call=client_id is None and not turns,
        )
        return self._sessions.open(start, turns)

    # -- inside ------------------------------------------------------------------------------------

    def _public_id(self, program: ProgramId) -> str | None:
        return self._programs.public_id(program) or self._sessions.public_id(program)

    def _on_blocked(self, blocked: BlockedLoop) -> None:
        """On the watchdog's thread."""
        call_on(self._loop, self._programs.note_blocked, blocked.program, blocked.stack)

    def _on_health_change(self) -> None:
        """On the control thread."""
        call_on(self._loop, self._health_changed.ring)

    def _report(self, text: str, fraction: float) -> None:
        """On the control thread."""
        if self._progress is not None:
            call_on(self._loop, self._progress, text, fraction)


__all__ = ["Node"]
