"""Real engine processes: what a program exports on one is imported on another one of the node."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fake_node import TENANT

from quire.core.config import EngineConfig, NodeConfig
from quire.core.decoding import SamplerSpec, StopSpec
from quire.core.ids import ModelId
from quire.node import Node
from quire.programs.api import Api, KvPage, Model, Queue

pytestmark = pytest.mark.e2e

PROMPT = tuple(range(5, 45))
LAST = 50
NUM_TOKENS = 6

Said = tuple[list[int], list[float]]


def config(source: Path, name: str, **fields: Any) -> EngineConfig:
    return EngineConfig(
        source=str(source),
        name=ModelId(name),
        dtype="float32",
        device="cpu",
        num_blocks=128,
        num_threads=1,
        data_address="tcp://127.0.0.1:0",
        **fields,
    )


def queue_on(api: Api, model: str) -> Queue:
    return api.create_queue(Model(api.issuer, api.issuer.model(ModelId(model))))


async def go_on(api: Api, queue: Queue, pages: list[KvPage]) -> Said:
    """What follows the pages and ``LAST``: tokens, and how likely they are."""
    own = api.alloc_kvpage(queue, -(-(NUM_TOKENS + 1) // queue.page_size))
    stream = api.decode(
        queue, [*pages, *own], (LAST,), own, position=len(PROMPT),
        sampler=SamplerSpec(), stop=StopSpec(max_tokens=NUM_TOKENS), num_logprobs=0,
    )  # fmt: skip
    chunks = [chunk async for chunk in stream]
    tokens = [token for chunk in chunks for token in chunk.token_ids]
    return tokens, [one.logprob for chunk in chunks for one in chunk.logprobs or ()]


async def bring(api: Api, asked: tuple[str, bool]) -> AsyncGenerator[tuple[Said, Said], None]:
    """Compute and export on engine a and import on the other; yield what both generate then."""
    other, hides = asked
    here, there = queue_on(api, "a"), queue_on(api, other)
    pages = api.alloc_kvpage(here, -(-len(PROMPT) // here.page_size))
    await api.decode(here, [], PROMPT, pages, position=0, stop=StopSpec(0))
    if hides:
        api.mask_kvpage(here, pages[1], [slot % 3 == 0 for slot in range(here.page_size)])
    await api.export_kvpage(here, pages, f"prompt {other} {hides}")
    brought = await api.import_kvpage(there, f"prompt {other} {hides}")
    assert sum(page.fill or 0 for page in brought) == len(PROMPT)
    yield await go_on(api, here, pages), await go_on(api, there, brought)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(model_directory: Path) -> AsyncIterator[Node]:
    node = Node(
        NodeConfig(
            engines=(
                config(model_directory, "a", page_size=16),
                config(model_directory, "same", page_size=16),
                config(model_directory, "large", page_size=64),
                config(model_directory, "torch", backend="torch", page_size=1),
            )
        )
    )
    await node.start()
    yield node
    await node.stop()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("other", ["same", "large", "torch"])
async def test_k_and_v_come_from_the_other_process(node: Node, other: str) -> None:
    said = []
    for hides in (False, True):
        call = node.session(TENANT, f"{other} {hides}").call(bring, (other, hides))
        async for here, there in call:
            assert here[0] == there[0]
            assert there[1] == pytest.approx(here[1], abs=1e-4)
            assert len(here[1]) == NUM_TOKENS
            said.append(here[1])
        await call.wait_closed()
    assert said[0] != pytest.approx(said[1], abs=1e-3), "hidden slots make a difference"
    (there,) = [one for one in node.statistics().controller.engines if one.engine == f"{other}#0"]
    assert there.num_tokens <= 2 * (NUM_TOKENS + 1), "nothing of the prompts is computed"
    assert node.statistics().controller.num_leases == 0
