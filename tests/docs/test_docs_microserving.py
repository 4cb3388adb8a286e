"""The guide to microserving on two nodes: its scripts run, and K and V that another process has
computed give the tokens of one node alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from docs_markdown import Block, blocks
from test_docs_snippets import CLUSTER, run_python

from quire.cli.server_process import server_process
from quire.client import Microserving

KEY = "a key for two nodes"

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@asynccontextmanager
async def two_nodes(key_file: Path) -> AsyncIterator[tuple[str, str]]:
    arguments = ("--num-threads", "1", "--log-level", "warning", "--dtype", "float32")
    arguments += ("--cluster-key-file", str(key_file), "--kv-cache-bytes", "32MiB")
    async with AsyncExitStack() as stack:
        first, second = await asyncio.gather(
            *(stack.enter_async_context(server_process(arguments)) for _ in range(2))
        )
        yield first.url, second.url


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    key_file = tmp_path_factory.mktemp("cluster") / "cluster.key"
    key_file.write_text(KEY)
    with asyncio.Runner() as runner:
        serving = two_nodes(key_file)
        yield runner.run(serving.__aenter__())
        runner.run(serving.__aexit__(None, None, None))


def _id(block: Block) -> str:
    return block.place


@pytest.mark.parametrize("block", [b for b in blocks("python") if b.page == CLUSTER], ids=_id)
def test_a_script_of_the_guide_runs(block: Block, nodes: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "cluster.key").write_text(KEY)
    text = block.text
    for number, url in enumerate(nodes, 1):
        text = text.replace(f"http://127.0.0.1:800{number}", url)
    ran = run_python(text, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip(), "a snippet shows something"


def test_real_engines_exchange_k_and_v(nodes: tuple[str, str]) -> None:
    prompt = [(i * 7) % 250 + 5 for i in range(700)]

    async def generated(node: Microserving, tokens: list[int], *args: object) -> list[int]:
        fields = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "return_token_ids": True}
        found: list[int] = []
        async for chunk in node.start_generate(tokens, *args, **fields):  # type: ignore[arg-type]
            found += chunk["choices"][0].get("token_ids") or []
        return found

    async def main() -> None:
        async with Microserving(nodes[0], KEY) as sender, Microserving(nodes[1], KEY) as receiver:
            ready = await receiver.prep_recv(prompt, -1)
            sent = await sender.remote_send(prompt, ready["kv_addr_info"], 0, -1)
            assert sent["num_tokens"] == ready["num_tokens"] == len(prompt) - 1
            told = await generated(receiver, prompt, -1, ready["kv_addr_info"])
            assert told == await generated(sender, prompt)

    asyncio.run(main())
