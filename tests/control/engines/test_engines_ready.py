"""``ReadyQueues``: what it says of the prompts of queues that may start."""

from __future__ import annotations

from control_world import ENGINE, World

from quire.control.engines.state import EngineState
from quire.core.ids import ProgramId, QueueId


def test_prompts_count_from_when_they_may_start_until_they_begin() -> None:
    world = World(num_blocks=64, max_sequences=1)
    engine = world.controller._engines[ENGINE]
    assert isinstance(engine, EngineState)
    ready = engine.ready
    for program, num_tokens in ((1, 9), (2, 5)):
        world.program(program)
        pages = range(program * 100, program * 100 + 4)
        world.issue(program, world.alloc(pages), world.decode(pages, list(range(num_tokens)), 3))
    assert ready.num_prompt_tokens == 5, "the first has begun"
    queue = world.controller._table.get(ProgramId(2)).queues[QueueId(1)]  # type: ignore[union-attr]
    ready.add(queue)
    assert ready.num_prompt_tokens == 5, "a queue counts once"
    ready.discard(queue)
    ready.discard(queue)
    assert ready.num_prompt_tokens == 0
    ready.add(queue)
    world.run()
    assert ready.num_prompt_tokens == 0
