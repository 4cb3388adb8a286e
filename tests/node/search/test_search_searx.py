"""A real searx server: what it finds, single and batched, page by page, and when it is gone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from searx_server import JOBS, PAGE, PASSAGES, Searx

from quire.core.config import EngineConfig, NodeConfig
from quire.core.errors import EngineLost
from quire.core.ids import ModelId, TenantId
from quire.node import SHIPPED_MODEL, Node
from quire.node.search.searxng import SearxngSearch
from quire.programs import inferlet
from quire.programs.api import Api
from quire.programs.workflow import find_application, workflow

TENANT = TenantId("default")

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


async def test_it_finds_texts_with_title_address_and_score(searx: Searx) -> None:
    engine = SearxngSearch(searx.url + "/")
    best, *others = await engine.search("What is the job of Lin", 3)
    assert best[:3] == ("Fact 1", "http://facts.example/1", "The job of Lin is doctor.")
    assert len(others) == 2
    assert best.score > others[0].score > others[1].score
    await engine.close()


async def test_pages_are_asked_for_until_there_are_enough(searx: Searx) -> None:
    engine = SearxngSearch(searx.url)
    found = await engine.search("is", PAGE + 4)
    assert len({one.address for one in found}) == PAGE + 4
    everything = await engine.search("is", 64)
    assert len(everything) == len(PASSAGES)
    await engine.close()


@pytest.mark.parametrize("query", ["!!g Lin", ":de Lin", "<3 Lin", "!ddg Lin", "?tx Lin", "&x"])
async def test_a_query_gives_the_server_no_commands(searx: Searx, query: str) -> None:
    engine = SearxngSearch(searx.url)
    found = await engine.search(query, 4)
    assert any("Lin" in one.text for one in found) == ("Lin" in query)
    await engine.close()


async def test_programs_and_workflows_of_a_node_search_with_it(searx: Searx) -> None:
    @inferlet()
    async def main(api: Api) -> list[list[str]]:
        assert await api.available_search() == "searxng"
        found = await api.search(["job of Lin", "no such words", "age Zoe"], 1)
        return [[one.text for one in results] for results in found]

    engine = EngineConfig(source=SHIPPED_MODEL, name=ModelId(SHIPPED_MODEL))
    node = Node(NodeConfig(engines=(engine,), engine_process=False, search=searx.url))
    await node.start()
    try:
        (job,), none, (age,) = await node.launch(main, tenant=TENANT).result()
        assert not none
        assert job == "The job of Lin is doctor."
        assert age == "The age of Zoe is 36."
        program = workflow(find_application("search-generation"))
        right = 0
        for name, wanted in list(JOBS.items())[:6]:
            query = json.dumps({"question": f"What is the job of {name}?"})
            running = node.launch(program, [query], tenant=TENANT)
            right += (await running.result())["answer"].rstrip(".") == wanted
        assert right >= 4
    finally:
        await node.stop()


async def test_a_server_that_is_gone_is_an_engine_that_is_lost(
    searx_folder: Path, tmp_path: Path
) -> None:
    server = Searx(tmp_path)  # the fixture says whether there is one
    engine = SearxngSearch(server.url)
    assert await engine.search("Lin", 1)
    await asyncio.to_thread(server.close)
    with pytest.raises(EngineLost, match=r"server cannot be used now .* check that it"):
        await engine.search("Lin", 1)
    await engine.close()
