"""What sandboxed programs try on their neighbours: another tenant's things, children without end.

Each ends in its own clear error, and what it was after is unharmed. The neighbour is counted, never
timed: it makes so many steps while the culprit is at it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from textwrap import dedent, indent

import pytest
import pytest_asyncio
from fake_node import TENANT
from sandbox_node import BYSTANDER, needs_sandbox, program, sandbox_config, sandbox_node, steps

from quire.core.config import TenantConfig
from quire.core.errors import ProgramCancelled, ProgramFailed
from quire.core.ids import TenantId
from quire.core.quotas import Quotas
from quire.node import Node, ProgramHandle

pytestmark = [
    pytest.mark.e2e,
    needs_sandbox,
    pytest.mark.timeout(400),  # the first one builds the component
    pytest.mark.asyncio(loop_scope="module"),
]

OTHER = TenantId("other")
MAX_CHILDREN = 6

OWNER = program(
    """
    @inferlet("owner", topics=["news", "work"], stores=["notes"])
    async def owner(api):
        news = await api.subscribe("news")
        await api.push("work", "theirs")
        await api.store_put("key", "theirs", store="notes")
        steps = 0
        while await api.receive() != "end":
            steps += 1
            await api.synchronize()
            await api.send(str(steps))
        assert await api.broadcast("news", "theirs") == 1
        kept = await api.store_list(store="notes")
        value = await api.store_get("key", store="notes")
        return [await news.receive(), await api.pull("work"), kept, value]
    """
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(sandbox_cache: Path) -> AsyncIterator[Node]:
    tenants = (TenantConfig(TENANT), TenantConfig(OTHER))
    node = sandbox_node(replace(sandbox_config(sandbox_cache), tenants=tenants))
    await node.start()
    yield node
    await node.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def owner(node: Node) -> AsyncIterator[ProgramHandle]:
    """A program of another tenant, in the same process, that listens, has pushed and stored."""
    handle = node.launch(await node.inspect(OWNER), tenant=OTHER)
    yield handle
    handle.terminate()
    await handle.wait_ended()


@pytest_asyncio.fixture(loop_scope="module")
async def bystander(node: Node) -> AsyncIterator[ProgramHandle]:
    handle = node.launch(await node.inspect(BYSTANDER), tenant=OTHER)
    yield handle
    handle.terminate()
    await handle.wait_ended()


THEFTS = {
    "topic": (
        """
        assert await api.broadcast("news", "forged") == 0, "it is heard by another tenant"
        await call("topic.broadcast", {"topic": "news", "message": "m", "tenant": "other"})
        """,
        "topic.broadcast: Object contains unknown field `tenant`",
    ),
    "work queue": (
        """
        await api.push("work", "mine")
        assert await api.pull("work") == "mine", "what another tenant pushed first came"
        await call("queue.pull", {"queue": "work", "tenant": "other"})
        """,
        "queue.pull: Object contains unknown field `tenant`",
    ),
    "store": (
        """
        assert await api.store_list(store="notes") == []
        assert await api.store_delete("key", store="notes") is False
        await api.store_put("key", "mine", store="notes")
        assert await api.store_delete("key", store="notes") is True
        await call("store.get", {"key": "key", "store": "notes", "tenant": "other"})
        """,
        "store.get: Object contains unknown field `tenant`",
    ),
    "topic by a path": (
        """
        assert await api.broadcast("other/news", "m") == 0
        await api.broadcast("other\\0news", "m")
        """,
        "its name must be printable",
    ),
}


@pytest.mark.parametrize("theft", THEFTS)
async def test_what_another_tenant_has_is_out_of_reach(
    node: Node, owner: ProgramHandle, theft: str
) -> None:
    body, words = THEFTS[theft]
    await steps(owner, 1)  # it listens, has pushed and stored
    source = f"""
