"""What a tenant's fair share is charged for its decodes: every step, however they are sent."""

from __future__ import annotations

from typing import Any

import pytest
from control_world import ENGINE, World

from quire.core.ids import TenantId

PROMPT = [3, 1, 4, 1, 5, 9]


def virtual_time(world: World, tenant: str) -> float:
    planner = world.controller._schedulers[ENGINE].planner
    return planner._fairness.start(TenantId(tenant))


@pytest.mark.parametrize("num_tokens", [1, 9, 100])
@pytest.mark.parametrize("config", [{}, {"run_ahead": False}, {"max_steps_per_message": 1}])
def test_each_step_is_charged_however_many_a_message_has(
    num_tokens: int, config: dict[str, Any]
) -> None:
    """The prompt's message gives the first token, so there is a step for each of the others."""
    world = World(config=config)
    world.program()
    world.do(1, world.alloc(range(40)))
    (outcome,) = world.issue(1, world.decode(range(40), PROMPT, num_tokens))
    world.run()
    assert len(outcome.tokens) == num_tokens
    assert virtual_time(world, "t") == len(PROMPT) + num_tokens - 1
