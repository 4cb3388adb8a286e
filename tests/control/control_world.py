"""Shared building blocks of the control tests: a harness with one fake engine, short commands."""

from __future__ import annotations

from typing import Any

from quire.control import Controller
from quire.control.programs.program import CommandQueue, Program
from quire.core import commands as c
from quire.core.calls import CreateQueue
from quire.core.config import TenantConfig
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.events import ProgramStarted
from quire.core.ids import EngineId, ModelId, ProgramId, QueueId, TenantId, ThreadId
from quire.core.policy import GraphPlace
from quire.core.scheduler_config import SchedulerConfig
from quire.testing import FakeEngine
from quire.testing.fake_engine import fake_pool
from quire.testing.harness import CommandOutcome, ControlHarness

ENGINE, MODEL = EngineId("fake"), ModelId("fake")
GREEDY = SamplerSpec()


def queue_alone(number: int) -> CommandQueue:
    """A queue and its program that no controller knows."""
    started = ProgramStarted(
        time_s=0.0,
        program=ProgramId(number),
        tenant=TenantId("t"),
        form="inferlet",
        name="",
    )
    program = Program(started, number)
    return CommandQueue(QueueId(number), program, MODEL, ThreadId(0), GraphPlace(), 0, number)


class World:
    """One controller, one fake engine; ids count up by themselves."""

    def __init__(
        self,
        *,
        tenants: tuple[TenantConfig, ...] = (),
        engine: FakeEngine | None = None,
        controller: Controller | None = None,
        config: dict[str, Any] | None = None,
        **pool: int,
    ) -> None:
        self.engine = engine or FakeEngine(fake_pool(**pool))
        settings = dict(config or {})
        dispatch = settings.pop("dispatch", None)
        self.controller = controller or Controller(
            SchedulerConfig(**settings), tenants, dispatch=dispatch
        )
        self.harness = ControlHarness(self.controller, {ENGINE: self.engine})
        self.num_commands = 0

    def program(
        self, program: int = 1, *, queues: int = 1, tenant: str = "t", **fields: Any
    ) -> int:
        fields.setdefault("form", "inferlet")
        self.harness.post(
            ProgramStarted(
                time_s=self.harness.now_s,
                program=ProgramId(program),
                tenant=tenant,
                name=f"p{program}",
                **fields,
            )
        )
        for queue in range(1, queues + 1):
            self.queue(program, queue)
        return program

    def queue(self, program: int, queue: int, **fields: Any) -> None:
        self.harness.call(
            ProgramId(program), CreateQueue(QueueId(queue), fields.pop("model", MODEL), **fields)
        )

    def id(self) -> int:
        self.num_commands += 1
        return self.num_commands

    def issue(self, program: int, *commands: c.Command, queue: int = 1) -> list[CommandOutcome]:
        return self.harness.issue(ProgramId(program), QueueId(queue), *commands)

    def run(self) -> int:
        return self.harness.run_until_idle()

    def do(self, program: int, *commands: c.Command, queue: int = 1) -> list[CommandOutcome]:
        outcomes = self.issue(program, *commands, queue=queue)
        self.run()
        return outcomes

    def alloc(self, pages: Any, **fields: Any) -> c.AllocPages:
        return c.AllocPages(id=self.id(), pages=list(pages), **fields)

    def alloc_embeds(self, embeds: Any, **fields: Any) -> c.AllocEmbeds:
        return c.AllocEmbeds(id=self.id(), embeds=list(embeds), **fields)

    def dealloc(self, pages: Any, **fields: Any) -> c.DeallocPages:
        return c.DeallocPages(id=self.id(), pages=list(pages), **fields)

    def embed(self, embeds: Any, tokens: Any, position: int = 0, **fields: Any) -> c.EmbedText:
        tokens = list(tokens)
        return c.EmbedText(
            id=self.id(),
            tokens=tokens,
            embeds=list(embeds),
            positions=list(range(position, position + len(tokens))),
            **fields,
        )

    def forward(
        self, context: Any, inputs: Any, output: Any, outputs: Any = (), **fields: Any
    ) -> c.Forward:
        return c.Forward(
            id=self.id(),
            context=list(context),
            inputs=list(inputs),
            output=list(output),
            outputs=list(outputs),
            **fields,
        )

    def sample(self, embeds: Any, position: int = 0, **fields: Any) -> c.Sample:
        embeds = list(embeds)
        fields.setdefault("sampler", GREEDY)
        return c.Sample(id=self.id(), embeds=embeds, positions=[position] * len(embeds), **fields)

    def decode(
        self, pages: Any, tokens: Any, max_tokens: int = 8, position: int = 0, **fields: Any
    ) -> c.Decode:
        pages = list(pages)
        fields.setdefault("sampler", GREEDY)
        fields.setdefault("stop", StopSpec(max_tokens=max_tokens))
        fields.setdefault("context", pages)
        return c.Decode(
            id=self.id(), output=pages, tokens=list(tokens), position=position, **fields
        )

    @property
    def pool(self) -> Any:
        return self.controller.statistics().engines[0].pool

    @property
    def figures(self) -> Any:
        return self.controller.statistics().engines[0]


def alone(tokens: Any, max_tokens: int, **pool: int) -> list[int]:
    """What a greedy decode of ``tokens`` says when it has an engine to itself."""
    world = World(**pool)
    world.program()
    size = world.engine.info.pool.page_size
    pages = range(-(-(len(tokens) + max_tokens) // size))
    return world.do(1, world.alloc(pages), world.decode(pages, tokens, max_tokens))[1].tokens
