"""Sessions that call again and again on a pool that is too small for all of them."""

from __future__ import annotations

from typing import Any

from control_world import World

from quire.control import WaitsFor
from quire.core.calls import CloseQueue, CreateQueue
from quire.core.config import TenantConfig
from quire.core.events import ProgramEnded
from quire.core.ids import ModelId, ProgramId, QueueId
from quire.core.scheduler_config import PausingConfig
from quire.testing.harness import CommandOutcome

ANSWER = 4
ELDER = 1


class Agents:
    """Sessions whose calls extend one text, as clients of the chat route make them: each call has
    a queue of its own, and holds nothing behind its end. Pages have four slots. An elder decodes
    all the time, so that nobody else is the oldest active program. ``prompt``: the tokens of its
    prompt; more than 32 tell what a token costs."""

    def __init__(
        self,
        *,
        max_s: float = 1000.0,
        max_hold_s: float = 1000.0,
        above: float = 0.375,
        holds: bool = False,
        prompt: int = 1,
        tenants: tuple[TenantConfig, ...] = (),
        **settings: Any,
    ) -> None:
        pausing = PausingConfig(
            above=above, resume_below=above or 1.0, max_s=max_s, max_hold_s=max_hold_s
        )
        config = {
            "pausing": pausing,
            "output_share": 1.0,
            "max_steps_per_message": 1,
            "run_ahead": False,
            **settings,
        }
        self.world = World(num_blocks=64, num_host_blocks=0, config=config, tenants=tenants)
        self.holds = holds
        self.texts: dict[int, list[int]] = {}
        self.calls: dict[int, tuple[int, CommandOutcome]] = {}
        self.cached: dict[int, int] = {}
        self.num_queues = 0
        self.world.program(ELDER)
        decode = self.world.decode(range(38), range(prompt), 152 - prompt)
        self.elder = self.world.issue(ELDER, self.world.alloc(range(38)), decode)[1]
        self.world.harness.step()

    def call(self, agent: int, num_tokens: int, **fields: Any) -> None:
        """It adds ``num_tokens`` to its text and calls. ``fields``: of the program that begins."""
        world = self.world
        if agent not in self.texts:
            world.program(agent, queues=0, **fields)
            self.texts[agent] = []
        text = self.texts[agent]
        text += [agent * 20 + n % 20 for n in range(num_tokens)]
        self.num_queues += 1
        queue = self.num_queues
        world.harness.call(ProgramId(agent), CreateQueue(QueueId(queue), ModelId("fake")))
        first = queue * 100
        pages = range(first, first + -(-(len(text) + ANSWER) // 4))
        decode = world.decode(pages, text, ANSWER, context=[])
        self.calls[agent] = queue, world.issue(agent, world.alloc(pages), decode, queue=queue)[1]

    def settle(self) -> None:
        """Step until all calls are over or paused, two messages at least: what happens within one
        is seen by the plan of the next."""
        for _ in range(2):
            assert self.world.harness.step()
            self.take_answers()
        while any(not self.is_paused(agent) for agent in self.calls):
            assert self.world.harness.step()
            assert self.elder.status == "pending", "the scene is too long for its elder"
            self.take_answers()

    def take_answers(self) -> list[int]:
        """Who was answered; their queues are closed, and their texts take the answers in."""
        answered = [a for a, (_, outcome) in self.calls.items() if outcome.status == "done"]
        for agent in answered:
            queue, outcome = self.calls.pop(agent)
            self.texts[agent] += outcome.tokens
            self.cached[agent] = outcome.chunks[0].num_cached_tokens
            if not self.holds:
                self.world.harness.call(ProgramId(agent), CloseQueue(QueueId(queue)))
        return answered

    def step(self) -> None:
        assert self.world.harness.step()
        self.take_answers()

    def turn(self, agent: int, num_tokens: int, **fields: Any) -> None:
        self.call(agent, num_tokens, **fields)
        self.settle()

    def end(self, agent: int) -> None:
        now_s = self.world.harness.now_s
        self.world.harness.post(ProgramEnded(time_s=now_s, program=ProgramId(agent)))

    def is_paused(self, agent: int) -> bool:
        found = self.world.controller.process(ProgramId(agent))
        assert found is not None
        return found.wait is not None and found.wait.reason is WaitsFor.PAUSED
