"""Chains that are computed again: for whom, from where again when something of them is lost."""

from __future__ import annotations

import pytest
from test_reclaiming_claim import chain, entry_of, start_program

from quire.control.engines.builder import BatchBuilder
from quire.control.engines.state import EngineState
from quire.control.memory.content import Content
from quire.control.memory.promises import NO_RECLAIM
from quire.control.programs.program import Entry
from quire.control.programs.states import CommandState
from quire.control.scheduler.reclaiming.restorer import Restorer
from quire.core.ids import EngineId, ModelId
from quire.testing import FakeEngine, fake_pool


@pytest.fixture
def engine() -> EngineState:
    return EngineState(
        EngineId("fake"), ModelId("fake"), FakeEngine(fake_pool(page_size=1, num_blocks=8)).info
    )


def add_rows(restorer: Restorer, step: int, budget: int = 64) -> BatchBuilder:
    """One message of nothing but rows of jobs, as if it had run."""
    builder = BatchBuilder(step, budget)
    restorer.add_rows(builder, lambda requester, job: NO_RECLAIM)
    restorer._engine.memory.add_to_index(builder.filled)
    restorer._engine.memory.unpin_all(builder.pins)
    return builder


def waits_for(serial: int, content: Content) -> Entry:
    return entry_of(start_program(serial), content)


@pytest.mark.parametrize("serials", [(1, 2), (2, 1)])
def test_a_chain_is_computed_for_the_most_senior_who_waits(
    engine: EngineState, serials: tuple[int, int]
) -> None:
    restorer, target = Restorer(engine), chain(3)[-1]
    entries = [waits_for(serial, target) for serial in serials]
    for entry in entries:
        restorer.request(entry, [target])
    (job,) = restorer.jobs
    assert job.requester is entries[serials.index(1)]


def test_a_chain_that_nobody_waits_for_any_more_ends(engine: EngineState) -> None:
    restorer, target = Restorer(engine), chain(3)[-1]
    first, second = waits_for(1, target), waits_for(2, target)
    restorer.request(first, [target])
    first.move(CommandState.CANCELLED)
    restorer.request(second, [target])
    add_rows(restorer, 0, budget=2)
    (job,) = restorer.jobs
    assert job.requester is second
    second.move(CommandState.CANCELLED)
    restorer.sweep()
    assert restorer.jobs == []
    assert not target.is_restoring
    assert engine.memory.num_available == 8


def test_what_is_left_of_a_broken_chain_is_kept(engine: EngineState) -> None:
    restorer, contents = Restorer(engine), chain(4)
    restorer.request(waits_for(1, contents[-1]), contents[-1:])
    messages = [add_rows(restorer, 0, budget=3)]
    (job,) = restorer.jobs
    assert [content.is_lost for content in job.contents] == [False, False, False, True]
    engine.memory.lose(job.contents[1])
    restorer.sweep()
    (again,) = restorer.jobs
    assert [content.is_lost for content in again.contents] == [False, True, False, True]
    assert engine.memory.index.num_cached == 0, "nobody may take what it holds"
    messages.append(add_rows(restorer, 1))
    restorer.sweep()
    messages.append(add_rows(restorer, 2))
    assert not contents[-1].is_lost
    assert sum(message.num_tokens for message in messages) == 5


def test_a_row_in_the_message_outlives_its_chain_until_the_next(engine: EngineState) -> None:
    restorer, contents = Restorer(engine), chain(2)
    entry = waits_for(1, contents[-1])
    restorer.request(entry, contents[-1:])
    builder = BatchBuilder(5, 64)
    restorer.add_rows(builder, lambda requester, job: NO_RECLAIM)
    entry.move(CommandState.CANCELLED)
    restorer.add_rows(builder, lambda requester, job: NO_RECLAIM)
    assert len(restorer.jobs) == 1
    assert contents[-1].is_restoring, "operations of the message must not use it"
    restorer.sweep()
    assert restorer.jobs == []
    assert not contents[-1].is_restoring


def test_a_chain_that_no_page_means_any_more_ends(engine: EngineState) -> None:
    """Although its requester still waits, for another one."""
    restorer, (target, other) = Restorer(engine), (chain(3)[-1], chain(1)[-1])
    entry = entry_of(start_program(1), target, other)
    restorer.request(entry, [target, other])
    target.num_refs -= 1
    restorer.sweep()
    (job,) = restorer.jobs
    assert job.contents == [other]
    assert not target.is_restoring
