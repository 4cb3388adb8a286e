"""How many queues and exports a program may have, and how much all of a tenant's may have
together; and that neither is felt by others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from control_world import World

from quire.control.programs.program import MAX_REFUSED_QUEUES
from quire.core import commands as c
from quire.core.calls import CloseQueue, ResetQueue
from quire.core.config import TenantConfig, TenantTotals
from quire.core.errors import ConfigError, InvalidArgument
from quire.core.events import ProgramEnded
from quire.core.ids import ProgramId, QueueId, TenantId
from quire.core.quotas import Quotas
from quire.testing.harness import CommandOutcome

FULL = 4
PROMPT = [3, 1, 4, 1]


def close(world: World, program: int, queue: int) -> None:
    world.harness.call(ProgramId(program), CloseQueue(QueueId(queue)))


def ask(world: World, program: int, *commands: c.Command, queue: int = 1) -> CommandOutcome:
    """The last one's outcome, on a queue that has forgotten what failed before."""
    world.harness.call(ProgramId(program), ResetQueue(QueueId(queue)))
    return world.do(program, *commands, queue=queue)[-1]


def export(world: World, name: str, pages: Any = (), **fields: Any) -> c.ExportPages:
    fields.setdefault("ttl_s", None)
    return c.ExportPages(id=world.id(), pages=list(pages), name=name, **fields)


def generates(world: World, program: int, page: int = 90) -> bool:
    pages = range(page, page + 4)
    made = ask(world, program, world.alloc(pages), world.decode(pages, PROMPT, 3))
    ask(world, program, world.dealloc(pages))
    return made.status == "done"


def test_a_program_has_no_more_queues_than_its_quota() -> None:
    world = World()
    world.program(1, quotas=Quotas(max_queues=2), queues=3)
    world.program(2, queues=3)
    assert generates(world, 1)
    (refused,) = world.issue(1, world.alloc([1]), queue=3)
    assert refused.error is not None
    assert refused.error.code == "quota_exceeded"
    assert refused.error.message == (
        "2 queues are open, 1 more are asked for and the quota is 2: let go of some first"
    )
    assert world.do(2, world.alloc([1]), queue=3)[0].status == "done", "its neighbour has three"
    close(world, 1, 2)
    world.queue(1, 4)
    assert world.do(1, world.alloc([1]), queue=4)[0].status == "done"


def test_queues_of_those_that_a_program_has_launched_are_its_own() -> None:
    world = World()
    world.program(1, quotas=Quotas(max_queues=2))
    world.program(2, queues=2, parent=ProgramId(1), shares_quotas=True)
    (refused,) = world.issue(2, world.alloc([1]), queue=2)
    assert refused.error is not None
    assert "by program 'p1' and those that it has launched" in refused.error.message


def test_what_is_remembered_of_refused_queues_is_bounded() -> None:
    world = World()
    world.program(1, quotas=Quotas(max_queues=1), queues=MAX_REFUSED_QUEUES + 2)
    codes = []
    for queue in (2, 3, MAX_REFUSED_QUEUES + 2):
        error = world.issue(1, world.alloc([1]), queue=queue)[0].error
        assert error is not None
        codes.append(error.code)
    assert codes == ["unknown_handle", "quota_exceeded", "quota_exceeded"]
    close(world, 1, 3)
    gone = world.issue(1, world.alloc([1]), queue=3)[0].error
    assert gone is not None
    assert gone.code == "unknown_handle", "the program has given it up"


def test_a_program_has_no_more_exports_than_its_quota() -> None:
    world = World()
    world.program(1, quotas=Quotas(max_exports=2))
    world.program(2)
    for name in "ab":
        assert ask(world, 1, export(world, name)).status == "done"
    refused = ask(world, 1, export(world, "c"))
    assert refused.error is not None
    assert refused.error.message == (
        "2 exports are kept, 1 more are asked for and the quota is 2: let go of some first"
    )
    assert ask(world, 2, export(world, "d")).status == "done", "its neighbour's"
    assert ask(world, 1, c.ReleaseExport(id=world.id(), name="a")).status == "done"
    assert ask(world, 1, export(world, "c")).status == "done"


