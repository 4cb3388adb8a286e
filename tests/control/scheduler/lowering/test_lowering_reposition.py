"""Pages that go to other positions: what they hold then, who shares it, what is never found."""

from __future__ import annotations

import pytest
from control_world import ENGINE, World, alone

from quire.core import commands as c
from quire.core.batch import Batch, RepositionSlots
from quire.core.batch_result import BatchResult
from quire.core.decoding import StopSpec
from quire.core.engine_info import PoolSpec
from quire.core.traits import Trait
from quire.testing import FakeEngine
from quire.testing.fake_engine import fake_pool
from quire.testing.reference_program import ReferenceProgram

PROMPT = [10, 20, 30, 40, 50, 60, 70, 80]
"""Two full pages of four slots."""


class Counting(FakeEngine):
    """Counts the slots that each message turns, if any."""

    def __init__(self, pool: PoolSpec) -> None:
        super().__init__(pool)
        self.turned: list[int] = []

    def execute(self, batch: Batch) -> BatchResult:
        slots = [len(op.slots) for op in batch.operations if isinstance(op, RepositionSlots)]
        if slots:
            self.turned.append(sum(slots))
        return super().execute(batch)


class Pair:
    """One program in the world, and what it must be told."""

    def __init__(self, **pool: int) -> None:
        self.engine = Counting(fake_pool(**pool))
        self.world = World(engine=self.engine)
        self.world.program(queues=2)
        self.reference = ReferenceProgram(self.world.engine.info.pool.page_size)

    def do(self, *commands: c.Command, queue: int = 1) -> None:
        """Each command's last reply is the reference's."""
        outcomes = self.world.do(1, *commands, queue=queue)
        for command, outcome in zip(commands, outcomes, strict=True):
            assert outcome.error is None
            expected = self.reference.apply(command)
            if isinstance(command, c.Decode):
                assert outcome.tokens == expected.token_ids

    def shift(self, page: int, shift: int) -> c.RepositionPage:
        return c.RepositionPage(id=self.world.id(), page=page, shift=shift)

    def prompt(self, pages: list[int]) -> c.Decode:
        return self.world.decode(pages, PROMPT, 0)

    def after(self, context: list[int], output: list[int], position: int) -> c.Decode:
        return self.world.decode(output, [99], 4, position=position, context=context, cache=True)


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_what_is_computed_behind_sees_the_page_where_it_is_now(pair: Pair) -> None:
    pair.do(pair.world.alloc(range(4)), pair.prompt([0, 1]))
    pair.do(pair.shift(1, 30))
    pair.do(pair.after([0, 1, 2], [2], 38))
    pair.do(pair.shift(1, -26))
    pair.do(pair.shift(2, -20), pair.after([0, 1, 3], [3], 12))


def test_many_shifts_in_one_message_add_up(pair: Pair) -> None:
    pair.do(pair.world.alloc(range(3)), pair.prompt([0, 1]))
    pair.do(pair.shift(1, 5), pair.shift(0, 3), pair.shift(1, 7), pair.after([0, 1, 2], [2], 30))


def test_it_takes_its_place_between_the_commands_of_its_queue(pair: Pair) -> None:
    pair.do(
        pair.world.alloc(range(5)),
        pair.prompt([0, 1]),
        pair.after([0, 1, 2], [2], 8),
        pair.shift(1, 9),
        pair.after([0, 1, 3], [3], 17),
        pair.shift(0, 4),
        pair.after([0, 1, 4], [4], 17),
    )


def test_nothing_happens_to_an_empty_page_or_without_a_distance(pair: Pair) -> None:
    pair.do(pair.world.alloc(range(3)), pair.prompt([0, 1]))
    pair.do(pair.shift(2, -3), pair.shift(1, 0))
    pair.do(pair.after([0, 1, 2], [2], 8))
    world = pair.world
    found = world.do(1, c.ImportPrefix(id=world.id(), tokens=[*PROMPT, 1], pages=[20, 21]))[0]
    assert found.reply.num_tokens == 8


