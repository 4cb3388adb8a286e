"""Commands that come after others: chains of them fail together, whatever their length."""

from __future__ import annotations

import sys

from control_world import World

from quire.core.calls import Cancel
from quire.core.ids import ProgramId


def test_a_long_chain_over_several_queues_fails_with_its_first_command() -> None:
    world = World()
    world.harness.shell.check = False  # after each event, of thousands of commands
    world.program(1, queues=3)
    first = world.issue(1, world.alloc(range(8)), world.decode(range(8), [1, 2, 3], 6), queue=3)[1]
    chain = [first]
    for number in range(sys.getrecursionlimit()):
        link = world.alloc([100 + number], after=(chain[-1].command.id,))
        chain += world.issue(1, link, queue=1 + number % 2)
    world.harness.call(ProgramId(1), Cancel(first.command.id))
    world.run()
    assert first.status == "cancelled"
    assert {one.error.code for one in chain[1:] if one.error is not None} == {"queue_poisoned"}
    assert {one.status for one in chain[1:]} == {"failed"}
    world.controller.check_invariants()


def test_a_command_may_have_the_number_0() -> None:
    world = World()
    world.program(1, queues=2)
    world.num_commands = -1
    first = world.do(1, world.alloc([1]))[0]
    after = world.do(1, world.alloc([2], after=(first.command.id,)), queue=2)[0]
    assert (first.command.id, after.status) == (0, "done")
