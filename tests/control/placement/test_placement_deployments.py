"""A queue names a model; its first command chooses one of the model's engines."""

from __future__ import annotations

import pytest
from control_world import ENGINE, World, alone

from quire.core.actions import QueuePlaced
from quire.core.calls import CloseQueue, Issue
from quire.core.commands import Command
from quire.core.events import Called
from quire.core.ids import EngineId, ProgramId, QueueId
from quire.testing import FakeEngine
from quire.testing.fake_engine import fake_pool

OTHER = EngineId("fake#1")


@pytest.fixture
def world() -> World:
    """Two engines of one model."""
    made = World()
    made.harness.start_engine(OTHER, FakeEngine(fake_pool()))
    return made


def place(world: World, program: int, queue: int = 1, command: Command | None = None) -> list[str]:
    """The engines that the queue is placed on as ``command`` comes: one, or none again."""
    event = Called(
        time_s=world.harness.now_s,
        program=ProgramId(program),
        call=Issue(QueueId(queue), [command or world.alloc([])]),
    )
    return [
        action.engine for action in world.harness.post(event) if isinstance(action, QueuePlaced)
    ]


def decode(world: World, program: int) -> Command:
    world.issue(program, world.alloc(range(4)))
    return world.decode(range(4), [1, 2, 3], 8)


def test_the_first_command_places_a_queue_once(world: World) -> None:
    world.program(1)
    queue = world.controller._table.get(ProgramId(1)).queues[QueueId(1)]  # type: ignore[union-attr]
    assert queue.placed_on is None
    assert place(world, 1) == [ENGINE]
    assert queue.placed_on == ENGINE
    assert place(world, 1) == []


def test_work_spreads_over_the_engines_of_a_model(world: World) -> None:
    world.program(1)
    [outcome] = world.issue(1, decode(world, 1))
    world.program(2)
    assert place(world, 2) == [OTHER]
    [second] = world.issue(2, decode(world, 2))
    world.run()
    assert outcome.tokens == second.tokens == alone([1, 2, 3], 8)
    assert {dispatch.engine for dispatch in world.harness.dispatched} == {ENGINE, OTHER}


def test_queues_of_a_program_stay_together_while_one_is_open(world: World) -> None:
    world.program(1, queues=2)
    world.issue(1, decode(world, 1))  # the first engine is the busier one from now on
    assert place(world, 1, queue=2) == [ENGINE], "its pages are there"
    for queue in (1, 2):
        world.harness.post(
            Called(time_s=0.0, program=ProgramId(1), call=CloseQueue(QueueId(queue)))
        )
    world.run()
    world.program(2)
    world.issue(2, decode(world, 2))
    world.queue(1, 3)
    assert place(world, 1, queue=3) == [OTHER]


@pytest.mark.parametrize("form", ["session", "workflow"])
def test_calls_that_share_no_pages_spread_over_the_engines(world: World, form: str) -> None:
    world.program(1, queues=2, form=form)
    world.issue(1, decode(world, 1))
    assert place(world, 1, queue=2) == [OTHER]


def test_an_engine_that_is_down_gets_no_new_queue(world: World) -> None:
    world.harness.lose_engine(ENGINE)
    world.program(1)
    assert place(world, 1) == [OTHER]


def test_the_only_engine_of_a_model_is_chosen_while_it_is_down() -> None:
    world = World()
    world.harness.lose_engine(ENGINE)
    world.program(1)
    [outcome] = world.issue(1, decode(world, 1))
    world.harness.start_engine(ENGINE, FakeEngine(fake_pool()))
    world.run()
    assert outcome.tokens == alone([1, 2, 3], 8)


def test_a_queue_of_a_model_that_comes_later_is_refused_until_it_is_there() -> None:
    world = World()
    world.program(1, queues=0)
    world.queue(1, 1, model="later")
    [outcome] = world.issue(1, world.alloc([1]))
    assert "no engine serves model 'later': choose one of fake" in outcome.error.message
    assert world.controller._table.get(ProgramId(1)).queues[QueueId(1)].placed_on is None  # type: ignore[union-attr]


def test_an_event_of_one_engine_is_none_of_the_others(world: World) -> None:
    """Who has a message in flight is looked at when it is answered, not at each event of others."""
    outcomes = []
    for program, engine in ((1, ENGINE), (2, OTHER)):
        world.program(program)
        assert place(world, program) == [engine]
        outcomes += world.issue(program, decode(world, program))
    schedulers = world.controller._schedulers
    assert world.harness.num_in_flight(OTHER)
    assert [one.has_news() for one in schedulers.values()] == [False, False]
    assert world.controller._awake.all() == [], "nobody is even asked"
    schedulers[OTHER].engine.touch()
    world.harness.step_engine(ENGINE)
    assert not schedulers[OTHER].engine.is_touched, "what was touched is looked at by any event"
    world.run()
    assert [one.tokens for one in outcomes] == [alone([1, 2, 3], 8)] * 2


def test_an_event_of_one_engine_costs_nothing_for_those_that_have_no_work(world: World) -> None:
    for number in range(2, 10):
        world.harness.start_engine(EngineId(f"fake#{number}"), FakeEngine(fake_pool()))
    world.program(1)
    [outcome] = world.issue(1, decode(world, 1))
    [busy, *idle] = world.controller._schedulers.values()
    assert [one.has_news() for one in idle] == [False] * 9
    while world.harness.num_in_flight(ENGINE):
        assert [one.has_news() for one in idle] == [False] * 9
        assert not any(one.engine.number in world.controller._awake for one in idle)
        world.harness.step_engine(ENGINE)
    assert not busy.has_news(), "its work has ended"
    assert outcome.tokens == alone([1, 2, 3], 8)
    idle[0].engine.touch()
    assert [one.has_news() for one in idle] == [True] + [False] * 8
