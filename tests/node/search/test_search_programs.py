"""Programs that search: native and sandboxed, from the same source."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from fake_node import TENANT
from sandbox_node import needs_sandbox, program, sandbox_config, sandbox_node

from quire.node import Node
from quire.programs.inferlet import load_inferlet

pytestmark = [
    pytest.mark.e2e,
    needs_sandbox,
    pytest.mark.timeout(400),  # the first one builds the component
    pytest.mark.asyncio(loop_scope="module"),
]

SOURCE = program(
    """
    from quire.core.errors import InvalidArgument

    @inferlet(traits={"Search": 1})
    async def searching(api):
        engine = await api.available_search()
        one, none = await api.search(["the job of Lin", "nothing"], 1)
        try:
            await api.search([" "])
        except InvalidArgument as exc:
            refused = exc.message
        return [engine, [(hit.title, hit.address, hit.text) for hit in one], len(none), refused]
    """
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(
    sandbox_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Node]:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "jobs.md").write_text("# Jobs\n\nLin has the job of a doctor.", encoding="utf-8")
    config = dataclasses.replace(sandbox_config(sandbox_cache), search=str(folder))
    node = sandbox_node(config)
    await node.start()
    yield node
    await node.stop()


@pytest.mark.parametrize("runtime", ["native", "sandboxed"])
async def test_a_program_searches_wherever_it_runs(
    node: Node, runtime: str, tmp_path: Path
) -> None:
    path = tmp_path / "program.py"
    path.write_bytes(SOURCE)
    made = await node.inspect(SOURCE) if runtime == "sandboxed" else load_inferlet(path)
    engine, found, num_none, refused = await node.launch(made, tenant=TENANT).result()
    assert engine == "fts5"
    assert [tuple(one) for one in found] == [
        ("Jobs", "jobs.md", "# Jobs\nLin has the job of a doctor.")
    ]
    assert num_none == 0
    assert refused == "search: queries[0] is empty: give words to search for"
