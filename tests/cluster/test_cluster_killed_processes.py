"""A node process is killed in the middle of streams, and their clients see the same texts."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest
from cluster_processes import MODEL, PATIENCE_S, ClusterProcesses, cluster_processes

TEXT = "The harbour wakes before the town does. Nets are mended, and a bell counts the boats. "
NUM_TOKENS = 1_800
"""Of each choice, as many as the model takes: some hundred are there within a tenth of a second."""
NUM_BEFORE = 75
"""Events of a stream before its node is killed."""
SHARED = {"model": MODEL, "stream": True, "temperature": 0.8, "seed": 7}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": TEXT, "n": 2, "max_tokens": NUM_TOKENS, "ignore_eos": True},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": TEXT}],
        "n": 3,
        "max_tokens": NUM_TOKENS,
        "ignore_eos": True,
    },
}


class Reader:
    """Reads one stream; ``texts``: of its choices. ``is_begun``: some of it is here, and much is
    still to come."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.node = ""
        self.is_begun = asyncio.Event()

    async def read(self, url: str, path: str) -> dict[int, str]:
        body = {**ASKED[path], **SHARED}
        num_events = 0
        async with (
            httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, verify=False) as http,
            http.stream("POST", path, json=body) as answer,
        ):
            assert answer.status_code == 200
            self.node = answer.headers.get("x-quire-node", "")
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    num_events += 1
                    self._take(msgspec.json.decode(line[6:]))
                    if num_events == NUM_BEFORE:
                        self.is_begun.set()
        self.is_begun.set()
        return self.texts

    def _take(self, event: dict[str, Any]) -> None:
        assert "error" not in event, event
        for choice in event.get("choices", ()):
            text = choice.get("text") or choice.get("delta", {}).get("content") or ""
            index = choice["index"]
            self.texts[index] = self.texts.get(index, "") + text


async def killed(cluster: ClusterProcesses, path: str) -> None:
    name, *_ = cluster.nodes
    expected = await Reader().read(cluster.nodes[name].url, path)
    assert len(expected) == ASKED[path].get("n", 1)
    reader = Reader()
    reading = asyncio.create_task(reader.read(cluster.url, path))
    await reader.is_begun.wait()
    assert not reading.done()
    victim = cluster.nodes[reader.node]
    victim.kill()
    assert await reading == expected
    victim.start()
    await victim.ready()


@pytest.mark.e2e
@pytest.mark.timeout(600)
async def test_its_clients_see_the_same_texts() -> None:
    async with cluster_processes(2, kv_cache_bytes="64MiB") as cluster:
        for path in ASKED:
            await killed(cluster, path)
        await cluster.settled()
