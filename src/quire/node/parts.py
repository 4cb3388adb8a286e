"""The parts of a node, built and connected. Nothing runs yet, and nothing is decided here.

Owns which part knows which; ``life`` has the order of start and end, ``node`` the public interface.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire.core.config import EngineConfig, NodeConfig
from quire.core.encoding import EncoderKind
from quire.core.errors import ConfigError
from quire.core.ids import ProgramId
from quire.core.interfaces import EngineTransport
from quire.core.policy import DispatchPolicy
from quire.core.system_clock import SystemClock
from quire.core.traits import ENCODER_TRAITS, NODE_TRAITS
from quire.node.control.control_factory import make_controller
from quire.node.control.control_thread import ControlThread, Observer
from quire.node.control.preparation import Preparation
from quire.node.encoders.fleet import EncoderFleet
from quire.node.encoders.service import EncoderService
from quire.node.encoders.transport import EncoderTransports
from quire.node.engines.engines import EngineBackend, EngineFleet
from quire.node.latency import LatencyObserver
from quire.node.models import ModelFiles, resolve_engines
from quire.node.notices import NodeNotices
from quire.node.programs.connecting import ProgramConnector
from quire.node.programs.figures import ProgramFigures
from quire.node.programs.hosts import ProgramHosts
from quire.node.programs.launching import ProgramLauncher, Runtimes
from quire.node.programs.programs import ProgramTable
from quire.node.programs.services import NodeServices
from quire.node.programs.uploads import UploadTable
from quire.node.sandbox.link import LinkSettings, cache_directory
from quire.node.sandbox.runtime import SandboxRuntime
from quire.node.sessions.sessions import SessionLimits, SessionTable
from quire.node.supervision.supervisor import RestartLimits
from quire.node.tenant_gate import TenantGate
from quire.node.tracing.parts import TracingParts
from quire.node.tracing.reading import TraceReader
from quire.node.transports.choice import choose_transport
from quire.programs.runtime.native import NativeConfig
from quire.programs.runtime.watchdog import BlockedLoop
from quire.programs.sandbox.program import GuestProgram


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The surroundings of a node, beside its configuration: see ``Node``."""

    transport_factory: Callable[[EngineConfig], EngineTransport] | None
    model_files: Callable[[EngineConfig], ModelFiles]
    session_limits: SessionLimits | None
    restart_limits: RestartLimits | None
    native: NativeConfig
    sandbox_command: Sequence[str]
    encoder_transports: EncoderTransports
    dispatch: DispatchPolicy | None
    debug: bool


class NodeParts:
    """Every part of a node.

    Raises:
        ConfigError, ModelNotFound: see ``Node``.
    """

    def __init__(self, config: NodeConfig, around: Surroundings, notices: NodeNotices) -> None:
        if around.dispatch is not None and config.record_path is not None:
            raise ConfigError(
                f"an event log ({config.record_path}) does not hold the dispatch policy "
                f"{around.dispatch.name!r}: a replay would decide otherwise; record without it"
            )
        self._notices = notices
        self.clock = SystemClock()
        self.admission = TenantGate(config.tenants)
        self.latencies = LatencyObserver()
        tracing = TracingParts(self.clock, config.otlp_endpoint)
        self.spans, self.classes = tracing.spans, tracing.classes
        self.observers: list[Observer] = [self.latencies]
        self.control = ControlThread(
            make_controller(config.scheduler, config.tenants, around.dispatch, tracing.listener),
            clock=self.clock,
            observers=self.observers,
            on_failure=notices.health_changed,
            replicas={engine.name: engine.replicas for engine in config.engines},
            debug=around.debug,
        )
        self.figures = ProgramFigures(lambda: self.control.call(lambda _: None))
        self.observers.append(self.figures)
        self._limits = around.restart_limits or RestartLimits(stalled_s=config.load_stall_timeout_s)
        factory = around.transport_factory
        engines = config.engines if factory else resolve_engines(config.engines)
        self.fleet = self._make_fleet(config, engines, around)
        self.encoders = EncoderFleet(
            config.encoders,
            around.encoder_transports,
            self.control,
            clock=self.clock,
            on_change=notices.health_changed,
            on_progress=notices.report,
            limits=self._limits,
        )
        self.hosts = ProgramHosts(self._on_blocked, around.native)
        sandboxed = LinkSettings(
            config.sandbox, engines, around.sandbox_command, on_progress=notices.report
        )
        self.sandbox = SandboxRuntime(sandboxed, self.clock, around.native.grace_s)
        self.uploads = UploadTable(cache_directory(config.sandbox) / "uploads")
        self.services = NodeServices(self.clock, config, self.encoders, self.encoder)
        self.preparation = Preparation()
        self.programs = ProgramTable(figures=self.figures, on_forget=tracing.book.forget)
        numbers = map(ProgramId, itertools.count(1))
        self.sessions = SessionTable(
            self.control,
            self.fleet.models.models,
            numbers,
            self.admission.check,
            around.session_limits,
            preparation=self.preparation,
            parents=tracing.parents,
        )
        self.traces = TraceReader(
            self.control, tracing.book, self.programs, self.sessions, tracing.unix
        )
        connector = ProgramConnector(
            self.control,
            self.services,
            self.fleet.models,
            numbers,
            self.preparation,
            self.figures,
            tracing.parents,
        )
        self.launcher = self._make_launcher(connector)

    def _make_fleet(
        self, config: NodeConfig, engines: Sequence[EngineConfig], around: Surroundings
    ) -> EngineFleet:
        transport = choose_transport(config.engine_process, around.transport_factory)
        return EngineFleet(
            engines,
            EngineBackend(transport, around.model_files, self._limits),
            self.control,
            clock=self.clock,
            on_progress=self._notices.report,
            on_change=self._notices.health_changed,
            node_traits=NODE_TRAITS | ENCODER_TRAITS if config.encoders else NODE_TRAITS,
        )

    def _make_launcher(self, connector: ProgramConnector) -> ProgramLauncher:
        return ProgramLauncher(
            self.admission,
            self.programs,
            self.sessions,
            Runtimes(self.hosts.users, self.sandbox),
            connector,
            self.inspect,
            self.uploads,
            self.fleet.check_any,
        )

    def encoder(self, name: str | None, kind: EncoderKind) -> EncoderService:
        """See ``Node.encoder``."""
        self.admission.check()
        return self.encoders.find(name, kind)

    async def inspect(self, code: bytes) -> GuestProgram:
        """See ``Node.inspect``."""
        self.admission.check()
        return await self.sandbox.inspect(code)

    def _on_blocked(self, blocked: BlockedLoop) -> None:
        """Runs on the watchdog's thread."""
        self._notices.tell(self.programs.note_blocked, blocked.program, blocked.stack)