@inferlet("thief", topics=["*"], stores=["*"])
async def thief(api):
    call = lambda name, arguments: api.issuer.ask(name, **arguments)
{indent(dedent(body), "    ")}
"""
    thief = node.launch(await node.inspect(program(source)), tenant=TENANT)
    await steps(owner, 5)
    with pytest.raises(ProgramFailed) as caught:
        await thief.result()
    assert words in caught.value.message
    await steps(owner, 1)
    await owner.send("end")
    assert await owner.result() == ["theirs", "theirs", ["key"], "theirs"]
    assert owner.record().num_messages == 7


OUTSIDE = {
    "topic": ('await api.broadcast("news", "m")', "topic 'news' is not allowed"),
    "subscription": ('await api.subscribe("news")', "topic 'news' is not allowed"),
    "work queue": ('await api.pull("work")', "topic 'work' is not allowed"),
    "store": ('await api.store_get("key", store="notes")', "store 'notes' is not allowed"),
}


@pytest.mark.parametrize("wish", OUTSIDE)
async def test_what_a_manifest_does_not_name_is_forbidden(
    node: Node, bystander: ProgramHandle, wish: str
) -> None:
    code, words = OUTSIDE[wish]
    source = program(
        f"""
        @inferlet("nosy", topics=["mine"], stores=["mine"])
        async def nosy(api):
            {code}
        """
    )
    handle = node.launch(await node.inspect(source), tenant=TENANT)
    await steps(bystander, 3)
    with pytest.raises(ProgramFailed) as caught:
        await handle.result()
    assert words in caught.value.message
    assert bystander.record().num_messages == 3


BOMBS = {
    "deep": """
    @inferlet("bomb")
    async def bomb(api):
        child = await api.launch("bomb")
        await child.join()
    """,
    "wide": """
    @inferlet("bomb")
    async def bomb(api, *args):
        if args:
            await asyncio.Event().wait()
        while True:
            await api.launch("bomb", ["wait"])
    """,
    "both": """
    @inferlet("bomb")
    async def bomb(api):
        while True:
            await asyncio.gather(*(api.launch("bomb") for _ in range(4)))
    """,
}


@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_fork_bomb_of_children_ends_alone(
    node: Node, bystander: ProgramHandle, bomb: str
) -> None:
    """Its whole family is bounded, and none of it is left."""
    await steps(bystander, 1)
    quotas = Quotas(max_children=MAX_CHILDREN)
    before = {record.id for record in node.programs(TENANT)}
    culprit = node.launch(await node.inspect(program(BOMBS[bomb])), tenant=TENANT, quotas=quotas)
    await steps(bystander, 10)
    with pytest.raises(ProgramFailed, match=f"{MAX_CHILDREN} are allowed: wait for some to end"):
        await culprit.result()
    family = [record.id for record in node.programs(TENANT) if record.id not in before]
    assert len(family) >= 1 + MAX_CHILDREN
    for member in family:
        with pytest.raises((ProgramFailed, ProgramCancelled)):
            await node.program(member, TENANT).result()
    await steps(bystander, 3)
    assert bystander.record().num_messages == 14


BOUNDLESS = {
    "result": """
    @inferlet("boundless")
    async def boundless(api, *args):
        if args:
            return 10**30
        child = await api.launch("boundless", ["child"])
        try:
            await child.join()
        except Exception as exc:
            return f"{type(exc).__name__}: {exc}"
    """,
    "half a pair": """
    @inferlet("boundless")
    async def boundless(api, *args):
        if args:
            return {"text": chr(0xD800)}
        child = await api.launch("boundless", ["child"])
        try:
            await child.join()
        except Exception as exc:
            return f"{type(exc).__name__}: {exc}"
    """,
    "log": """
    @inferlet("boundless")
    async def boundless(api):
        for _ in range(50):
            api.log("info", "so many", number=10**30, few=3)
            await api.synchronize()
        return "logged"
    """,
}


@pytest.mark.parametrize("kind", BOUNDLESS)
async def test_what_no_message_can_hold_costs_its_own_program_alone(
    node: Node, bystander: ProgramHandle, kind: str
) -> None:
    source = await node.inspect(program(BOUNDLESS[kind]))
    culprits = [node.launch(source, tenant=TENANT) for _ in range(8)]
    await steps(bystander, 20)
    results = [await one.result() for one in culprits]
    if kind == "log":
        assert results == ["logged"] * 8
        fields = [line.fields for line in culprits[0].logs() if line.text == "so many"]
        assert fields == [{"number": str(10**30), "few": 3}] * 50
    else:
        said = "InvalidArgument: the answer cannot be told to a sandboxed program"
        assert [one[: len(said)] for one in results] == [said] * 8
    await steps(bystander, 3)
    assert bystander.record().num_messages == 23
