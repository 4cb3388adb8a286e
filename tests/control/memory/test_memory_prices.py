"""Prices of cached pages: what is dear is evicted last, and no price keeps memory from anybody."""

from __future__ import annotations

from typing import Any

import pytest
from control_world import World, alone
from hypothesis import given, settings
from hypothesis import strategies as st
from leases_world import SIZE, LeaseWorld

from quire.control.memory.price_list import PriceList
from quire.core import commands as c
from quire.core.decoding import StopSpec
from quire.core.lease_commands import Pinned, PinPrefix
from quire.testing.fake_engine.network import FakeNetwork

NUM_BLOCKS = 16
"""Of which four may have a price."""


def world_of() -> LeaseWorld:
    return LeaseWorld(FakeNetwork(), num_blocks=NUM_BLOCKS, num_host_blocks=0)


def text(number: int, num_pages: int = 2) -> list[int]:
    return [100 + number, *range(1, num_pages * SIZE)]


def cache(world: LeaseWorld, tokens: list[int]) -> None:
    """Compute ``tokens`` and leave their full pages to the cache."""
    pages = list(range(500, 500 + -(-len(tokens) // SIZE)))
    prefill = world.decode(pages, tokens, stop=StopSpec(max_tokens=0))
    outcomes = world.do(1, world.alloc(pages), prefill, world.dealloc(pages))
    assert [one.status for one in outcomes] == ["done"] * 3


def pin(world: LeaseWorld, tokens: list[int], price: float, ttl_s: float = 60.0) -> int:
    command = PinPrefix(id=world.id(), tokens=tokens, price=price, ttl_s=ttl_s)
    (outcome,) = world.do(1, command)
    assert isinstance(outcome.reply, Pinned), outcome
    return outcome.reply.num_tokens


def num_cached(world: LeaseWorld, tokens: list[int]) -> int:
    find = c.ImportPrefix(id=world.id(), tokens=[*tokens, 0], pages=list(range(700, 706)))
    (found,) = world.do(1, find)
    reply: Any = found.reply
    world.do(1, world.dealloc([page.page for page in reply.pages]))
    return int(reply.num_tokens)


def test_what_has_a_price_outlives_what_was_used_later() -> None:
    world = world_of()
    cache(world, text(0))
    assert pin(world, text(0), 1.0) == 2 * SIZE
    for number in range(1, 12):
        cache(world, text(number))
    assert num_cached(world, text(0)) == 2 * SIZE
    assert num_cached(world, text(1)) == 0


def test_without_a_price_it_goes() -> None:
    """The test above could not fail otherwise."""
    world = world_of()
    for number in range(12):
        cache(world, text(number))
    assert num_cached(world, text(0)) == 0


def test_only_engines_with_prices_are_looked_at() -> None:
    """Each event asks whether a price has ended."""
    world = world_of()
    priced = world.controller._host.lease_uses.priced
    cache(world, text(0))
    assert not priced
    pin(world, text(0), 1.0, ttl_s=5.0)
    assert len(priced) == 1
    world.harness.clock.advance_to(6.0)
    cache(world, text(1))
    assert not priced


def test_a_price_ends_with_its_time() -> None:
    world = world_of()
    cache(world, text(0))
    pin(world, text(0), 1.0, ttl_s=5.0)
    world.harness.clock.advance_to(6.0)
    for number in range(1, 12):
        cache(world, text(number))
    assert num_cached(world, text(0)) == 0


def test_a_price_is_taken_back() -> None:
    world = world_of()
    cache(world, text(0))
    pin(world, text(0), 9.0)
    pin(world, text(0), 0.0)
    for number in range(1, 12):
        cache(world, text(number))
    assert num_cached(world, text(0)) == 0


def test_no_price_keeps_a_program_from_all_the_memory() -> None:
    world = world_of()
    for number in range(2):
        cache(world, text(number))
        pin(world, text(number), 1e9)
    prompt = list(range(1, 57))
    pages = range(NUM_BLOCKS)
    told = world.do(1, world.alloc(pages), world.decode(pages, prompt, 8))[1].tokens
    assert told == alone(prompt, 8, page_size=SIZE, num_blocks=NUM_BLOCKS)


def test_the_cheapest_goes_first() -> None:
    world = world_of()
    for number, price in enumerate((3.0, 1.0)):
        cache(world, text(number))
        pin(world, text(number), price)
    prompt = list(range(1, 50))
    pages = range(NUM_BLOCKS - 3)
    world.do(1, world.alloc(pages), world.decode(pages, prompt, 1), world.dealloc(pages))
    assert (num_cached(world, text(0)), num_cached(world, text(1))) == (2 * SIZE, 0)


def test_the_share_is_for_the_dearest() -> None:
    world = world_of()
    for number in range(3):
        cache(world, text(number))
    assert pin(world, text(0), 2.0) == pin(world, text(1), 1.0) == 2 * SIZE
    assert pin(world, text(2), 1.0) == 0, "four pages have a price, none a lower one"
    assert pin(world, text(2), 1.5) == 2 * SIZE, "in the place of the second"
    assert pin(world, text(1), 1.0) == 0


def test_only_what_is_cached_gets_a_price() -> None:
    world = world_of()
    cache(world, text(0, 1))
    assert pin(world, text(0, 3), 1.0) == SIZE


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"price": -1.0}, "price is -1.0"),
        ({"price": float("inf")}, "price is inf"),
        ({"price": float("nan")}, "price is nan"),
        ({"ttl_s": 0.0}, "ttl_s is 0.0"),
        ({"tokens": [10**6]}, "not in the vocabulary"),
    ],
)
def test_a_price_that_makes_no_sense_is_refused(fields: dict[str, Any], message: str) -> None:
    world = world_of()
    asked = {"tokens": [1], "price": 1.0, "ttl_s": 1.0, **fields}
    (outcome,) = world.do(1, PinPrefix(id=world.id(), **asked))
    assert message in str(outcome.error)


