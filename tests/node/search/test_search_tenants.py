"""Which tenant searches what, and that a node's searches go through its policy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quire.core.config import EngineConfig, NodeConfig, TenantConfig
from quire.core.errors import ConfigError, TraitMissing
from quire.core.ids import ModelId, ProgramId, TenantId
from quire.core.scheduler_config import SchedulerConfig
from quire.node.search.engines import SearchEngines
from quire.node.search.programs import ProgramSearch
from quire.programs.search import SearchResult
from quire.programs.services.encoding import CallOrder
from quire.programs.services.operations import Identity

ORDER = CallOrder()


def config(search: str | None = None, *, policy: str = "fcfs", **tenants: str | None) -> NodeConfig:
    return NodeConfig(
        (EngineConfig(source="x", name=ModelId("x")),),
        scheduler=SchedulerConfig(policy=policy),
        tenants=tuple(TenantConfig(TenantId(one), search=own) for one, own in tenants.items()),
        search=search,
    )


async def read_nothing(name: str, kind: str, file: bytes) -> str:
    raise AssertionError("no file of these tests needs a reader")


def engines_of(config: NodeConfig) -> SearchEngines:
    return SearchEngines(config, read_nothing, lambda: 0.0)


async def here(work: Any) -> Any:
    return await work


def asking(engines: SearchEngines, tenant: str, program: int = 1) -> ProgramSearch:
    return ProgramSearch(Identity(ProgramId(program), TenantId(tenant), "p"), engines, here)


def folder(path: Path, text: str) -> str:
    path.mkdir()
    (path / "a.txt").write_text(text, encoding="utf-8")
    return str(path)


async def test_a_tenant_never_sees_the_index_of_another(tmp_path: Path) -> None:
    ours = folder(tmp_path / "ours", "The word is ours.")
    hers = folder(tmp_path / "hers", "The word is hers.")
    common = folder(tmp_path / "common", "The word is common.")
    engines = engines_of(config(common, a=ours, b=hers, c=None))
    await engines.start()
    for tenant, wanted in {"a": "ours", "b": "hers", "c": "common", "unnamed": "common"}.items():
        ((found,),) = await asking(engines, tenant).find(["word ours hers common"], 9, ORDER)
        assert found.text == f"The word is {wanted}."
    await engines.close()


@pytest.mark.parametrize(
    "query", ["hers", "text:hers", '"hers" OR hers', "rowid:1 hers*", "{path} hers", "hers/a.txt"]
)
async def test_no_query_reaches_the_index_of_another_tenant(tmp_path: Path, query: str) -> None:
    ours, hers = folder(tmp_path / "ours", "Ours alone."), folder(tmp_path / "hers", "Hers alone.")
    engines = engines_of(config(None, a=ours, b=hers))
    await engines.start()
    asked = query.format(path=hers)
    (found,) = await asking(engines, "a").find([asked], 9, ORDER)
    assert {one.text for one in found} <= {"Ours alone."}
    ((theirs,),) = await asking(engines, "b").find([asked], 9, ORDER)
    assert theirs.text == "Hers alone."
    await engines.close()


async def test_a_tenant_without_an_engine_is_told_so(tmp_path: Path) -> None:
    engines = engines_of(config(None, a=folder(tmp_path / "ours", "ours"), b=None))
    await engines.start()
    assert await asking(engines, "a").engine() == "fts5"
    other = asking(engines, "b")
    assert await other.engine() is None
    with pytest.raises(TraitMissing, match="no search engine for tenant 'b': start it with --sea"):
        await other.find(["ours"], 1, ORDER)
    other.close()
    await engines.close()


async def test_what_cannot_be_searched_is_refused_when_the_node_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        engines_of(config(str(tmp_path / "none")))
    with pytest.raises(ConfigError, match="give the address of the server alone"):
        engines_of(config(None, a="http://x/?q=1"))


class Held:
    """Answers one query at a time, each when it is let go."""

    name, at_once = "held", 1

    def __init__(self) -> None:
        self.queries: list[str] = []
        self.go = asyncio.Semaphore(0)

    async def search(self, query: str, top_k: int) -> list[SearchResult]:
        self.queries.append(query)
        await self.go.acquire()
        return []

    async def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize(
    ("policy", "order"),
    [("fcfs", ["first", "shallow", "deep"]), ("topology", ["first", "deep", "shallow"])],
)
async def test_searches_that_wait_go_in_the_order_of_the_nodes_policy(
    monkeypatch: pytest.MonkeyPatch, policy: str, order: list[str]
) -> None:
    held = Held()
    monkeypatch.setattr("quire.node.search.engines.SearxngSearch", lambda address: held)
    engines = engines_of(config("http://x", policy=policy))
    program = asking(engines, "default")
    tasks = []
    for query, depth in [("first", 0), ("shallow", 1), ("deep", 2)]:
        tasks.append(asyncio.create_task(program.find([query], 1, CallOrder(depth=depth))))
        for _ in range(3):
            await asyncio.sleep(0)
    assert held.queries == ["first"]
    for _ in tasks:
        held.go.release()
    await asyncio.gather(*tasks)
    assert held.queries == order


async def test_the_first_failure_of_several_queries_is_raised_and_the_rest_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Held()

    async def failing(query: str, top_k: int) -> list[SearchResult]:
        held.queries.append(query)
        raise ConfigError(f"{query} fails")

    monkeypatch.setattr(held, "search", failing)
    monkeypatch.setattr("quire.node.search.engines.SearxngSearch", lambda address: held)
    engines = engines_of(config("http://x"))
    with pytest.raises(ConfigError, match="one fails"):
        await asking(engines, "default").find(["one", "two", "three"], 1, ORDER)
    assert held.queries == ["one"]
    found = engines.of(TenantId("default"))
    assert found is not None
    assert found[1].statistics().num_running == 0
