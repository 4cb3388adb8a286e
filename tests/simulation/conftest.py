"""A light engine, and the events of programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from quire.control import Controller
from quire.core.actions import Deliver, Fail, Terminate
from quire.core.calls import CreateQueue, Issue
from quire.core.commands import AllocPages, Command, Decode
from quire.core.decoding import DecodeChunk, SamplerSpec, StopSpec
from quire.core.events import Called, ProgramStarted
from quire.core.ids import CommandId, EngineId, ModelId, PageId, ProgramId, QueueId, TenantId
from quire.core.scheduler_config import SchedulerConfig
from quire.simulation import LightEngine, Simulation, StepCost, VirtualShell, light_pool

ENGINE = EngineId("light#0")
COST = StepCost(message_s=0.0, step_s=1.0, row_s=0.0, prompt_token_s=0.0)
"""A step takes a second, with any number of rows."""


class World:
    """A controller, light engines, and programs of one decode each."""

    def __init__(
        self,
        num_engines: int = 1,
        cost: StepCost = COST,
        *,
        run_ahead: bool = False,
        **pool: int,
    ) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.ended_s: dict[int, float] = {}
        self.failed: dict[int, str] = {}
        config = SchedulerConfig(max_steps_per_message=1, run_ahead=run_ahead)
        self.shell = VirtualShell(Controller(config), check=True, on_answer=self._answered)
        self.simulation = Simulation(self.shell)
        for index in range(num_engines):
            engine = LightEngine(light_pool(**{"num_blocks": 64, **pool}), cost)
            name = EngineId(f"light#{index}")
            self.shell.start_engine(name, engine, overhead=cost.overhead)

    def launch(self, program: int, prompt: Sequence[int], num_tokens: int) -> Callable[[], None]:
        """A call for the agenda that launches the program."""

        def begin() -> None:
            now_s = self.shell.now_s
            owner, queue = ProgramId(program), QueueId(1)
            self.tokens[program] = []
            self.shell.post(
                ProgramStarted(
                    time_s=now_s, program=owner, tenant=TenantId("t"), form="inferlet", name="p"
                )
            )
            self.shell.post(
                Called(time_s=now_s, program=owner, call=CreateQueue(queue, ModelId("light")))
            )
            pages = [PageId(n) for n in range(-(-(len(prompt) + num_tokens) // 16))]
            self.issue(program, AllocPages(id=CommandId(1), pages=pages))
            self.issue(
                program,
                Decode(
                    id=CommandId(2),
                    context=pages,
                    output=pages,
                    tokens=list(prompt),
                    position=0,
                    sampler=SamplerSpec(seed=program),
                    stop=StopSpec(num_tokens),
                ),
            )

        return begin

    def issue(self, program: int, *commands: Command) -> None:
        self.shell.post(
            Called(
                time_s=self.shell.now_s,
                program=ProgramId(program),
                call=Issue(QueueId(1), list(commands)),
            )
        )

    def _answered(self, action: Deliver | Fail | Terminate) -> None:
        if isinstance(action, Fail):
            self.failed[action.program] = action.error.message
        elif isinstance(action, Deliver) and isinstance(action.reply, DecodeChunk):
            self.tokens[action.program] += action.reply.token_ids
            if action.last:
                self.ended_s[action.program] = self.shell.now_s


@pytest.fixture
def make_world() -> type[World]:
    return World