def test_exports_and_imports_stay_where_they_are(pair: Pair) -> None:
    world = pair.world
    pair.do(world.alloc(range(3)), pair.prompt([0, 1]))
    pair.do(c.ExportPages(id=world.id(), pages=[0, 1], name="module"))
    pair.do(pair.shift(0, 6), pair.shift(1, 6))
    pair.do(pair.after([0, 1, 2], [2], 14))
    (imported,) = world.do(1, c.ImportPages(id=world.id(), name="module", pages=[7, 8]))
    assert [page.positions for page in imported.reply.pages] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    pair.reference.apply(c.ImportPages(id=world.id(), name="module", pages=[7, 8]))
    pair.do(world.alloc([3]), pair.after([7, 8, 3], [3], 8))
    pair.do(c.ExportPages(id=world.id(), pages=[0, 1], name="turned"))
    (turned,) = world.do(1, c.ImportPages(id=world.id(), name="turned", pages=[17, 18]))
    assert [page.positions for page in turned.reply.pages] == [[6, 7, 8, 9], [10, 11, 12, 13]]


def test_masks_and_fill_stay(pair: Pair) -> None:
    world = pair.world
    pair.do(world.alloc(range(3)), world.decode([0, 1], PROMPT[:6], 0))
    pair.do(c.MaskPage(id=world.id(), page=1, visible=[False, True, True, True]))
    pair.do(pair.shift(1, 10), pair.after([0, 1], [1], 16))


def test_turned_pages_are_never_found_by_their_tokens(pair: Pair) -> None:
    """Neither they nor what is computed behind them; what the index had before stays in it."""
    world = pair.world
    pair.do(world.alloc(range(6)), pair.prompt([0, 1]))
    pair.do(pair.shift(0, 8), pair.shift(1, 8), pair.shift(0, -8), pair.shift(1, -8))
    pair.do(world.decode([2, 3], PROMPT[4:], 4, position=8, context=[0, 1, 2, 3]))
    found = world.do(
        1, c.ImportPrefix(id=world.id(), tokens=[*PROMPT, *PROMPT[4:], 1], pages=[20, 21, 22])
    )[0]
    assert found.reply.num_tokens == 8
    fresh = world.do(1, world.alloc([30, 31, 32]), world.decode([30, 31, 32], PROMPT, 4))[1]
    assert fresh.tokens == alone(PROMPT, 4)


def test_what_stands_behind_a_page_of_its_own_is_not_found_either(pair: Pair) -> None:
    """The page was never in the index; what is computed behind it must not get there."""
    world = pair.world
    rest = [1, 2, 3, 4]
    pair.do(world.alloc(range(4)), world.decode([0, 1], PROMPT, 0, cache=False))
    pair.do(pair.shift(0, 3))
    pair.do(world.decode([2, 3], rest, 0, position=8, context=[0, 1]))
    pages = range(30, 34)
    fresh = world.do(1, world.alloc(pages), world.decode(pages, PROMPT, 0))[1]
    assert fresh.error is None
    pages = range(40, 44)
    fresh = world.do(1, world.alloc(pages), world.decode(pages, [*PROMPT, *rest], 4))[1]
    assert fresh.tokens == alone([*PROMPT, *rest], 4)


def test_a_decode_that_reads_the_page_goes_on_with_it_as_it_was() -> None:
    """Two queues: what is not ordered by anybody still means one of two orders, and poisons no
    prefix."""
    world = World()
    world.program(queues=2)
    world.do(1, world.alloc(range(16)), world.decode([0, 1], PROMPT, 0, cache=False))
    decode = world.issue(
        1,
        world.decode(
            range(2, 14),
            [5, 6],
            40,
            position=8,
            context=list(range(14)),
            stop=StopSpec(max_tokens=40),
        ),
        queue=2,
    )[0]
    for _ in range(3):
        world.harness.step()
    assert decode.status == "pending"
    world.issue(1, c.RepositionPage(id=world.id(), page=1, shift=40))
    world.run()
    assert decode.tokens == alone([*PROMPT, 5, 6], 40)


