"""A send stands in the message that computes the last of what it sends."""

from __future__ import annotations

import pytest
from leases_world import PROMPT, LeaseWorld, pair, settle

from quire.core.batch import Batch, SendSlots
from quire.core.decoding import StopSpec
from quire.core.errors import InvalidArgument
from quire.core.lease_commands import Leased
from quire.testing.harness import CommandOutcome

PAGES = range(3)


def messages(world: LeaseWorld) -> list[Batch]:
    return [one.batch for one in world.harness.dispatched]


def sends(batch: Batch) -> bool:
    return any(isinstance(operation, SendSlots) for operation in batch.operations)


def compute_and_send(world: LeaseWorld, lease: Leased, max_tokens: int = 0) -> list[CommandOutcome]:
    prefill = world.decode(PAGES, PROMPT, stop=StopSpec(max_tokens=max_tokens))
    return world.issue(1, world.alloc(PAGES), prefill, world.send(PAGES, 0, len(PROMPT), lease))


def test_one_message_computes_and_sends() -> None:
    sender, receiver = pair()
    lease = receiver.lease(PROMPT)
    outcomes = compute_and_send(sender, lease)
    settle(sender, receiver)
    assert [one.status for one in outcomes] == ["done"] * 3
    (batch,) = messages(sender)
    assert sends(batch)
    assert batch.forward is not None
    assert receiver.go_on(lease.lease, [*PROMPT, 7], len(PROMPT)).status == "done"


def test_a_prompt_in_parts_is_sent_with_its_last_one() -> None:
    sender, receiver = pair(max_batch_tokens=4)
    lease = receiver.lease(PROMPT)
    outcomes = compute_and_send(sender, lease)
    settle(sender, receiver)
    assert [one.status for one in outcomes] == ["done"] * 3
    assert [sends(batch) for batch in messages(sender)] == [False, False, True]


def test_what_is_sampled_is_sent_when_it_is_known() -> None:
    sender, receiver = pair()
    lease = receiver.lease(PROMPT)
    compute_and_send(sender, lease, max_tokens=1)
    settle(sender, receiver)
    first, second = messages(sender)
    assert (sends(first), sends(second)) == (False, True)


@pytest.mark.parametrize("num_steps", [0, 1])
def test_a_sender_that_ends_meanwhile_leaves_nothing(num_steps: int) -> None:
    sender, receiver = pair()
    lease = receiver.lease(PROMPT)
    compute_and_send(sender, lease)
    if num_steps:
        sender.harness.step_engine(next(iter(sender.harness.engines)))
    sender.harness.lose_engine(next(iter(sender.harness.engines)))
    sender.restart()
    settle(sender, receiver)
    assert not sender.statistics.num_pending_commands
    sender.controller.check_invariants()


def test_a_row_that_fails_fails_its_send() -> None:
    sender, receiver = pair()
    lease = receiver.lease(PROMPT)
    sender.engine.fail_row(0, "forward", 0, InvalidArgument("an injected fault"))
    outcomes = compute_and_send(sender, lease)
    settle(sender, receiver)
    assert [one.status for one in outcomes] == ["done", "failed", "failed"]
    assert not sender.statistics.num_pending_commands
