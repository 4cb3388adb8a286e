"""Uploaded source in the sandbox: the same programs, their clients, their ends, their process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from linecache import getlines
from pathlib import Path

import pytest
import pytest_asyncio
from fake_node import TENANT
from sandbox_node import needs_sandbox, program, sandbox_config, sandbox_node

from quire.node import Node, ProgramHandle
from quire.programs.library import (
    low_level_completion,
    parallel_generation,
    prefix_caching,
    react,
    text_completion,
)
from quire.programs.runtime.running import ProgramState

pytestmark = [pytest.mark.e2e, needs_sandbox, pytest.mark.asyncio(loop_scope="module")]

LIBRARY = {
    "text_completion": (text_completion, ("hello", "5")),
    "low_level_completion": (low_level_completion, ("hello", "5")),
    "prefix_caching": (prefix_caching, ("be brief and be kind", "hello", "who are you")),
    "parallel_generation": (parallel_generation, ("a story", "one", "two")),
    "react": (react, ("what is 2 + 3", '{"a": {"b": 1}}')),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(sandbox_cache: Path) -> AsyncIterator[Node]:
    node = sandbox_node(sandbox_config(sandbox_cache))
    await node.start()
    yield node
    await node.stop()


async def launch(node: Node, body: str, *args: str) -> ProgramHandle:
    return node.launch(await node.inspect(program(body)), args, tenant=TENANT)


async def messages_of(handle: ProgramHandle) -> list[str]:
    attachment = handle.attach()
    try:
        return [message.text async for message in attachment]
    finally:
        attachment.close()


async def test_source_runs_and_returns(node: Node) -> None:
    handle = await launch(
        node,
        '''
        @inferlet("greeter", hosts=["example.org"])
        async def main(api, name):
            """Says hello."""
            print("greeting", name)
            await api.send(f"hello {name}")
            answer = await api.receive()
            slept, length = asyncio.sleep(0.001, 1), asyncio.to_thread(len, "ab")
            return {"answer": answer, "sum": sum(await asyncio.gather(slept, length))}
        ''',
        "Kabo",
    )
    await handle.send("hi")
    assert await messages_of(handle) == ["hello Kabo"]
    assert await handle.result() == {"answer": "hi", "sum": 3}
    assert handle.name == "greeter"
    assert ("info", "greeting Kabo") in [(line.level, line.text) for line in handle.logs()]
    assert handle.record().state is ProgramState.FINISHED


@pytest.mark.parametrize("name", LIBRARY)
async def test_library_programs_run_unchanged(node: Node, name: str) -> None:
    """The same file in both runtimes, to the same result and messages."""
    trusted, args = LIBRARY[name]
    untrusted = await node.inspect("".join(getlines(str(trusted.source))))
    await node.launch(trusted, args, tenant=TENANT).result()  # so that both find a warm cache
    outside = node.launch(trusted, args, tenant=TENANT)
    inside = node.launch(untrusted, args, tenant=TENANT)
    assert inside.name == outside.name
    assert await inside.result() == await outside.result()
    # how tokens are grouped into messages depends on when they come
    assert "".join(await messages_of(inside)) == "".join(await messages_of(outside))