def test_programs_set_no_prices() -> None:
    world = World(page_size=SIZE)
    world.program()
    (outcome,) = world.do(1, PinPrefix(id=world.id(), tokens=[1], price=1.0, ttl_s=1.0))
    assert outcome.error is not None
    assert outcome.error.code == "forbidden"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["cache", "pin", "unpin", "decode", "wait"]),
        st.integers(0, 7),
        st.integers(0, 3),
    ),
    max_size=30,
)


@settings(max_examples=40)
@given(STEPS)
def test_whatever_is_pinned_everybody_goes_on(steps: list[tuple[str, int, int]]) -> None:
    """The harness checks all invariants after every event."""
    world = world_of()
    for what, number, price in steps:
        if what == "cache":
            cache(world, text(number, 1 + price))
        elif what == "pin":
            pin(world, text(number, 4), 1.0 + price, ttl_s=1.0 + number)
        elif what == "unpin":
            pin(world, text(number, 4), 0.0)
        elif what == "wait":
            world.harness.clock.advance_to(world.harness.now_s + price)
        else:
            prompt = [number, *range(60, 60 + 13 * price)]
            pages = range(-(-(len(prompt) + 4) // SIZE))
            decode = world.decode(pages, prompt, 4)
            outcomes = world.do(1, world.alloc(pages), decode, world.dealloc(pages))
            assert outcomes[1].status == "done", outcomes[1].error


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(0, 9)), max_size=40))
def test_the_list_keeps_the_dearest(asked: list[tuple[int, int, int]]) -> None:
    prices = PriceList(4)
    for key, price, ends_s in asked:
        prices.set([b"%d" % key], float(price), float(ends_s))
        prices.check_invariants()
    assert len(prices) <= 4
    left = prices.expire(5.0)
    prices.check_invariants()
    assert all(key not in prices for key in left)


def test_prices_that_end_and_come_again_leave_nothing_behind() -> None:
    prices, keys = PriceList(8), [bytes([number]) for number in range(4)]
    for second in range(1000):
        prices.set(keys, 1.0 + second % 3, second + 0.5)
        assert sorted(prices.expire(second + 0.5)) == keys
    assert max(len(prices._cheapest), len(prices._ends)) <= 3 * 8