def test_a_prompt_in_parts_is_no_known_prefix_from_the_turn_on() -> None:
    world = World(max_batch_tokens=8)
    world.program(queues=2)
    world.do(1, world.alloc(range(20)), world.decode([0, 1], PROMPT, 0, cache=False))
    rest = list(range(100, 156))
    decode = world.issue(
        1, world.decode(range(2, 20), rest, 4, position=8, context=list(range(20))), queue=2
    )[0]
    world.harness.step()
    world.issue(1, c.RepositionPage(id=world.id(), page=1, shift=-4))
    world.run()
    assert decode.error is None
    assert decode.tokens != alone([*PROMPT, *rest], 4), "the turn came when nothing was left"
    world.do(1, world.alloc(range(40, 42)), world.decode(range(40, 42), PROMPT, 0))
    pages = range(20, 40)
    again = world.do(1, world.alloc(pages), world.decode(pages, [*PROMPT, *rest], 4))[1]
    assert again.tokens == alone([*PROMPT, *rest], 4)


def test_it_is_turned_after_it_came_back_from_the_host() -> None:
    pair = Pair(num_blocks=6, num_host_blocks=16)
    world = pair.world
    pair.do(world.alloc(range(3)), pair.prompt([0, 1]))
    pair.do(pair.shift(1, 3))
    world.program(2)
    world.do(2, world.alloc(range(6)), world.decode(range(6), [7] * 20, 4))
    assert world.pool.num_swapped_out
    pair.do(pair.shift(1, 5), pair.after([0, 1, 2], [2], 16))


def test_many_pages_take_several_messages() -> None:
    pair = Pair(num_blocks=32, max_batch_tokens=8)
    world = pair.world
    pages = list(range(8))
    pair.do(world.alloc(range(9)), world.decode(pages, list(range(32)), 0))
    pair.do(*(pair.shift(page, 40) for page in pages), pair.after([*pages, 8], [8], 80))
    assert pair.engine.turned == [8, 8, 8, 8]


def refused(world: World, page: int, shift: int) -> tuple[str, str]:
    (outcome,) = world.do(1, c.RepositionPage(id=world.id(), page=page, shift=shift))
    assert outcome.error is not None
    return outcome.error.code, outcome.error.message


@pytest.mark.parametrize(
    ("shift", "code", "words"),
    [
        (-1, "invalid_argument", "page 0 holds positions 0 to 3"),
        (-5000, "invalid_argument", "4096 positions"),
        (4093, "context_length_exceeded", "a shift of 4093 takes them to 4096"),
    ],
)
def test_where_no_position_is(shift: int, code: str, words: str) -> None:
    world = World()
    world.program()
    world.do(1, world.alloc([0]), world.decode([0], [1, 2, 3, 4], 0))
    found, message = refused(world, 0, shift)
    assert found == code
    assert words in message


def test_an_engine_that_cannot_is_named() -> None:
    engine = FakeEngine(fake_pool())
    engine.info.traits.remove(Trait.REPOSITION)
    world = World(engine=engine)
    world.program()
    world.do(1, world.alloc([0]), world.decode([0], [1, 2], 0))
    code, message = refused(world, 0, 1)
    assert code == "invalid_argument"
    assert "model fake does not have the trait Reposition" in message


def test_a_turned_page_is_lost_with_its_engine() -> None:
    pair = Pair()
    world = pair.world
    pair.do(world.alloc(range(3)), pair.prompt([0, 1]))
    pair.do(pair.shift(1, 3))
    world.harness.lose_engine(ENGINE)
    world.harness.start_engine(ENGINE, FakeEngine(fake_pool()))
    (outcome,) = world.do(1, pair.after([0, 1, 2], [2], 16))
    assert outcome.error is not None
    assert outcome.error.code == "page_lost"
