"""Messages by their rows, in buckets of powers of two."""

from __future__ import annotations

from control_world import World

from quire.control.scheduler.timing.batch_sizes import BATCH_BOUNDS, BatchSizes


def test_each_bound_is_the_last_of_its_bucket() -> None:
    for index, bound in enumerate(BATCH_BOUNDS):
        sizes = BatchSizes()
        sizes.add(bound)
        assert sizes.counts.index(1) == index
        sizes.add(bound + 1)
        assert sizes.counts[index + 1] == 1
    assert sum(sizes.counts) == 2


def test_the_figures_of_an_engine_count_each_message_once() -> None:
    world = World()
    world.program(1)
    world.do(1, world.alloc(range(8)), world.decode(range(8), [1, 2, 3], 4))
    (engine,) = world.controller.statistics().engines
    assert engine.num_batches > 1
    assert sum(engine.batch_sizes) == engine.num_batches
    assert engine.batch_sizes[1] == engine.num_rows  # one decode alone: a row each
