"""Under a policy with stages a batch need not be filled with what others wait for."""

from __future__ import annotations

import pytest
from encoding_world import EncodingWorld

from quire.core.encoding import Encoded


def world_of(policy: str) -> EncodingWorld:
    """Its encoder takes 0.05 s for a batch and 0.025 s for each token, and control has seen it."""
    world = EncodingWorld(policy=policy, max_batch_tokens=16, token_s=0.025, batch_s=0.05)
    program = world.program(1)
    for num in (1, 16, 16, 16, 16, 16, 16, 16):
        world.ask(program, *[1] * num)
        world.harness.run_until_idle()
    return world


def sizes_after(world: EncodingWorld, num_before: int) -> list[int]:
    world.harness.run_until_idle()
    world.controller.check_invariants()
    return [len(lengths) for _, lengths in world.batches()[num_before:]]


def ask_behind_another(world: EncodingWorld, num_others: int) -> int:
    """While a batch runs, a query asks for three texts, and others for 48 each. Returns how many
    batches went before."""
    world.ask(world.program(2), *[1] * 16)
    num_before = len(world.batches())
    world.ask(world.program(3), 1, 1, 1)
    for number in range(num_others):
        world.ask(world.program(4 + number), *[1] * 48)
    return num_before


@pytest.mark.parametrize("policy", ["topology", "critical_path"])
def test_a_few_texts_do_not_wait_for_those_that_would_fill_their_batch(policy: str) -> None:
    world = world_of(policy)
    assert sizes_after(world, ask_behind_another(world, 1)) == [3, 16, 16, 16]


def test_who_stood_in_a_short_batch_is_told_so() -> None:
    world = world_of("topology")
    world.ask(world.program(2), *[1] * 16)
    few = world.ask(world.program(3), 1, 1, 1)
    many = world.ask(world.program(4), *[1] * 32)
    world.harness.run_until_idle()
    (reply,) = few.replies
    assert isinstance(reply, Encoded)
    assert reply.is_short
    others = [one for one in many.replies if isinstance(one, Encoded)]
    assert [one.is_short for one in others] == [False, False]
    assert [one.batch for one in others] == [reply.batch + 1, reply.batch + 2]
    ((instance,),) = [one.instances for one in world.controller.statistics().encoders]
    assert instance.num_short_batches == 1


def test_a_batch_that_nobody_could_fill_is_not_short() -> None:
    world = world_of("topology")
    few = world.ask(world.program(3), 1, 1, 1)
    world.harness.run_until_idle()
    assert [reply.is_short for reply in few.replies if isinstance(reply, Encoded)] == [False]


def test_a_policy_without_stages_fills() -> None:
    world = world_of("fcfs")
    assert sizes_after(world, ask_behind_another(world, 1)) == [16, 16, 16, 3]


def test_a_batch_is_filled_when_many_lose_by_another_one() -> None:
    world = world_of("topology")
    assert sizes_after(world, ask_behind_another(world, 8))[0] == 16


def test_a_batch_that_completes_nothing_is_filled() -> None:
    """Two tenants take turns with one text each."""
    world = world_of("topology")
    world.ask(world.program(2), *[1] * 16)
    num_before = len(world.batches())
    world.ask(world.program(3, "a"), *[1] * 40)
    world.ask(world.program(4, "b"), *[1] * 40)
    assert sizes_after(world, num_before) == [16] * 5


def test_what_is_left_of_many_texts_goes_without_others() -> None:
    world = world_of("topology")
    world.ask(world.program(2), *[1] * 16)
    num_before = len(world.batches())
    world.ask(world.program(3), *[1] * 40)
    world.ask(world.program(4), *[1] * 40)
    assert sizes_after(world, num_before) == [16, 16, 8, 16, 16, 8]


def test_a_query_fills_its_batch_with_its_own_texts() -> None:
    world = world_of("topology")
    world.ask(world.program(2), *[1] * 16)
    num_before = len(world.batches())
    three = world.program(3)
    world.ask(three, 1, 1, 1, depth=2)
    world.ask(three, *[1] * 13, depth=1)
    assert sizes_after(world, num_before) == [16]


def test_an_encoder_that_is_always_busy_sends_few_short_batches() -> None:
    """Each query has one text more than a batch holds; a lone text costs more than it earns."""
    world = world_of("topology")
    num_before, num_queries = len(world.batches()), 0
    for _ in range(3):
        for _ in range(8):
            num_queries += 1
            world.ask(world.program(1 + num_queries), *[1] * 17)
        world.harness.run_until_idle()
    num_alone = sizes_after(world, num_before).count(1)
    assert 4 < num_alone < num_queries
