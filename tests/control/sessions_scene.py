"""Sessions of one text each, on a device with room for about ten of them."""

from __future__ import annotations

from collections.abc import Callable

from control_world import ENGINE, World

from quire.control.memory.content import Content
from quire.core.calls import CloseQueue, CreateQueue
from quire.core.events import ProgramEnded
from quire.core.ids import ModelId, ProgramId, QueueId
from quire.core.scheduler_config import PausingConfig
from quire.testing import FakeEngine
from quire.testing.fake_engine import fake_pool
from quire.testing.fake_engine.memory import Move

NUM_BLOCKS = 64
PROMPT = 24
ANSWER = 4
"""A text of 24 tokens and its answer: seven pages of four slots, six of them full and known."""


class Sessions:
    """Each call has a queue of its own and leaves nothing but what the prefix index keeps. Nobody's
    room is kept over a wait."""

    def __init__(
        self,
        num_host_blocks: int,
        *,
        num_disk_blocks: int = 0,
        above: float = 0.0,
        max_batch_tokens: int = 128,
        disk_fault: Callable[[Move], bool] | None = None,
    ) -> None:
        pausing = PausingConfig(above=above, resume_below=above or 1.0, max_hold_s=0.0)
        pool = fake_pool(
            num_blocks=NUM_BLOCKS,
            num_host_blocks=num_host_blocks,
            num_disk_blocks=num_disk_blocks,
            max_batch_tokens=max_batch_tokens,
        )
        engine = FakeEngine(pool, disk_fault=disk_fault)
        self.world = World(engine=engine, config={"pausing": pausing})
        self.num_queues = 0

    def call(self, session: int, num_tokens: int = PROMPT) -> int:
        """One call; how many tokens of its prompt were found."""
        world, self.num_queues = self.world, self.num_queues + 1
        if world.controller.process(ProgramId(session)) is None:
            world.program(session, queues=0)
        queue, first = QueueId(self.num_queues), self.num_queues * 100
        world.harness.call(ProgramId(session), CreateQueue(queue, ModelId("fake")))
        text = [session, *range(100, 99 + num_tokens)]
        pages = range(first, first + -(-(num_tokens + ANSWER) // 4))
        decode = world.decode(pages, text, ANSWER, context=[])
        _, outcome = world.do(session, world.alloc(pages), decode, queue=queue)
        assert outcome.status == "done"
        world.harness.call(ProgramId(session), CloseQueue(queue))
        return outcome.chunks[0].num_cached_tokens

    def end(self, session: int) -> None:
        now_s = self.world.harness.now_s
        self.world.harness.post(ProgramEnded(time_s=now_s, program=ProgramId(session)))

    def contents(self, session: int) -> list[Content]:
        """What the index has of its text."""
        memory = self.world.controller._schedulers[ENGINE].engine.memory
        found = memory.index.contents()
        return [c for c in found if c.node is not None and c.node.path()[0].tokens[0] == session]

    def num_on_host(self, session: int) -> int:
        return sum(content.host_block is not None for content in self.contents(session))

    def wait(self, seconds: float) -> None:
        """Let time pass, and do what is due."""
        harness = self.world.harness
        until_s = harness.now_s + seconds
        while (timer_s := harness.shell.timer_s) is not None and timer_s <= until_s:
            harness.fire_timer()
            self.world.run()
        harness.clock.advance_to(until_s)
