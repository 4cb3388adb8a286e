"""The real engine in processes of its own, on small random models: sameness, loss, replay.

One node with three engines serves the tests that only ask; those that break something start their
own.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from fake_node import TENANT, StartNode

from quire.core.config import EngineConfig, NodeConfig
from quire.core.errors import EngineLost, ModelFormatError, QuireError
from quire.core.ids import EngineId, ModelId
from quire.node import Node, RestartLimits, read_model_files
from quire.node.control.replaying import replay
from quire.node.sessions.handle import SessionHandle
from quire.programs.api import Api
from quire.programs.builtin import CompletionRequest, complete
from quire.programs.inferlet import inferlet
from quire.programs.sdk import Context

pytestmark = pytest.mark.e2e
on_the_trios_loop = pytest.mark.asyncio(loop_scope="module")

PROMPT = "hello, a small world"
NUM_TOKENS = 10


def engine(source: Path, name: str, **settings: object) -> EngineConfig:
    return EngineConfig(
        source=str(source),
        name=ModelId(name),
        dtype="float32",
        device="cpu",
        kv_cache_bytes=1 << 20,
        host_cache_bytes=1 << 20,
        num_threads=1,
        **settings,  # type: ignore[arg-type]
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trio(model_directory: Path, other_model_directory: Path) -> AsyncIterator[Node]:
    """The same model with pages of 16 and of 1 token, and another model."""
    node = Node(
        NodeConfig(
            engines=(
                engine(model_directory, "wide"),
                engine(model_directory, "narrow", page_size=1),
                engine(other_model_directory, "other"),
            )
        ),
        debug=True,
    )
    seen: list[str] = []
    await node.start(lambda text, fraction: seen.append(text))
    assert any(text.startswith("narrow: loading weights") for text in seen)
    yield node
    await node.stop()


def greedy(directory: Path, text: str) -> list[int]:
    """What transformers generates."""
    import torch
    from transformers import LlamaForCausalLM

    prompt = read_model_files(engine(directory, "reference")).tokenizer.encode(text)
    model = LlamaForCausalLM.from_pretrained(directory)
    with torch.no_grad():
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=NUM_TOKENS,
            min_new_tokens=NUM_TOKENS,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=-1,
        )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


def asked(
    node: Node, name: str, text: str = PROMPT, max_tokens: int = NUM_TOKENS
) -> CompletionRequest:
    tokens = tuple(node.model(name).tokenizer.encode(text))
    return CompletionRequest(
        prompt=tokens, max_tokens=max_tokens, model=ModelId(name), ignore_eos=True
    )


async def completion(session: SessionHandle, request: CompletionRequest) -> list[int]:
    return [token async for chunk in session.call(complete, request) for token in chunk.token_ids]


@on_the_trios_loop
async def test_every_engine_says_what_transformers_says_for_its_model(
    trio: Node, model_directory: Path, other_model_directory: Path
) -> None:
    session = trio.session(TENANT, "s")
    wide, narrow, other = await asyncio.gather(
        *(completion(session, asked(trio, name)) for name in ("wide", "narrow", "other"))
    )
    assert wide == narrow == greedy(model_directory, PROMPT)
    assert other == greedy(other_model_directory, PROMPT)
    assert wide != other


async def low_level(api: Api, name: str) -> list[int]:
    """Pie 4.2: embed, forward, distribution, by hand; with pages of one token, as printed."""
    (model,) = [one for one in api.available_models() if one.id == name]
    queue = api.create_queue(model)
    size = queue.page_size

    def pages(num_tokens: int) -> int:
        return -(-num_tokens // size)

    output: list[int] = []
    prompt = api.tokenize(queue, PROMPT)
    limit = len(prompt) + NUM_TOKENS
    prompt_emb, gen_emb = api.alloc_emb(queue, len(prompt)), api.alloc_emb(queue, 1)
    kv = api.alloc_kvpage(queue, pages(limit))
    api.embed_txt(queue, prompt, list(range(len(prompt))), prompt_emb)
    api.forward(queue, [], prompt_emb, kv[: pages(len(prompt))], gen_emb)
    for i in range(len(prompt), limit):
        dist = await api.get_next_dist(queue, gen_emb)
        output.append(dist.max_index())
        api.embed_txt(queue, output[-1], [i], gen_emb)
        api.forward(queue, kv[: pages(i)], gen_emb, kv[i // size : i // size + 1], gen_emb)
    await api.synchronize(queue)
    return output


@inferlet()
async def three_roads(api: Api) -> list[list[int]]:
    (narrow,) = [model for model in api.available_models() if model.id == "narrow"]
    ctx = Context(narrow)
    ctx.fill(PROMPT)
    await ctx.generate_until(max_tokens=NUM_TOKENS, ignore_eos=True)
    by_context = list(ctx.tokens[-NUM_TOKENS:])
    return [await low_level(api, "wide"), await low_level(api, "narrow"), by_context]


@on_the_trios_loop
async def test_the_low_level_loop_and_the_three_lines_give_the_same_tokens(
    trio: Node, model_directory: Path
) -> None:
    handle = trio.launch(three_roads, tenant=TENANT)
    expected = greedy(model_directory, PROMPT)
    assert await handle.result() == [expected] * 3


@on_the_trios_loop
async def test_statistics_count_what_was_served(trio: Node) -> None:
    before = trio.statistics().latencies.get(EngineId("wide#0"))
    call = trio.session(TENANT).call(complete, asked(trio, "wide", "count me"))
    async for _ in call:
        pass
    await call.wait_closed()
    statistics = trio.statistics()
    served = statistics.latencies[EngineId("wide#0")]
    assert served.num_finished == (0 if before is None else before.num_finished) + 1
    assert statistics.health.ready
    assert {one.engine for one in statistics.controller.engines} == {
        "wide#0",
        "narrow#0",
        "other#0",
    }


async def test_the_engine_in_this_process_says_the_same(
    start_node: StartNode, model_directory: Path
) -> None:
    local = await start_node(
        NodeConfig(engines=(engine(model_directory, "wide"),), engine_process=False),
        transport_factory=None,
        model_files=read_model_files,
    )
    here = await completion(local.session(TENANT), asked(local, "wide"))
    assert here == greedy(model_directory, PROMPT)


async def test_a_killed_engine_comes_back_and_its_clients_are_told(
    start_node: StartNode, model_directory: Path, tmp_path: Path
) -> None:
    log = tmp_path / "events.log"
    node = await start_node(
        NodeConfig(engines=(engine(model_directory, "tiny"),), record_path=log),
        transport_factory=None,
        model_files=read_model_files,
        restart_limits=RestartLimits(first_pause_s=0.0),
    )
    session = node.session(TENANT, "s")
    before = await completion(session, asked(node, "tiny"))
    call = session.call(complete, asked(node, "tiny", max_tokens=400))
    items = aiter(call)
    await anext(items)
    os.kill(engine_pid(node), signal.SIGKILL)
    outcome = await read_to_end(items)
    assert isinstance(outcome, EngineLost)
    assert outcome.retriable
    assert "SIGKILL" in outcome.message
    assert await completion(session, asked(node, "tiny")) == before
    health = node.health()
    assert health.ready
    assert health.engines[EngineId("tiny#0")].restarts == 1
    await node.stop()
    report = replay(log)
    assert report.equal, report.divergence
    assert report.num_events > 10


def engine_pid(node: Node) -> int:
    """Of the only engine."""
    (supervisor,) = node._parts.fleet._supervisors
    return supervisor.transport.pid  # type: ignore[union-attr]


async def read_to_end(items: AsyncIterator[object]) -> QuireError | str:
    try:
        async for _ in items:
            pass
    except QuireError as exc:
        return exc
    return "stop"


def truncated_copy(source: Path, target: Path) -> None:
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    weights = target / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


async def test_a_bad_model_directory_keeps_the_node_from_starting(
    start_node: StartNode, tmp_path: Path, model_directory: Path
) -> None:
    broken = tmp_path / "broken"
    truncated_copy(model_directory, broken)
    with pytest.raises(ModelFormatError):
        await start_node(
            NodeConfig(engines=(engine(broken, "broken"),), engine_process=False),
            transport_factory=None,
            model_files=read_model_files,
        )
