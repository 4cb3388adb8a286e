"""What a claim must not touch: who is senior, and what is shared or being computed again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from quire.control.memory.content import ChainNode, Content
from quire.control.memory.packed_tokens import pack_tokens
from quire.control.memory.pages import Page
from quire.control.programs.program import CommandQueue, Entry, Program
from quire.control.scheduler.reclaiming.claim import Claim
from quire.control.scheduler.reclaiming.restorer import RestoreJob
from quire.core.commands import AllocPages
from quire.core.events import ProgramStarted
from quire.core.ids import (
    CommandId,
    EngineId,
    ModelId,
    PageId,
    ProgramId,
    QueueId,
    TenantId,
    ThreadId,
)
from quire.core.policy import GraphPlace

ENGINE, MODEL = EngineId("fake"), ModelId("fake")
numbers = count(1)


def start_program(serial: int) -> Program:
    started = ProgramStarted(
        time_s=0.0,
        program=ProgramId(serial),
        tenant=TenantId("red"),
        form="inferlet",
        name="",
        priority=0,
    )
    return Program(started, serial)


def entry_of(program: Program, *contents: Content, arrival_s: float = 0.0) -> Entry:
    """A command of ``program`` that names pages which mean ``contents``."""
    queue = CommandQueue(QueueId(next(numbers)), program, MODEL, ThreadId(0), GraphPlace(), 0, 0)
    entry = Entry(AllocPages(id=CommandId(next(numbers)), pages=[]), queue, arrival_s)
    pages = []
    for content in contents:
        page = Page(PageId(next(numbers)), ENGINE, queue.id)
        page.content = content
        content.num_refs += 1
        pages.append(page)
    entry.pages = tuple(pages)
    return entry


def waiting(*entries: Entry) -> Callable[[Program | None], list[Entry]]:
    """What a claim asks for those that wait: of a program, or all."""
    return lambda program: [entry for entry in entries if program in (None, entry.program)]


def chain(length: int) -> list[Content]:
    """Lost contents, one behind the other, that no page refers to."""
    contents: list[Content] = []
    node: ChainNode | None = None
    for index in range(length):
        content = Content(node, canonical=True)
        content.tokens = [index]
        node = content.node = ChainNode(
            node, pack_tokens([index]), bytes([next(numbers) % 256, index])
        )
        contents.append(content)
    return contents


def job_for(requester: Entry, contents: list[Content]) -> RestoreJob:
    for content in contents:
        content.num_refs += 1
    return RestoreJob(contents, requester, next(numbers))


def test_the_order_is_by_age_of_the_program_then_by_arrival() -> None:
    old, young = start_program(1), start_program(2)
    early, late = entry_of(young), entry_of(young, arrival_s=1.0)
    assert sorted([late, early, entry_of(old, arrival_s=2.0)], key=lambda e: e.seniority)[1:] == [
        early,
        late,
    ]


def test_of_one_program_the_earlier_command_keeps_its_pages() -> None:
    (first,), (second,) = chain(1), chain(1)
    program = start_program(1)
    early, late = entry_of(program, first), entry_of(program, second, arrival_s=1.0)
    both = waiting(late, early)
    of_late, of_early = (Claim(entry, None, both, []) for entry in (late, early))
    assert of_late.spares(first)
    assert not of_early.spares(second)
    assert of_late.spares(second), "its own pages"
    assert not Claim(late, None, waiting(late), []).spares(first), (
        "the earlier one waits for a command"
    )


@pytest.mark.parametrize("is_shared", [True, False])
def test_what_a_senior_command_shares_with_an_idle_program_stays(is_shared: bool) -> None:
    (content,) = chain(1)
    entry_of(start_program(9), content)
    senior = entry_of(start_program(1), *([content] if is_shared else []))
    junior = entry_of(start_program(2))
    assert Claim(junior, None, waiting(senior, junior), []).spares(content) == is_shared
    assert Claim(senior, None, waiting(junior), []).spares(content) == is_shared


def test_chains_yield_to_senior_ones_alone() -> None:
    senior, junior = entry_of(start_program(1)), entry_of(start_program(2))
    shared = chain(3)
    first, second = job_for(senior, shared), job_for(junior, [*shared, *chain(1)])
    jobs = [second, first]
    of_first, of_second = (
        Claim(senior, first, waiting(), jobs),
        Claim(junior, second, waiting(), jobs),
    )
    assert all(of_second.spares(content) for content in shared)
    assert not of_first.spares(second.contents[-1])
    assert of_first.restoring(junior.program) == second.contents


def test_of_one_command_the_deepest_chain_comes_first() -> None:
    deep, shallow, opaque = chain(3), chain(1), Content(None, canonical=False)
    entry = entry_of(start_program(1), deep[-1], *shallow, opaque)
    first, second = job_for(entry, deep), job_for(entry, shallow)
    jobs = [second, first]
    assert sorted(jobs, key=lambda job: job.order) == [first, second]
    assert Claim(entry, first, waiting(entry), jobs).last_resort() == shallow
    assert Claim(entry, second, waiting(entry), jobs).last_resort() == []
    assert Claim(entry, second, waiting(entry), jobs).spares(deep[0])
    assert not Claim(entry, None, waiting(entry), jobs).spares(deep[0]), (
        "it waits for no chain any more"
    )


def test_a_chain_takes_pages_of_its_command_that_are_shallower_than_it() -> None:
    named = [chain(length)[-1] for length in (1, 2, 3, 4)]
    entry = entry_of(start_program(1), *named)
    job = job_for(entry, chain(3))
    assert Claim(entry, job, waiting(entry), [job]).last_resort() == named[:2]
