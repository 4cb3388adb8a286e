"""Commands that wait for another queue to let go of a page."""

from __future__ import annotations

import pytest
from control_world import World, alone

from quire.core.calls import Cancel
from quire.core.ids import ProgramId

PAGES, PROMPT, OUTPUT = range(5), [1, 2, 3], 12


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_who_is_held_up_goes_on_behind_it_or_is_cancelled(is_cancelled: bool) -> None:
    world = World(config={"max_steps_per_message": 1})
    world.program(1)
    world.queue(1, 2)
    _, first = world.issue(1, world.alloc(PAGES), world.decode(PAGES, PROMPT, OUTPUT))
    while not first.tokens:
        assert world.harness.step()
    (held,) = world.issue(1, world.decode(PAGES, [9], 1, position=20), queue=2)
    num_tokens = len(first.tokens)
    while len(first.tokens) < num_tokens + 3:
        assert world.harness.step()
    assert (first.status, held.status) == ("pending", "pending")
    if is_cancelled:
        world.harness.call(ProgramId(1), Cancel(held.command.id))
        assert held.status == "cancelled"
        assert world.controller.statistics().num_pending_commands == 1
    world.run()
    assert first.tokens == alone(PROMPT, OUTPUT)
    assert held.status == ("cancelled" if is_cancelled else "done"), held.error
    assert len(held.tokens) == (0 if is_cancelled else 1)
    assert world.controller.statistics().num_pending_commands == 0
    world.controller.check_invariants()
