"""What control tells of programs and engines, after work whose figures are known beforehand."""

from __future__ import annotations

from control_world import World
from leases_world import PROMPT as SENT
from leases_world import LeaseWorld, settle

from quire.control.statistics import ExchangeStatistics
from quire.testing import FakeEngine
from quire.testing.fake_engine import fake_pool
from quire.testing.fake_engine.engine import StepTime
from quire.testing.fake_engine.network import BYTES_PER_TOKEN, FakeNetwork

PROMPT = [7, 8, 9, 10, 11, 12, 13, 14, 15]
"""Two whole pages, and a token more."""


def served(num_programs: int) -> World:
    """Each decodes the same prompt to two tokens, ten seconds behind the one before; every message
    takes a second."""
    world = World(
        engine=FakeEngine(fake_pool(), step_time=StepTime(base_s=1.0, per_token_s=0.0)),
        config={"max_steps_per_message": 1, "run_ahead": False},
    )
    for number in range(1, num_programs + 1):
        world.program(number)
        world.do(number, world.alloc(range(4)), world.decode(range(4), PROMPT, 2))
        world.harness.clock.advance(10.0)
    return world


def test_a_program_is_told_with_its_tokens_times_and_blocks() -> None:
    first, second = served(2).controller.processes()
    assert (first.num_prefilled_tokens, first.num_cached_tokens) == (9, 0)
    assert (second.num_prefilled_tokens, second.num_cached_tokens) == (1, 8)
    for row, started_s in ((first, 0.0), (second, 12.0)):
        assert row.state == "idle"
        assert row.num_generated_tokens == 2
        assert (row.num_queues, row.num_pending_commands) == (1, 0)
        assert (row.num_pages, row.num_device_blocks, row.num_host_blocks) == (4, 3, 0)
        assert (row.started_s, row.last_arrival_s) == (started_s, started_s)
        assert row.last_completion_s == started_s + 2.0
        assert (row.service_s, row.cost_s, row.waiting_s) == (2.0, 2.0, 0.0)


def test_what_the_prefix_cache_was_asked_for_and_had_adds_up() -> None:
    prefix = served(4).figures.prefix
    assert prefix.num_query_tokens == 4 * len(PROMPT)
    assert prefix.num_hit_tokens == 3 * 8
    assert prefix.num_indexed == 2


def test_blocks_are_free_held_or_cached() -> None:
    pool = served(3).pool
    assert pool.num_held == 2 + 3, "two that all share, and one of each"
    assert pool.num_free + pool.num_cached + pool.num_held == pool.num_blocks


def test_an_engine_is_told_with_what_stands_in_its_messages() -> None:
    """One program decodes, and another one runs tokens beside it."""
    world = World(config={"max_steps_per_message": 2, "run_ahead": False})
    for number in (1, 2):
        world.program(number)
    world.issue(1, world.alloc(range(4)), world.decode(range(4), PROMPT, 6))
    assert shown(world) == [(1, 1, len(PROMPT), 1)], "its prompt, behind which it samples"
    embeds, pages = range(2), range(1)
    world.issue(2, world.alloc_embeds(embeds), world.alloc(pages), world.embed(embeds, [7, 8]))
    world.issue(2, world.forward([], embeds, pages))
    world.harness.step()
    assert shown(world) == [(1, 1, 1 + 2, 1)], "a step of it, and the other's two tokens"
    world.harness.step()
    assert shown(world) == [(1, 0, 1, 1)]
    world.run()
    assert shown(world) == []


def shown(world: World) -> list[tuple[int, int, int, int]]:
    return [
        (one.num_decodes, one.num_chunks, one.num_tokens, one.num_steps)
        for one in world.figures.messages
    ]


def test_what_goes_between_engines_is_counted_by_what_carries_it() -> None:
    network = FakeNetwork()
    sender, receiver = LeaseWorld(network), LeaseWorld(network)
    assert sender.figures.exchanged == ()
    pages = sender.computed(SENT)
    for is_cut in (False, True):
        lease = receiver.lease(SENT)
        network.is_cut = is_cut
        sender.do(1, sender.send(pages, lease.num_matched, len(SENT), lease))
        settle(sender, receiver)
    num_bytes = len(SENT) * BYTES_PER_TOKEN
    assert sender.figures.exchanged == (ExchangeStatistics("sent", "in_process", 1, 1, num_bytes),)
    assert receiver.figures.exchanged == (
        ExchangeStatistics("received", "in_process", 1, 0, num_bytes),
    )
