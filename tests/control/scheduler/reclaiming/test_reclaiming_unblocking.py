"""When no command can go on: who makes way, and that no program fails that could have waited."""

from __future__ import annotations

import pytest
from control_world import ENGINE, World, alone

from quire.control.engines.exchange_runs import SendRun
from quire.core.scheduler_config import PausingConfig
from quire.testing.harness import CommandOutcome

PROMPTS = {1: [1, 2], 2: [2, *range(50, 73)], 3: [3, *range(80, 88)]}
MAX_TOKENS = {1: 2, 2: 3, 3: 14}
ALONE = {"pausing": PausingConfig(above=0.0)}
"""Nobody is paused: what fits is left to those that run."""


def start(world: World, program: int) -> CommandOutcome:
    pages = range(-(-(len(PROMPTS[program]) + MAX_TOKENS[program]) // 4))
    decode = world.decode(pages, PROMPTS[program], MAX_TOKENS[program])
    return world.issue(program, world.alloc(pages), decode)[1]


def blocks_of(world: World, program: int) -> int:
    [row] = [row for row in world.controller.processes() if row.program == program]
    return row.num_device_blocks


@pytest.mark.parametrize("is_sending", [False, True])
def test_the_decode_that_stands_worst_makes_way_and_goes_on_later(is_sending: bool) -> None:
    """An older program's prompt (2) and an answer that outranks it (3) fill the memory: neither
    may take from the other. The oldest program (1), which could from both, waits for a seat. A
    send of something else, which may take long, does not hold them up."""
    world = World(
        num_blocks=8, num_host_blocks=0, max_batch_tokens=4, max_sequences=2, config=ALONE
    )
    for program, priority in ((1, -5), (2, 0), (3, 5)):
        world.program(program, priority=priority)
    outcomes = {3: start(world, 3)}
    while not outcomes[3].tokens:
        world.harness.step()
    outcomes[2] = start(world, 2)  # the oldest that is active: it is let in without room
    while not blocks_of(world, 2):
        world.harness.step()
    outcomes[1] = start(world, 1)
    engine = world.controller._engines[ENGINE]
    if is_sending:
        [entry, *_] = engine.running
        engine.num_sends, engine.sends[1] = 1, SendRun(entry, [], [], 0)
    world.run()
    engine.sends.clear()
    for program, outcome in outcomes.items():
        assert outcome.status == "done", (program, outcome.error)
        assert outcome.tokens == alone(PROMPTS[program], MAX_TOKENS[program])
    rows = {row.program: row.num_preemptions for row in world.controller.processes()}
    assert rows[3] == 0


def test_a_decode_makes_way_once_before_a_command_is_refused() -> None:
    """What an idle program holds cannot be computed again, and there is no other tier: a forward
    of the oldest program and a decode find no room, whoever makes way."""
    world = World(num_blocks=6, num_host_blocks=0, max_batch_tokens=20, config=ALONE)
    for program in (1, 2, 3):
        world.program(program)
    mask = [[True] * 20] * 20
    world.do(
        1,
        world.alloc(range(5)),
        world.alloc_embeds(range(20)),
        world.embed(range(20), range(20)),
        world.forward([], range(20), range(5), mask=mask),
    )
    forward = world.issue(
        2,
        world.alloc(range(2)),
        world.alloc_embeds(range(8)),
        world.embed(range(8), range(8)),
        world.forward([], range(8), range(2)),
    )[3]
    decode = start(world, 3)
    world.run()
    for outcome in (forward, decode):
        assert outcome.error is not None
        assert outcome.error.code == "pool_exhausted"
