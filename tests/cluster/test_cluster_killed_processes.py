"""A node process is killed in the middle of answers, and their clients see the same texts and log
probabilities."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio
from cluster_processes import MODEL, PATIENCE_S, ClusterProcesses, cluster_processes

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="module"),
]

TEXT = "The harbour wakes before the town does. Nets are mended, and a bell counts the boats. "
NUM_TOKENS = 300
"""The number of tokens of each choice."""
NUM_TOLD_BYTES = 40_000
"""The number of bytes that the router receives before the node is killed: the link passes no more.
The log probabilities make each answer more than twice as long, however many tokens share an event.
Whatever else a node says, 500 bytes a second, takes more than a minute to reach this number."""
SHARED = {"model": MODEL, "temperature": 0.8, "seed": 7}
CHAT = {
    "messages": [{"role": "user", "content": TEXT}],
    "max_tokens": NUM_TOKENS,
    "ignore_eos": True,
}
ASKED: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "/v1/completions",
        {
            "prompt": TEXT,
            "max_tokens": NUM_TOKENS,
            "ignore_eos": True,
            "n": 2,
            "logprobs": 5,
            "stream": True,
        },
    ),
    (
        "/v1/chat/completions",
        {**CHAT, "n": 2, "logprobs": True, "top_logprobs": 2, "stream": True},
    ),
    ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2, "n": 2}),
)


class Reader:
    """Reads one answer. ``texts`` and ``logprobs``: those of its choices. ``is_begun``: the first
    events of a stream have arrived."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.logprobs: dict[int, list[float]] = {}
        self.is_begun = asyncio.Event()

    async def read(self, url: str, path: str, asked: dict[str, Any]) -> Reader:
        async with (
            httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, verify=False) as http,
            http.stream("POST", path, json={**asked, **SHARED}) as answer,
        ):
            assert answer.status_code == 200
            if not asked.get("stream"):
                await answer.aread()
                self._take(answer.json())
                return self
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    self._take(msgspec.json.decode(line[6:]))
                    self.is_begun.set()
        return self

    def _take(self, event: dict[str, Any]) -> None:
        assert "error" not in event, event
        for choice in event.get("choices", ()):
            said = choice.get("message") or choice.get("delta") or {}
            index = choice["index"]
            text = choice.get("text") or said.get("content") or ""
            self.texts[index] = self.texts.get(index, "") + text
            shown = choice.get("logprobs") or {}
            self.logprobs.setdefault(index, []).extend(shown.get("token_logprobs") or ())
            for one in shown.get("content") or ():
                of_tops = [top["logprob"] for top in one["top_logprobs"]]
                self.logprobs[index].extend((one["logprob"], *of_tops))


async def killed(cluster: ClusterProcesses, path: str, asked: dict[str, Any]) -> None:
    """The node that answers is found by what comes back from it."""
    links = cluster.links
    name, *_ = cluster.nodes
    expected = await Reader().read(cluster.nodes[name].url, path, asked)
    assert len(expected.texts) == asked.get("n", 1)
    held = {
        asyncio.create_task(link.passed_back(link.num_bytes_back + NUM_TOLD_BYTES)): name
        for name, link in links.items()
    }
    for link in links.values():
        link.hold(NUM_TOLD_BYTES, back=True)
    reader = Reader()
    reading = asyncio.create_task(reader.read(cluster.url, path, asked))
    await asyncio.wait([reading, *held], return_when=asyncio.FIRST_COMPLETED)
    if reading.done():
        pytest.fail(f"the answer has ended before its node was killed: {reading.result().texts}")
    (answering,) = (name for task, name in held.items() if task.done())
    for task in held:
        task.cancel()
    if asked.get("stream"):
        await reader.is_begun.wait()
    assert not reading.done()
    victim = cluster.nodes[answering]
    victim.kill()
    links[answering].cut()  # what was held is lost with the machine
    for link in links.values():
        link.restore()
    num_moves = cluster.router.log.read_text().count("goes on at")
    got = await reading
    assert cluster.router.log.read_text().count("goes on at") == num_moves + 1
    assert got.texts == expected.texts
    assert got.logprobs.keys() == expected.logprobs.keys()
    for index, logprobs in got.logprobs.items():
        assert logprobs == pytest.approx(expected.logprobs[index], abs=1e-3)
    victim.start()
    await cluster.ready()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[ClusterProcesses]:
    """The router learns from cut links that a node is lost; a probe that is held is no loss."""
    async with cluster_processes(
        2, kv_cache_bytes="64MiB", probe_interval_s=2, probe_timeout_s=PATIENCE_S
    ) as made:
        yield made


@pytest.mark.parametrize(("path", "asked"), ASKED)
async def test_its_clients_see_the_same_texts(
    cluster: ClusterProcesses, path: str, asked: dict[str, Any]
) -> None:
    await killed(cluster, path, asked)
    await cluster.settled()


LAUNCH = {"program": "streaming", "args": [TEXT, "1200", "4", "64"]}
NUM_PROGRAM_TOKENS = 300
"""That it has generated, of 1,200, before its node is killed."""


async def program_killed(cluster: ClusterProcesses) -> None:
    """A program that copies and moves its pages, and whose client waits for its end."""
    name, *_ = cluster.nodes
    async with httpx.AsyncClient(timeout=PATIENCE_S, verify=False) as http:
        direct = f"{cluster.nodes[name].url}/v1/programs"
        expected = (await http.post(direct, json={**LAUNCH, "wait": True})).json()["result"]
        launch = {**LAUNCH, "stream": True}
        async with http.stream("POST", f"{cluster.url}/v1/programs", json=launch) as answer:
            told = (msgspec.json.decode(line[6:]) async for line in data_of(answer))
            program = (await anext(told))["program"]["id"]
            victim, num_tokens = "", 0
            while num_tokens < NUM_PROGRAM_TOKENS:
                found = await http.get(f"{cluster.url}/v1/programs/{program}")
                victim = found.headers["x-quire-node"]
                num_tokens = found.json()["usage"]["num_generated_tokens"]
            cluster.nodes[victim].kill()
            ended = await anext(told)
        assert ended["type"] == "ended", ended
        assert ended["program"]["id"] == program
        assert ended["program"]["result"] == expected
        found = await http.get(f"{cluster.url}/v1/programs/{program}")
        assert found.headers["x-quire-node"] != victim
        cluster.nodes[victim].start()
        await cluster.ready()


async def test_a_program_ends_with_the_same(cluster: ClusterProcesses) -> None:
    await program_killed(cluster)
    await cluster.settled()


async def data_of(answer: httpx.Response) -> AsyncIterator[str]:
    async for line in answer.aiter_lines():
        if line.startswith("data: {"):
            yield line
