"""Readers that follow the process table: what they share, what they are spared, how they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from quire.control import ProcessRow
from quire.core.errors import QuotaExceeded
from quire.core.ids import ProgramId, TenantId
from quire.node import NodeChanges, NodeHealth, ProcessRecord
from quire.server.answers.event_stream import HEARTBEAT, HEARTBEAT_S
from quire.server.programs.live_changes import INTERVAL_S, LiveChanges

TENANT, OTHER = TenantId("a"), TenantId("b")
STARTED = 1000


@dataclass
class FakeNode:
    """``rows`` by the number of their change, of both tenants together. ``looks``: what was asked.
    Time goes on whenever a reader sleeps."""

    now_s: float = 100.0
    number: int = 0
    rows: dict[int, ProcessRow] = field(default_factory=dict)
    looks: list[tuple[int, TenantId]] = field(default_factory=list)
    detail: str = ""
    over: bool = False
    most: int = 100

    def change(self, program: int, tenant: TenantId = TENANT) -> None:
        self.number += 1
        self.rows = {at: row for at, row in self.rows.items() if row.program != program}
        self.rows[self.number] = row_of(program, tenant)

    def changes(self, since: int, tenant: TenantId) -> NodeChanges:
        self.looks.append((since, tenant))
        found = [at for at, row in self.rows.items() if at > since and row.tenant == tenant]
        more, found = len(found) > self.most, sorted(found)[: self.most]
        return NodeChanges(
            number=found[-1] if more else self.number,
            records=[ProcessRecord(f"id-{at}", self.rows[at]) for at in found],
            ended=(),
            is_whole=since == 0,
            more=more,
            engines=(),
            policy="fcfs",
            health=NodeHealth(True, True, False, {}, {}, {}, self.detail),
            uptime_s=self.now_s,
            unix_s=self.now_s,
            unix_offset_s=0.0,
        )

    async def sleep(self, delay_s: float) -> None:
        assert 0 < delay_s <= INTERVAL_S
        self.now_s += delay_s
        await asyncio.sleep(0)

    def live(self, max_readers: int = 2) -> LiveChanges:
        return LiveChanges(
            self.changes,
            lambda: self.over,
            STARTED,
            lambda: self.now_s,
            self.sleep,
            max_readers,
        )


ROW = ProcessRow(
    program=ProgramId(1),
    tenant=TENANT,
    form="inferlet",
    name="one",
    client_id=None,
    state="idle",
    num_queues=0,
    num_threads=0,
    num_pages=0,
    num_device_blocks=0,
    num_host_blocks=0,
    num_disk_blocks=0,
    num_pending_commands=0,
    num_generated_tokens=0,
    num_prefilled_tokens=0,
    num_cached_tokens=0,
    num_encoded_tokens=0,
    service_s=0.0,
    path_s=0.0,
    cost_s=0.0,
    waiting_s=0.0,
    started_s=0.0,
    last_arrival_s=None,
    last_completion_s=None,
    num_preemptions=0,
)


def row_of(program: int, tenant: TenantId) -> ProcessRow:
    return replace(ROW, program=ProgramId(program), tenant=tenant)


@dataclass(frozen=True)
class Told:
    id: str
    programs: list[int]
    body: dict[str, Any]


async def next_of(events: AsyncGenerator[bytes, None]) -> Told:
    head, body = (await anext(events)).decode().removesuffix("\n\n").split("\n")
    value = json.loads(body.removeprefix("data: "))
    return Told(head.removeprefix("id: "), [one["process"] for one in value["programs"]], value)


async def test_a_reader_is_told_of_all_and_then_of_what_changes() -> None:
    node = FakeNode()
    node.change(1)
    node.change(2)
    async with aclosing(node.live().events(0, TENANT)) as events:
        first = await next_of(events)
        assert (first.id, first.programs, first.body["whole"]) == ("1000-2", [1, 2], True)
        node.change(1)
        later = await next_of(events)
        assert (later.id, later.programs, later.body["whole"]) == ("1000-3", [1], False)
        node.detail = "an engine is silent"
        assert (await next_of(events)).body["node"]["detail"] == "an engine is silent"


async def test_who_has_nothing_to_be_told_gets_a_sign_of_life_now_and_then() -> None:
    node = FakeNode()
    async with aclosing(node.live().events(0, TENANT)) as events:
        assert (await next_of(events)).programs == []
        node.looks.clear()
        assert await anext(events) == HEARTBEAT
        assert len(node.looks) >= HEARTBEAT_S / INTERVAL_S
        assert await anext(events) == HEARTBEAT


async def test_a_reader_behind_by_more_than_one_answer_looks_again_at_once() -> None:
    node = FakeNode(most=2)
    for program in range(1, 6):
        node.change(program)
    async with aclosing(node.live().events(0, TENANT)) as events:
        told = [(await next_of(events)).programs for _ in range(3)]
    assert told == [[1, 2], [3, 4], [5]]
    assert node.now_s == 100.0, "it did not sleep"


async def test_readers_of_a_tenant_share_a_look_and_those_of_another_do_not() -> None:
    node = FakeNode()
    node.change(1)
    node.change(2, OTHER)
    live = node.live()
    readers = [live.events(0, tenant) for tenant in (TENANT, TENANT, OTHER)]
    first = [await next_of(one) for one in readers]
    assert [one.programs for one in first] == [[1], [1], [2]]
    assert node.looks == [(0, TENANT), (0, OTHER)]
    for one in readers:
        await one.aclose()


async def test_a_slow_reader_gets_fewer_events_and_misses_nothing() -> None:
    node = FakeNode()
    live = node.live()
    async with aclosing(live.events(0, TENANT)) as slow, aclosing(live.events(0, TENANT)) as quick:
        for one in (slow, quick):
            await next_of(one)
        for program in (1, 2, 3, 2):
            node.change(program)
            assert (await next_of(quick)).programs == [program]
        assert (await next_of(slow)).programs == [1, 3, 2]


async def test_the_last_changes_are_told_before_the_end() -> None:
    node = FakeNode()
    async with aclosing(node.live().events(0, TENANT)) as events:
        await next_of(events)
        node.change(1)
        node.over = True
        assert (await next_of(events)).programs == [1]
        assert await anext(events) == b"data: [DONE]\n\n"
        with pytest.raises(StopAsyncIteration):
            await anext(events)


def test_a_tenant_has_so_many_readers_and_takes_none_from_another() -> None:
    live = FakeNode().live(max_readers=2)
    live.enter(TENANT)
    live.enter(TENANT)
    with pytest.raises(QuotaExceeded, match="2 readers follow"):
        live.enter(TENANT)
    live.enter(OTHER)
    live.leave(TENANT)
    live.enter(TENANT)