Held = Callable[[World, int], CommandOutcome]
"""A program of a tenant takes as much as the tenant may have."""


def hold_queues(world: World, program: int) -> CommandOutcome:
    for queue in range(2, FULL + 2):
        world.queue(program, queue)
    return world.issue(program, world.alloc([70]), queue=FULL + 1)[0]


def hold_commands(world: World, program: int) -> CommandOutcome:
    first = world.issue(program, world.alloc(range(8)), world.decode(range(8), PROMPT, 20))
    shown = [True] * 4
    waiting = [c.MaskPage(id=world.id(), page=0, visible=shown) for _ in range(FULL + 2)]
    outcomes = [*first, *world.issue(program, *waiting)]
    refused = next((one for one in outcomes if one.error is not None), outcomes[-1])
    world.run()
    return refused


def hold_pages(world: World, program: int) -> CommandOutcome:
    ask(world, program, world.alloc(range(FULL)))
    return ask(world, program, world.alloc([FULL]))


def hold_embeds(world: World, program: int) -> CommandOutcome:
    ask(world, program, world.alloc_embeds(range(FULL)))
    return ask(world, program, world.alloc_embeds([FULL]))


def hold_exports(world: World, program: int) -> CommandOutcome:
    for number in range(FULL):
        ask(world, program, export(world, str(number)))
    return ask(world, program, export(world, "more"))


def hold_exported_pages(world: World, program: int) -> CommandOutcome:
    ask(world, program, world.alloc(range(FULL)), export(world, "all", range(FULL)))
    return ask(world, program, export(world, "more", [0]))


HELD: dict[str, Held] = {
    "max_queues": hold_queues,
    "max_pending_commands": hold_commands,
    "max_pages": hold_pages,
    "max_embeds": hold_embeds,
    "max_exports": hold_exports,
    "max_exported_pages": hold_exported_pages,
}


@pytest.mark.parametrize("total", HELD)
def test_a_tenants_programs_have_no_more_than_its_total_together(total: str) -> None:
    crowded = TenantConfig(TenantId("crowded"), totals=TenantTotals(**{total: FULL}))
    world = World(tenants=(crowded, TenantConfig(TenantId("other"))))
    world.program(1, tenant="other")
    assert generates(world, 1)
    world.program(2, tenant="crowded")
    refused = HELD[total](world, 2)
    assert refused.error is not None
    assert refused.error.code == "quota_exceeded"
    assert f"{FULL} are allowed" in refused.error.message
    assert f"have {total} raised in the tenant's totals" in refused.error.message
    assert refused.error.details[total] == FULL
    assert generates(world, 1), "another tenant's programs go on"
    assert HELD[total](world, 1).error is None, "and may have as much and more"
    world.controller.check_invariants()


def test_what_a_tenants_ended_programs_had_is_free_for_the_next() -> None:
    totals = TenantTotals(
        max_queues=1,
        max_pending_commands=3,
        max_pages=8,
        max_embeds=2,
        max_exports=1,
        max_exported_pages=1,
    )
    world = World(tenants=(TenantConfig(TenantId("t"), totals=totals),))
    for program in range(1, 4):
        world.program(program)
        ask(world, program, world.alloc_embeds(range(2)), world.alloc(range(4)))
        assert ask(world, program, export(world, "x", [0])).status == "done"
        world.issue(program, world.decode(range(4), PROMPT, 8))
        world.harness.post(ProgramEnded(time_s=world.harness.now_s, program=ProgramId(program)))
        world.run()
    account = world.controller._table._account(TenantId("t"))
    assert (account.num_queues, account.num_commands) == (0, 0)
    assert (account.num_pages, account.num_embeds) == (0, 0)


def test_an_export_that_is_left_to_the_tenant_still_counts_for_it() -> None:
    totals = TenantTotals(max_exports=1)
    world = World(tenants=(TenantConfig(TenantId("t"), totals=totals),))
    world.program(1)
    assert ask(world, 1, export(world, "left", ttl_s=9.0)).status == "done"
    world.harness.post(ProgramEnded(time_s=world.harness.now_s, program=ProgramId(1)))
    world.program(2)
    assert ask(world, 2, export(world, "mine")).error is not None
    world.harness.clock.advance(10.0)
    world.harness.fire_timer()
    assert ask(world, 2, export(world, "mine")).status == "done"


