"""``LocalNode``: a whole node in one asyncio loop, deterministic, with fake engines.

Gives programs a ``ProgramPort`` and runs control and engines between their turns, one engine
message per turn of the loop. Nothing sleeps: time is the fake clock's. Ports may be used from other
threads (a native runtime has its own), whose order is then up to the operating system.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Self

from quire.control import Controller
from quire.core.actions import Deliver, Fail, Terminate
from quire.core.config import TenantConfig
from quire.core.errors import ProgramTerminated
from quire.core.events import EventAt, ProgramStarted
from quire.core.ids import EngineId, ModelId, ProgramForm, ProgramId, TenantId
from quire.core.interfaces import ProgramPort, ReplySink, ServedModel, Tokenizer
from quire.core.kept_queries_config import KeptQueriesConfig
from quire.core.quotas import Quotas
from quire.core.scheduler_config import SchedulerConfig
from quire.programs.capabilities import Capabilities
from quire.programs.inferlet import Inferlet, Main, inferlet
from quire.programs.parameters import as_text
from quire.programs.runtime.host import ProgramHost
from quire.programs.runtime.running import Connect, RunningProgram
from quire.programs.search import SearchEngine, SearchService
from quire.programs.services.children import ChildService, ChildWanted, Family
from quire.programs.services.operations import Identity
from quire.programs.services.shared import SharedServices
from quire.programs.services.store import Store
from quire.programs.vectors import ExactStore, VectorService
from quire.programs.workflow.durable import KeptQueries, KeptQueryService
from quire.programs.workflow.sharing import SharedResults, SharingService
from quire.programs.workflow.speculation import SpeculationLedger, SpeculationService
from quire.simulation.clock import VirtualClock
from quire.testing.fake_engine import FakeEngine, fake_pool
from quire.testing.harness import ControlHarness
from quire.testing.local_children import LocalChild, child_program
from quire.testing.local_clock import LocalClock
from quire.testing.local_port import LocalPort
from quire.testing.local_search import LocalSearch
from quire.testing.scripted import Answer, ScriptedModel
from quire.testing.tokenizer import CHAT_TEMPLATE, FakeTokenizer


class LocalNode:
    """Use as ``async with LocalNode() as node``.

    On exit every remaining program is ended and every command must have ended; a fault of the
    control layer that occurred before is raised there.
    """

    def __init__(
        self,
        engines: Mapping[EngineId, FakeEngine] | None = None,
        *,
        config: SchedulerConfig | None = None,
        tenants: Sequence[TenantConfig] = (),
        tokenizer: Tokenizer | None = None,
        chat_template: str = CHAT_TEMPLATE,
        clock: VirtualClock | None = None,
        search: SearchEngine | None = None,
        kept_queries: KeptQueries | None = None,
        speculation: SpeculationLedger | None = None,
        shared_results_bytes: int = 0,
    ) -> None:
        self.tokenizer = tokenizer or FakeTokenizer()
        self._chat_template = chat_template
        self.controller = Controller(config or SchedulerConfig(), tenants=tuple(tenants))
        self.harness = ControlHarness(
            self.controller, engines, clock=clock, on_answer=self._deliver
        )
        self.clock = LocalClock(self.harness.clock)
        self.services = SharedServices(self.harness.clock, Store(now_s=self.harness.clock.now_s))
        self.vectors = ExactStore()
        self.search = LocalSearch(search)
        self.speculation = speculation or SpeculationLedger()
        self.shared_results = SharedResults(shared_results_bytes, 3600.0, self.harness.clock.now_s)
        self.kept_queries = kept_queries or KeptQueries(None, KeptQueriesConfig())
        self.fault: Exception | None = None
        self._hold = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._host: ProgramHost | None = None
        self._ports: dict[ProgramId, LocalPort] = {}
        self._program_ids = count(1)
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._host = ProgramHost(self._loop)
        for engine in self.harness.engines.values():
            engine.wake_by(self._schedule)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._host is not None:
            await self._host.shutdown()
        for port in list(self._ports.values()):
            port.close("the node closes")
        self.hold = False
        await self.idle()
        self._loop = None
        self.services.close()
        if self.fault is not None:
            raise self.fault
        pending = self.harness.pending()
        assert not pending or error is not None, f"commands without an end: {pending}"

    # -- programs ----------------------------------------------------------------------------------

    def connect(
        self,
        name: str = "test",
        *,
        tenant: str = "default",
        form: ProgramForm = "inferlet",
        quotas: Quotas | None = None,
        priority: int = 0,
        seed: int = 0,
        family: Family | None = None,
        parent: ProgramId | None = None,
        capabilities: Capabilities | None = None,
    ) -> Connect:
        """The factory that a runtime calls to get the port of a new program. ``parent``: the
        program that launches it, into its ``family``. ``capabilities``: what its manifest names
        (None: everything)."""
        bounds = quotas or Quotas()

        def connected(sink: ReplySink, loop: asyncio.AbstractEventLoop) -> ProgramPort:
            program = ProgramId(next(self._program_ids))
            children = ChildService(
                Identity(program, TenantId(tenant), name, capabilities or Capabilities()),
                family or Family(bounds.max_children),
                seed,
                self._launch_child,
                _here,
                loop.call_soon_threadsafe,
            )
            vectors = VectorService(children.identity, self.vectors)
            queries = KeptQueryService(children.identity, self.kept_queries)
            sharing = SharingService(children.identity, self.shared_results)
            speculation = SpeculationService(self.speculation)
            more = [children, vectors, SearchService(self.search), queries, sharing, speculation]
            services = self.services.of(children.identity, lambda: more)
            port = LocalPort(self, program, bounds, sink, loop, services, seed)
            self._ports[port.program] = port
            self.submit(
                lambda now_s: ProgramStarted(
                    time_s=now_s,
                    program=port.program,
                    tenant=TenantId(tenant),
                    form=form,
                    name=name,
                    kind="" if form == "session" else name,
                    parent=parent,
                    priority=priority,
                    quotas=port.quotas,
                    shares_quotas=parent is not None,
                )
            )
            return port

        return connected

    def models(self) -> list[ServedModel]:
        """One model per engine that is up, each followed by its adapters."""
        models = [
            ServedModel(
                id=ModelId(engine.info.model),
                base=ModelId(engine.info.model),
                info=engine.info,
                tokenizer=self.tokenizer,
                chat_template=self._chat_template,
            )
            for engine_id, engine in self.harness.engines.items()
        ]
        return [one for model in models for one in model.with_adapters()]

    async def run(
        self, program: Inferlet | Main, *args: Any, connect: Connect | None = None, **named: Any
    ) -> Any:
        """Run a program to its end on this loop and return its result (see
        ``RunningProgram.result``)."""
        return await self.launch(program, *args, connect=connect, **named).result()

    def launch(
        self, program: Inferlet | Main, *args: Any, connect: Connect | None = None, **named: Any
    ) -> RunningProgram:
        """Start a program on this loop: an ``@inferlet`` or a plain ``async def main(api, *args)``.

        ``args`` and ``named`` are passed as in any launch: strings, or other JSON values. An
        ``@inferlet`` is held to its manifest, as on any node; a plain ``main`` has none.
        ``connect`` (from ``self.connect``) determines the tenant, and the quotas and capabilities
        instead of the manifest's.
        """
        assert self._host is not None, "use `async with LocalNode() as node`"
        started = program if isinstance(program, Inferlet) else inferlet()(program)
        texts = [as_text(arg) for arg in args]
        by_name = {name: as_text(value) for name, value in named.items()}
        if connect is None:
            named_in = started.capabilities if started is program else None
            connect = self.connect(started.name, quotas=started.quotas, capabilities=named_in)
        return self._host.launch(started, texts, connect, by_name)

    def programs(self) -> list[RunningProgram]:
        """Programs that have not ended, in order of launch."""
        return [] if self._host is None else self._host.programs()

    async def _launch_child(self, wanted: ChildWanted) -> LocalChild:
        program = child_program(wanted)
        connect = self.connect(
            program.name,
            tenant=wanted.parent.tenant,
            quotas=wanted.quotas,
            capabilities=program.capabilities,
            seed=wanted.seed,
            family=wanted.family,
            parent=wanted.parent.program,
        )
        return LocalChild(self.launch(program, *wanted.args, connect=connect, **wanted.named))

    # -- the loop ----------------------------------------------------------------------------------

    @property
    def hold(self) -> bool:
        """Whether engine messages wait for the test (``harness.step_engine``)."""
        return self._hold

    @hold.setter
    def hold(self, hold: bool) -> None:
        self._hold = hold
        self._schedule()

    def submit(self, event: EventAt) -> None:
        """Handle an event in a turn of the node's loop. From any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._handle, event)

    async def idle(self) -> None:
        """Wait until all events submitted before are handled and no engine has work that it may
        do."""
        handled = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(handled.set_result, None)
        await handled
        await self._quiet.wait()

    def _handle(self, event: EventAt) -> None:
        with self._guarded():
            self.harness.post(event(self.harness.now_s))
        self._schedule()

    def _schedule(self) -> None:
        if self._loop is not None and self._quiet.is_set():
            self._quiet.clear()
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Run one engine message, then let programs run."""
        moved = False
        if not self._hold and self.fault is None:
            with self._guarded():
                moved = self.harness.step()
        if moved and self._loop is not None:
            self._loop.call_soon(self._pump)
        else:
            self._quiet.set()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """A fault of control or a broken contract ends every program; ``__aexit__`` raises it."""
        if self.fault is not None:
            return
        try:
            yield
        except Exception as exc:
            self.fault = exc
            record = ProgramTerminated(f"the node has failed: {exc}").record()
            for port in list(self._ports.values()):
                port.deliver(Terminate(program=port.program, error=record))

    def _deliver(self, action: Deliver | Fail | Terminate) -> None:
        port = self._ports.get(action.program)
        if port is not None:
            port.deliver(action)

    def forget(self, program: ProgramId) -> None:
        """Forget ``program``, whose port has closed."""
        self._ports.pop(program, None)


def scripted_node(
    answer: Answer,
    *,
    page_size: int = 16,
    num_blocks: int = 1024,
    tokenizer: FakeTokenizer | None = None,
    chat_template: str = CHAT_TEMPLATE,
    search: SearchEngine | None = None,
) -> LocalNode:
    """A node whose one model answers each prompt with ``answer(prompt)``; see ``ScriptedModel``.
    ``chat_template``: that of another model, to test a program with that model's prompt format.

    ::

        async with scripted_node(lambda prompt: "Yes.<|end|>") as node:
            assert await node.run(my_program, "Is water wet?") == "Yes."
    """
    tokenizer = tokenizer or FakeTokenizer()
    engine = FakeEngine(
        fake_pool(page_size=page_size, num_blocks=num_blocks),
        script=ScriptedModel(answer, tokenizer),
    )
    return LocalNode(
        {EngineId("fake"): engine},
        tokenizer=tokenizer,
        chat_template=chat_template,
        search=search,
    )


async def _here(work: Coroutine[Any, Any, Any]) -> Any:
    """Run the work on the node's only loop."""
    return await work
