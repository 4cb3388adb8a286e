"""What an id of a page or embed means, and what counts as held, whatever fails or is cancelled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from control_world import World
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from quire.core import commands as c
from quire.core.calls import Cancel, CloseQueue, ResetQueue
from quire.core.ids import ProgramId, QueueId
from quire.core.quotas import Quotas
from quire.testing.harness import CommandOutcome

PROGRAM, QUEUE = ProgramId(1), QueueId(1)


def reset(world: World, queue: int = 1) -> None:
    world.harness.call(PROGRAM, ResetQueue(QueueId(queue)))


def cancel(world: World, *outcomes: CommandOutcome) -> None:
    for outcome in outcomes:
        world.harness.call(PROGRAM, Cancel(outcome.command.id))


def blocked(world: World) -> CommandOutcome:
    """A decode on queue 1, and a command that waits for its end: so does what comes behind."""
    decode = world.issue(1, world.alloc(range(100, 108)), world.decode(range(100, 108), [1], 20))[1]
    world.issue(1, c.MaskPage(id=world.id(), page=100, visible=[True] * 4))
    return decode


def program_of(world: World) -> Any:
    return world.controller._table.get(PROGRAM)


Allocate = Callable[[World, list[int]], c.Command]
KINDS: list[tuple[Allocate, Allocate, str]] = [
    (World.alloc, World.dealloc, "pages"),
    (World.alloc_embeds, lambda w, ids: c.DeallocEmbeds(id=w.id(), embeds=list(ids)), "embeds"),
]


@pytest.mark.parametrize(("alloc", "dealloc", "kind"), KINDS)
@pytest.mark.parametrize("how", ["cancelled", "behind it"])
def test_an_old_dealloc_frees_nothing_that_has_its_id_later(
    alloc: Allocate, dealloc: Allocate, kind: str, how: str
) -> None:
    world = World()
    world.program(1, queues=2)
    decode = blocked(world)
    failed, freeing = world.issue(1, alloc(world, [1]), dealloc(world, [1]))
    cancel(world, failed)
    if how == "cancelled":
        cancel(world, freeing)
    again = world.issue(1, alloc(world, [1]), queue=2)[0]
    world.run()
    reset(world)
    world.run()
    assert (decode.status, again.status) == ("done", "done")
    assert 1 in getattr(program_of(world), kind), "the new one is there"
    gone = world.do(1, dealloc(world, [1]), queue=2)[0]
    assert gone.status == "done"
    world.controller.check_invariants()


def test_a_command_never_finds_a_page_that_was_made_behind_it() -> None:
    world = World()
    world.program(1, queues=2)
    blocked(world)
    made, masked = world.issue(
        1, world.alloc([1]), c.MaskPage(id=world.id(), page=1, visible=[False] * 4)
    )
    cancel(world, made)
    again = world.issue(1, world.alloc([1]), queue=2)[0]
    world.run()
    assert masked.error is not None
    assert masked.error.code == "unknown_handle"
    assert again.error is not None, "what names the id before has not ended"
    assert "choose a new id" in again.error.message
    reset(world, 1)
    reset(world, 2)
    assert world.do(1, world.alloc([1]), queue=2)[0].status == "done"


@pytest.mark.parametrize("number", [1, 40])
def test_cancelled_deallocs_leave_nothing_behind(number: int) -> None:
    world = World()
    world.program(1)
    blocked(world)
    for page in range(number):
        cancel(world, *reversed(world.issue(1, world.alloc([page]), world.dealloc([page]))))
        cancel(world, *world.issue(1, world.dealloc([])))
    assert not program_of(world).queues[QUEUE].orphans


@pytest.mark.parametrize(("alloc", "dealloc", "kind"), KINDS)
def test_what_a_cancelled_dealloc_left_is_still_held(
    alloc: Allocate, dealloc: Allocate, kind: str
) -> None:
    world = World()
    world.program(1, quotas=Quotas(max_pages=12, max_embeds=4), queues=2)
    world.do(1, alloc(world, [1, 2, 3, 4]))
    blocked(world)
    cancel(world, *world.issue(1, dealloc(world, [1, 2, 3, 4])))
    refused = world.issue(1, alloc(world, [5]), queue=2)[0]
    assert refused.error is not None
    assert refused.error.code == "quota_exceeded"
    reset(world, 1)
    reset(world, 2)
    world.run()
    assert world.do(1, alloc(world, [5]), queue=2)[0].status == "done"


@pytest.mark.parametrize("prefix", [False, True])
def test_an_import_that_is_freed_before_it_runs_counts_for_nothing(prefix: bool) -> None:
    world = World()
    world.program(1, quotas=Quotas(max_pages=10), queues=2)
    world.do(
        1,
        world.alloc([50]),
        world.decode([50], [1, 2, 3], 1, context=[]),
        c.ExportPages(id=world.id(), pages=[50], name="x", ttl_s=None),
        queue=2,
    )
    blocked(world)
    offered = list(range(10))
    wanted = (
        c.ImportPrefix(id=world.id(), tokens=[1, 2, 3, 4, 5], pages=offered)
        if prefix
        else c.ImportPages(id=world.id(), name="x", pages=offered)
    )
    # eight are held for the decode and one for the export
    world.do(1, wanted, world.dealloc(offered))
    program = program_of(world)
    assert program.num_held_pages == 9
    refused = world.do(1, world.alloc([200, 201]))[0]
    assert refused.error is not None
    assert refused.error.code == "quota_exceeded"


@dataclass(eq=False)
class Made:
    """One page as the model knows it: the ids of others that came before or after it are theirs."""

    alloc: CommandOutcome
    queue: int
    freeing: CommandOutcome | None = None
    freed_on: int | None = None
    is_settled: bool = False
    """Its queue was closed, or that of its dealloc was reset or closed behind its failure."""

    @property
    def is_there(self) -> bool:
        """Once nothing is pending."""
        is_freed = self.freeing is not None and self.freeing.status == "done"
        return self.alloc.status == "done" and not is_freed and not self.is_settled


QUEUES, IDS = st.sampled_from([1, 2, 3]), st.integers(0, 5)


class PageIds(RuleBasedStateMachine):
    """Few ids, three queues; commands fail, are cancelled, wait for others, in any order."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.world.program(1, queues=3)
        self.made: list[Made] = []
        self.pending: list[CommandOutcome] = []
        self.known: dict[int, Made] = {}
        """Whom an id means that is named now."""

    def _issue(self, command: c.Command, queue: int) -> CommandOutcome:
        (outcome,) = self.world.issue(1, command, queue=queue)
        self.pending.append(outcome)
        return outcome

    @rule(page=IDS, queue=QUEUES)
    def alloc(self, page: int, queue: int) -> None:
        outcome = self._issue(self.world.alloc([page]), queue)
        if outcome.error is None:
            self.known[page] = Made(outcome, queue)
            self.made.append(self.known[page])

    @rule(page=IDS, queue=QUEUES)
    def dealloc(self, page: int, queue: int) -> None:
        outcome = self._issue(self.world.dealloc([page]), queue)
        error = outcome.error
        if error is None or (error.code == "queue_poisoned" and self._is_free_to_go(page)):
            self.known[page].freeing, self.known[page].freed_on = outcome, queue

    def _is_free_to_go(self, page: int) -> bool:
        made = self.known.get(page)
        return made is not None and made.freeing is None and not self._is_gone(made)

    def _is_gone(self, made: Made) -> bool:
        return made.is_settled or made.alloc.status in ("failed", "cancelled")

    @rule(page=IDS, queue=QUEUES)
    def use(self, page: int, queue: int) -> None:
        self._issue(c.MaskPage(id=self.world.id(), page=page, visible=[True] * 4), queue)

    @rule(page=IDS, queue=QUEUES)
    def decode(self, page: int, queue: int) -> None:
        """Behind one that runs, all that is no passing command waits."""
        self._issue(self.world.decode([page], [1], 2, context=[]), queue)

    @rule(queue=QUEUES)
    def fail(self, queue: int) -> None:
        """When its turn comes."""
        self._issue(c.ImportPages(id=self.world.id(), name="none", pages=[]), queue)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        waiting = [outcome for outcome in self.pending if outcome.status == "pending"]
        if waiting:
            cancel(self.world, data.draw(st.sampled_from(waiting)))

    @rule(queue=QUEUES)
    def reset(self, queue: int) -> None:
        reset(self.world, queue)
        self._settle(queue)

    @rule(queue=QUEUES)
    def close(self, queue: int) -> None:
        self.world.harness.call(PROGRAM, CloseQueue(QueueId(queue)))
        self._settle(queue)
        for made in self.made:
            made.is_settled |= made.queue == queue
        self.world.queue(1, queue)

    def _settle(self, queue: int) -> None:
        for made in self.made:
            freeing = made.freeing
            if freeing is not None and made.freed_on == queue and freeing.error is not None:
                made.is_settled = True

    @rule(num_steps=st.integers(1, 3))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.world.harness.step()

    @rule()
    def finish(self) -> None:
        self.world.run()
        held = program_of(self.world).pages
        there = [made for made in self.made if made.is_there]
        assert sorted(held) == sorted(
            command.pages[0]
            for made in there
            if isinstance(command := made.alloc.command, c.AllocPages)
        )
        assert program_of(self.world).num_held_pages == len(there)

    @invariant()
    def check(self) -> None:
        self.world.controller.check_invariants()

    def teardown(self) -> None:
        self.finish()
        for queue in (1, 2, 3):
            self.close(queue)
        self.world.run()
        assert not program_of(self.world).pages
        assert self.world.pool.num_held == 0


TestPageIds = PageIds.TestCase
TestPageIds.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
