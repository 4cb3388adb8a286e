"""Ended programs: how many are remembered, and that nothing stays of what ran them."""

from __future__ import annotations

import gc
import weakref

from fake_node import TENANT

from quire.core.ids import TenantId
from quire.node import Node
from quire.node.programs.ended import EndedPrograms
from quire.programs.api import Api
from quire.programs.inferlet import inferlet


def test_the_oldest_go_beyond_the_number() -> None:
    ended = EndedPrograms(max_programs=2, max_bytes=100)
    assert [ended.add(TENANT, name, 1) for name in "abcd"] == [[], [], ["a"], ["b"]]


def test_the_oldest_go_beyond_the_bytes() -> None:
    ended = EndedPrograms(max_programs=10, max_bytes=100)
    assert [ended.add(TENANT, name, 40) for name in "ab"] == [[], []]
    assert ended.add(TENANT, "c", 90) == ["a", "b"]
    assert ended.add(TENANT, "d", 10) == []


def test_the_newest_stays_whatever_its_size() -> None:
    ended = EndedPrograms(max_programs=10, max_bytes=100)
    assert ended.add(TENANT, "large", 500) == []
    assert ended.add(TENANT, "small", 1) == ["large"]


def test_what_is_dropped_makes_room() -> None:
    ended = EndedPrograms(max_programs=2, max_bytes=100)
    assert [ended.add(TENANT, name, 40) for name in "ab"] == [[], []]
    ended.drop(TENANT, "a")
    ended.drop(TENANT, "a")
    ended.drop(TenantId("other"), "b")
    assert ended.add(TENANT, "c", 60) == []
    assert ended.add(TENANT, "d", 1) == ["b"]


def test_tenants_do_not_push_each_other_out() -> None:
    ended = EndedPrograms(max_programs=1, max_bytes=100)
    assert ended.add(TENANT, "a", 90) == []
    assert ended.add(TenantId("other"), "b", 90) == []


async def test_messages_count_for_the_node(node: Node) -> None:
    node._parts.programs._ended = EndedPrograms(max_programs=10, max_bytes=4000)
    handles = [node.launch(_talk, ["x" * 900], tenant=TENANT) for _ in range(3)]
    for handle in handles:
        await handle.result()
    assert len(node.programs(TENANT)) == 2


async def test_an_ended_program_keeps_nothing_of_its_run(node: Node) -> None:
    """Its record alone: not its API with all it heard, which a restartable one has for restarts."""
    apis.clear()
    plain = node.launch(_remembered, tenant=TENANT)
    restartable = node.launch(_restartable, tenant=TENANT)
    assert await plain.result() == await restartable.result() == "done"
    assert len(apis) == 2
    for _ in range(20):  # its last steps are behind those of one that was launched later
        await node.launch(_talk, ["x"], tenant=TENANT).result()
        gc.collect()
        if not any(api() for api in apis):
            break
    assert [api() for api in apis] == [None, None]
    plain.terminate()
    assert node.program(plain.id, TENANT).record().result == "done"


apis: list[weakref.ref[Api]] = []


async def _leave_a_reference(api: Api) -> str:
    apis.append(weakref.ref(api))
    await api.send("said")
    return "done"


@inferlet()
async def _talk(api: Api, text: str) -> None:
    await api.send(text)


@inferlet()
async def _remembered(api: Api) -> str:
    return await _leave_a_reference(api)


@inferlet(restartable=True)
async def _restartable(api: Api) -> str:
    return await _leave_a_reference(api)
