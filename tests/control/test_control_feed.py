"""The feed: a reader is told of what has changed since its last look, and of nothing else."""

from __future__ import annotations

import pytest
from control_world import World

from quire.control import ProcessChanges
from quire.control.feed import Feed, _moves
from quire.control.programs.changes import Changes
from quire.core.events import ProgramEnded
from quire.core.ids import ProgramId, TenantId

PROMPT = [7, 8, 9, 10, 11]


class Reader:
    """Keeps what it was told, as a reader of the API does."""

    def __init__(self, world: World, tenant: str | None = None) -> None:
        self._world = world
        self._tenant = None if tenant is None else TenantId(tenant)
        self.number = 0
        self.rows: dict[int, object] = {}

    def look(self) -> ProcessChanges:
        changes = self._world.controller.changes(self.number, self._tenant)
        if changes.is_whole:
            self.rows.clear()
        self.rows.update({row.program: row for row in changes.rows})
        for program in changes.ended:
            self.rows.pop(program, None)
        self.number = changes.number
        return changes


def changed(changes: ProcessChanges) -> list[int]:
    return [row.program for row in changes.rows]


def end(world: World, program: int) -> None:
    now_s = world.harness.now_s
    world.harness.post(ProgramEnded(time_s=now_s, program=ProgramId(program), reason="finished"))


def test_a_look_shows_what_changed_since_the_one_before() -> None:
    world = World()
    for program in (1, 2, 3):
        world.program(program)
    reader = Reader(world)
    first = reader.look()
    assert (changed(first), first.is_whole) == ([1, 2, 3], True)
    assert changed(reader.look()) == []
    world.do(2, world.alloc(range(4)), world.decode(range(4), PROMPT, 2))
    second = reader.look()
    assert (changed(second), second.is_whole, second.ended) == ([2], False, ())
    end(world, 3)
    third = reader.look()
    assert (changed(third), third.ended) == ([], (3,))
    assert changed(reader.look()) == []


def test_an_active_program_is_shown_when_its_figures_move_and_not_before() -> None:
    world = World(config={"max_steps_per_message": 1})
    world.program(1)
    reader = Reader(world)
    reader.look()
    world.issue(1, world.alloc(range(8)), world.decode(range(8), PROMPT, 20))
    assert changed(reader.look()) == [1]
    assert changed(reader.look()) == []
    world.harness.step()
    world.harness.step()
    (row,) = reader.look().rows
    assert row.num_generated_tokens > 0
    world.run()
    (row,) = reader.look().rows
    assert row.state == "idle"


def test_a_program_that_came_and_went_between_two_looks_is_not_told() -> None:
    world = World()
    reader = Reader(world)
    reader.look()
    world.program(1)
    end(world, 1)
    changes = reader.look()
    assert (changes.rows, changes.ended) == ((), ())


def test_a_tenant_sees_its_own_programs_and_their_ends() -> None:
    world = World()
    world.program(1, tenant="a")
    world.program(2, tenant="b")
    mine, all_of_them = Reader(world, "a"), Reader(world)
    assert changed(mine.look()) == [1]
    assert changed(all_of_them.look()) == [1, 2]
    end(world, 2)
    assert mine.look().ended == ()
    end(world, 1)
    assert mine.look().ended == (1,)
    assert all_of_them.look().ended == (2, 1)


def test_two_readers_do_not_take_changes_from_one_another() -> None:
    world = World()
    world.program(1)
    first, second = Reader(world), Reader(world)
    first.look()
    second.look()
    world.queue(1, 2)
    assert changed(first.look()) == [1]
    assert changed(second.look()) == [1]


@pytest.mark.parametrize("number", [99, -1])
def test_a_number_of_another_controller_begins_anew(number: int) -> None:
    world = World()
    world.program(1)
    Reader(world).look()
    changes = world.controller.changes(number)
    assert changes.is_whole
    assert changed(changes) == [1]


def test_a_reader_that_missed_more_ends_than_are_kept_begins_anew() -> None:
    world = World()
    changes = Changes(max_ended=2)
    world.controller._table.changes = changes
    world.controller._feed._changes = changes
    for program in range(1, 6):
        world.program(program)
    reader = Reader(world)
    reader.look()
    number = reader.number
    for program in (1, 2):
        end(world, program)
    assert not world.controller.changes(number).is_whole
    end(world, 3)
    whole = reader.look()
    assert whole.is_whole
    assert changed(whole) == [4, 5]
    assert sorted(reader.rows) == [4, 5]


def test_many_changes_come_in_pages_and_none_is_lost() -> None:
    world = World()
    for program in range(1, 8):
        world.program(program)
    controller = world.controller
    feed = Feed(controller._table, controller._encoding._places, controller._schedulers, max_rows=3)
    seen, number, more = [], 0, True
    while more:
        page = feed.look(number)
        assert page.is_whole == (number == 0)
        seen += changed(page)
        number, more = page.number, page.more
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    assert feed.look(number).rows == ()


def test_an_idle_program_whose_blocks_were_taken_is_told() -> None:
    world = World(num_blocks=12, num_host_blocks=12)
    world.program(1)
    world.do(1, world.alloc(range(8)), world.decode(range(8), [*range(40, 60)], 4))
    reader = Reader(world)
    (before,) = reader.look().rows
    assert before.num_device_blocks > 0
    world.program(2)
    world.do(2, world.alloc(range(10)), world.decode(range(10), [*range(60, 90)], 8))
    after = {row.program: row for row in reader.look().rows}
    assert after[1].num_device_blocks < before.num_device_blocks
    shown = {row.program: row for row in world.controller.processes()}
    assert reader.rows == shown


def test_a_move_that_one_reader_has_seen_is_told_to_the_others() -> None:
    world = World(num_blocks=12, num_host_blocks=12)
    world.program(1)
    world.do(1, world.alloc(range(8)), world.decode(range(8), [*range(40, 60)], 4))
    early, late = Reader(world), Reader(world)
    early.look()
    world.program(2)
    world.do(2, world.alloc(range(10)), world.decode(range(10), [*range(60, 90)], 8))
    feed = world.controller._feed
    feed._moves = [_moves(one.engine) for one in feed._schedulers.values()]  # swept already
    late.look()
    early.look()
    early.look()
    assert early.rows == {row.program: row for row in world.controller.processes()}


def test_what_a_reader_has_gathered_is_the_table_whatever_happened() -> None:
    world = World(num_blocks=24, num_host_blocks=8, max_sequences=2)
    reader = Reader(world)
    for program in range(1, 9):
        world.program(program, tenant="ab"[program % 2])
        world.issue(
            program, world.alloc(range(6)), world.decode(range(6), [program, *range(40, 50)], 8)
        )
        world.harness.step()
        if program == 5:
            end(world, 2)
        reader.look()
        assert reader.rows == {row.program: row for row in world.controller.processes()}
    while world.harness.step():
        reader.look()
        assert reader.rows == {row.program: row for row in world.controller.processes()}
    assert reader.look().number == reader.number


def test_the_rows_of_ended_programs_are_forgotten_though_no_engine_works() -> None:
    world = World()
    reader = Reader(world)
    for program in range(1, 200):
        world.program(program, queues=0)
        reader.look()
        end(world, program)
    reader.look()
    assert len(world.controller._feed._shown) <= 64