def test_no_total_is_negative() -> None:
    with pytest.raises(ConfigError, match="max_pages of a tenant's totals is -1: choose 0"):
        TenantTotals(max_pages=-1)


def test_one_program_leaves_the_last_embeds_to_others() -> None:
    world = World(num_embeds=32)
    for program in (1, 2, 3):
        world.program(program)
    never = ask(world, 1, world.alloc_embeds(range(29)))
    assert never.error is not None
    assert never.error.message == (
        "29 embeds are asked for; the engine has 32 and one program 28 at most: embed and run the "
        "prompt in parts"
    )
    assert ask(world, 1, world.alloc_embeds(range(28))).status == "done"
    greedy = ask(world, 1, world.alloc_embeds([28]))
    assert greedy.error is not None
    assert greedy.error.code == "pool_exhausted"
    assert greedy.error.message == (
        "1 embeds are asked for, 4 of 32 are free, this program holds 28, and the last 4 are left "
        "to those that hold fewer: free some of yours, or retry later"
    )
    assert ask(world, 2, world.alloc_embeds(range(4))).status == "done"
    waiting = world.issue(3, world.alloc_embeds(range(5)))[0]
    assert waiting.status == "pending", "it holds none: it gets them when they are there"
    ask(world, 1, c.DeallocEmbeds(id=world.id(), embeds=list(range(28))))
    world.run()
    assert waiting.status == "done"


def test_one_program_leaves_the_last_token_slots_to_others() -> None:
    world = World(num_token_slots=16)
    done = {}
    for program, slots in ((1, 15), (2, 2)):
        world.program(program)
        ask(
            world,
            program,
            world.alloc([1]),
            world.alloc_embeds([0, 1]),
            world.embed([0], [5]),
            world.forward([], [0], [1], [1]),
        )
        outcomes = [
            ask(world, program, world.sample([1], token_slots=[slot])) for slot in range(slots)
        ]
        done[program] = [outcome.status for outcome in outcomes]
        if program == 1:
            error = outcomes[-1].error
            assert error is not None
            assert error.code == "pool_exhausted"
            assert "2 of 16 token slots are free, this program holds 14" in error.message
            again = ask(world, program, world.sample([1], token_slots=[3]))
            assert again.status == "done", "a name that it has is not a further slot"
    assert done == {1: ["done"] * 14 + ["failed"], 2: ["done"] * 2}


def test_a_token_slot_belongs_to_who_wrote_it_last() -> None:
    """A queue whose sample failed has nothing in it, and takes nothing with it when it closes."""
    world = World()
    world.program(1, queues=2)
    for queue in (1, 2):
        world.do(
            1,
            world.alloc([queue]),
            world.alloc_embeds([queue, 10 + queue]),
            world.embed([queue], [5]),
            world.forward([], [queue], [queue], [queue]),
            queue=queue,
        )
    (failed,) = world.issue(1, world.sample([1], token_slots=[7]))
    serial = world.harness.dispatched[-1].batch.serial
    world.engine.fail_row(serial, "samples", 0, InvalidArgument("injected"))
    world.run()
    assert failed.status == "failed"
    (written,) = world.do(1, world.sample([2], token_slots=[7]), queue=2)
    assert written.status == "done"
    close(world, 1, 1)
    reads = c.EmbedText(id=world.id(), tokens=[0], positions=[1], embeds=[12], token_slots=[7])
    assert world.do(1, reads, queue=2)[0].status == "done"


@pytest.mark.parametrize("run_ahead", [False, True])
def test_every_token_that_an_engine_runs_is_counted(run_ahead: bool) -> None:
    world = World(config={"run_ahead": run_ahead})
    world.program(1)
    decode = world.do(1, world.alloc(range(8)), world.decode(range(8), [1, 2, 3, 4, 5], 9))[1]
    assert len(decode.tokens) == 9
    assert world.figures.num_tokens == 5 + 8, "the last one is not run"
