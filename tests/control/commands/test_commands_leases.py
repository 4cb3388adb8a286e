"""Lease commands that cannot succeed: the issuer learns why, with the values, and nothing is
written."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from control_world import ENGINE, World, alone
from leases_world import KEY, PROMPT, SIZE, LeaseWorld, pair, settle

from quire.core import commands as c
from quire.core.config import TenantConfig, TenantTotals
from quire.core.ids import TenantId
from quire.core.lease_commands import Leased, LeaseName, OpenLease
from quire.testing.fake_engine.network import FakeNetwork

Make = Callable[[LeaseWorld, Leased], c.Command]

OTHER = LeaseName(ENGINE, 0, 77, KEY)

BAD: dict[str, tuple[Make, str, str]] = {
    "no time to live": (lambda w, x: w.open(PROMPT, 0.0), "invalid_argument", "ttl_s is 0.0"),
    "too long": (lambda w, x: w.open(PROMPT, 3601.0), "invalid_argument", "at most 3600"),
    "renewed for too long": (
        lambda w, x: w.renew(x.lease, 1e9), "invalid_argument", "at most 3600"),
    "a short key": (lambda w, x: w.open(PROMPT, key=b"k"), "invalid_argument", "has 1 bytes"),
    "no such token": (lambda w, x: w.open([10**6]), "invalid_argument", "[1000000]"),
    "no such adapter": (lambda w, x: w.open(PROMPT, adapter="x"), "invalid_argument", "'x'"),
    "longer than the context": (
        lambda w, x: w.open([1] * 5000), "context_length_exceeded", "4096"),
    "larger than the pool": (lambda w, x: w.open([1] * 100), "never_fits", "16"),
    "larger than its share": (lambda w, x: w.open([1] * 36), "never_fits", "8 may wait"),
    "other content": (
        lambda w, x: w.send([0], 0, 4, x, content="other"), "invalid_argument", "'other'"),
    "begin after end": (lambda w, x: w.send([0], 4, 2, x), "invalid_argument", "-2 tokens"),
    "before the first": (lambda w, x: w.send([0], -1, 2, x), "invalid_argument", "slot -1"),
    "more than is written": (
        lambda w, x: w.send([0], 0, 5, x), "invalid_argument", "pages that hold 4"),
    "unknown page": (lambda w, x: w.send([99], 0, 4, x), "unknown_handle", "page 99"),
    "unknown lease": (lambda w, x: w.close(OTHER), "unknown_handle", "never opened here"),
    "another key": (
        lambda w, x: w.close(msgspec.structs.replace(x.lease, key=b"0" * 16)),
        "unknown_handle", "under that key"),
    "another epoch": (
        lambda w, x: w.close(msgspec.structs.replace(x.lease, epoch=5)),
        "unknown_handle", "epoch 5"),
    "too few ids": (lambda w, x: w.take(x.lease, [30], 8), "invalid_argument", "offer 2"),
    "a page in use": (lambda w, x: w.take(x.lease, [0], 4), "invalid_argument", "page 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_command_that_cannot_succeed_says_why(name: str) -> None:
    make, code, words = BAD[name]
    _, world = pair()
    world.computed([3, 1, 4, 1], first_page=0)
    lease = world.lease(PROMPT)
    before = len(world.operations())
    (outcome,) = world.do(1, make(world, lease))
    assert outcome.error is not None
    assert (outcome.error.code, words in outcome.error.message) == (code, True), outcome.error
    assert len(world.operations()) == before, "nothing is written"
    assert world.statistics.num_leases == 1


def test_a_lease_has_no_more_tokens_than_it_was_opened_for() -> None:
    sender, receiver = pair()
    lease = receiver.lease(PROMPT)
    sender.do(1, sender.send(sender.computed(PROMPT), 0, len(PROMPT), lease))
    settle(sender, receiver)
    (taken,) = receiver.do(1, receiver.take(lease.lease, range(3), 12))
    assert "12 tokens are asked for and lease 1 has 11" in str(taken.error)


def test_only_the_nodes_own_calls_lease() -> None:
    world = LeaseWorld(FakeNetwork())
    world.program(2, form="inferlet")
    (outcome,) = world.do(2, world.open(PROMPT))
    assert outcome.error is not None
    assert outcome.error.code == "forbidden"


def test_an_engine_without_a_data_plane_leases_nothing() -> None:
    world = World(page_size=SIZE)
    world.program(form="session")
    (outcome,) = world.do(1, OpenLease(id=1, tokens=PROMPT, key=KEY, ttl_s=1.0))
    assert "no data plane" in str(outcome.error)


def test_a_lease_belongs_to_its_tenant() -> None:
    _, world = pair()
    lease = world.lease(PROMPT)
    world.program(2, tenant="other")
    (outcome,) = world.do(2, world.close(lease.lease))
    assert outcome.error is not None
    assert outcome.error.code == "forbidden"


def test_a_full_engine_refuses_a_lease_with_its_figures() -> None:
    _, world = pair(num_blocks=8, num_host_blocks=0)
    world.lease(PROMPT)
    (outcome,) = world.do(1, world.open([9, *PROMPT], key=b"k" * 16))
    assert outcome.error is not None
    assert outcome.error.retriable
    assert outcome.error.details == {"num_waiting": 3, "num_blocks": 4}


def test_running_decodes_leave_no_room_for_a_lease() -> None:
    _, world = pair(num_blocks=4, num_host_blocks=0)
    world.program(2)
    decode = world.issue(2, world.alloc(range(4)), world.decode(range(4), PROMPT, 4))[1]
    world.harness.step_engine(ENGINE)
    (outcome,) = world.do(1, world.open([9, *PROMPT[:5]]))
    assert decode.tokens == alone(PROMPT, 4, page_size=SIZE)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.retriable) == ("pool_exhausted", True)
    assert "of 4 are free or cached" in outcome.error.message


@pytest.mark.parametrize(("total", "held"), [("max_leases", 1), ("max_leased_pages", 5)])
def test_a_tenant_has_no_more_leases_than_its_totals(total: str, held: int) -> None:
    totals = TenantTotals(**{total: held})
    world = LeaseWorld(
        FakeNetwork(), tenants=(TenantConfig(TenantId("t"), totals=totals),), num_blocks=64
    )
    lease = world.lease(PROMPT)
    refused = world.do(1, world.open(PROMPT, key=b"k" * 16))[0]
    assert refused.error is not None
    assert (refused.error.code, refused.error.details) == ("quota_exceeded", {total: held})
    world.program(2)
    world.do(2, world.close(lease.lease))
    assert world.do(2, world.open(PROMPT))[0].status == "done"


def test_tokens_that_were_sampled_elsewhere_count() -> None:
    """A decode that goes on elsewhere ends where it would have ended, and knows its history."""
    world = World(page_size=SIZE)
    world.program()
    told = alone(PROMPT, 8, page_size=SIZE)
    pages = range(6)
    decode = world.decode(pages, [*PROMPT, *told[:3]], 5, num_generated=3)
    assert world.do(1, world.alloc(pages), decode)[1].tokens == told[3:]
    (opened,) = [
        op
        for one in world.harness.dispatched
        for op in one.batch.operations
        if type(op).__name__ == "OpenSequence"
    ]
    assert (opened.num_generated, opened.stop.max_tokens) == (3, 8)
    bad = world.do(1, world.decode(pages, PROMPT, num_generated=12))[0]
    assert "num_generated is 12 of 11 tokens" in str(bad.error)
